// A job of this browser: what it remembers of it, and what the server tells while it runs. Views listen for changes.

import { follow, removeJob, showJob, submit } from "./api.js";
import { say } from "./dom.js";
import { dropJob, keepAudio, keepJob } from "./library.js";

const ENDED = ["succeeded", "failed", "dead", "cancelled", "gone"];
const GONE = "The server has forgotten this one: results stay there for some days only.";

export class Job extends EventTarget {
  constructor({ id = null, name, addedAt = Date.now(), edited = null, audio = null }) {
    super();
    Object.assign(this, { id, name, addedAt, edited, audio });
    this.state = id ? "unknown" : audio ? "uploading" : "recording";
    this.progress = { done_s: 0, duration_s: null };
    this.sent = 0;
    this.segments = [];
    this.liveTurns = []; // live text, until there are segments
    this.result = null;
    this.error = null;
    this.record = null;
    this.isLost = false;
    this.aborter = new AbortController();
  }

  get hasEnded() { return ENDED.includes(this.state); }

  get hasText() { return this.state === "succeeded"; }

  // The segments to display: the edited ones if there are any, else the transcribed ones and live text after them.
  get shown() {
    const transcribedTo = this.segments.at(-1)?.end ?? 0;
    return this.edited ?? [...this.segments, ...this.liveTurns.filter((turn) => turn.start >= transcribedTo)];
  }

  changed(what) { this.dispatchEvent(new CustomEvent("change", { detail: what })); }

  setLiveTurns(turns) {
    this.liveTurns = turns;
    this.changed("text");
  }

  async upload(options) {
    this.state = "uploading";
    try {
      const record = await submit(this.audio, this.name, options, (share) => {
        this.sent = share;
        this.changed("state");
      });
      this.id = record.id;
      await this.keep();
      await keepAudio(this.id, this.audio);
    } catch (error) {
      this.fail("failed", error.message);
      return;
    }
    await this.watch();
  }

  // Segments as they become final, then the whole result.
  async watch() {
    try {
      await follow(this.id, (name, fields) => this.take(name, fields), this.aborter.signal);
      if (this.state === "succeeded") await this.load();
    } catch (error) {
      this.fail(error.status === 404 ? "gone" : "failed", error.status === 404 ? GONE : error.message);
    }
  }

  async load() {
    const record = await showJob(this.id);
    this.record = record;
    this.result = record.result;
    this.segments = record.result.segments;
    this.liveTurns = [];
    this.changed("whole");
  }

  take(name, fields) {
    this.isLost = name === "lost";
    if (name === "segment") {
      this.segments.push(fields);
      this.changed(this.liveTurns.length ? "text" : "segment");
      return;
    }
    if (!this.isLost) {
      this.record = fields;
      this.state = fields.state;
      this.progress = fields.progress;
      this.error = fields.error?.message ?? null;
    }
    if (name === "end") say(this.state === "succeeded" ? `The transcript of ${this.name} is done.` : `${this.name}: ${this.error ?? this.state}`);
    this.changed("state");
  }

  fail(state, message) {
    this.state = state;
    this.error = message;
    say(`${this.name}: ${message}`);
    this.changed("state");
  }

  keep() { return keepJob({ id: this.id, name: this.name, addedAt: this.addedAt, edited: this.edited }); }

  async edit(segments) {
    this.edited = segments;
    await this.keep();
    this.changed("whole");
  }

  async remove() {
    this.aborter.abort();
    if (!this.id) return;
    await removeJob(this.id);
    await dropJob(this.id);
  }
}
