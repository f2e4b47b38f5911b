// A job: its state, updated from the server's events while it runs, and what is stored locally. Views listen for `change`.

import { deleteServerJob, followEvents, getJob, submit } from "./api.js";
import { announce } from "./dom.js";
import { deleteJob, saveAudio, saveJob } from "./storage.js";

const ENDED = ["succeeded", "failed", "dead", "cancelled", "gone"];
const GONE = "The server has deleted this transcript: results are kept for a few days only.";

export class Job extends EventTarget {
  constructor({ id = null, name, addedAt = Date.now(), edited = null, audio = null }) {
    super();
    Object.assign(this, { id, name, addedAt, edited, audio });
    this.state = id ? "unknown" : audio ? "uploading" : "recording";
    this.progress = { done_s: 0, duration_s: null };
    this.sentFraction = 0;
    this.segments = [];
    this.liveTurns = []; // live text, until there are segments
    this.result = null;
    this.error = null;
    this.record = null;
    this.isDisconnected = false;
    this.aborter = new AbortController();
  }

  get hasEnded() { return ENDED.includes(this.state); }

  get hasText() { return this.state === "succeeded"; }

  // The segments to display: the edited ones if there are any, else the transcribed ones and live text after them.
  get visibleSegments() {
    const transcribedTo = this.segments.at(-1)?.end ?? 0;
    return this.edited ?? [...this.segments, ...this.liveTurns.filter((turn) => turn.start >= transcribedTo)];
  }

  emitChange(what) { this.dispatchEvent(new CustomEvent("change", { detail: what })); }

  setLiveTurns(turns) {
    this.liveTurns = turns;
    this.emitChange("text");
  }

  async upload(options) {
    this.state = "uploading";
    try {
      const record = await submit(this.audio, this.name, options, (fraction) => {
        this.sentFraction = fraction;
        this.emitChange("state");
      });
      this.id = record.id;
      await this.save();
      await saveAudio(this.id, this.audio);
    } catch (error) {
      this.fail("failed", error.message);
      return;
    }
    await this.watch();
  }

  // Receives segments as they become final, then loads the whole result.
  async watch() {
    try {
      await followEvents(this.id, (name, fields) => this.applyEvent(name, fields), this.aborter.signal);
      if (this.state === "succeeded") await this.load();
    } catch (error) {
      this.fail(error.status === 404 ? "gone" : "failed", error.status === 404 ? GONE : error.message);
    }
  }

  async load() {
    const record = await getJob(this.id);
    this.record = record;
    this.result = record.result;
    this.segments = record.result.segments;
    this.liveTurns = [];
    this.emitChange("whole");
  }

  applyEvent(name, fields) {
    this.isDisconnected = name === "lost";
    if (name === "segment") {
      this.segments.push(fields);
      this.emitChange(this.liveTurns.length ? "text" : "segment");
      return;
    }
    if (!this.isDisconnected) {
      this.record = fields;
      this.state = fields.state;
      this.progress = fields.progress;
      this.error = fields.error?.message ?? null;
    }
    if (name === "end") announce(this.state === "succeeded" ? `The transcript of ${this.name} is done.` : `${this.name}: ${this.error ?? this.state}`);
    this.emitChange("state");
  }

  fail(state, message) {
    this.state = state;
    this.error = message;
    announce(`${this.name}: ${message}`);
    this.emitChange("state");
  }

  save() { return saveJob({ id: this.id, name: this.name, addedAt: this.addedAt, edited: this.edited }); }

  async edit(segments) {
    this.edited = segments;
    await this.save();
    this.emitChange("whole");
  }

  async remove() {
    this.aborter.abort();
    if (!this.id) return;
    await deleteServerJob(this.id);
    await deleteJob(this.id);
  }
}
