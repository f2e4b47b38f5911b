// The view of one job: its details, audio and text; editing, copying, downloading and removing.

import { getTranscript } from "./api.js";
import { announce, clock, download, find, showNotice } from "./dom.js";
import { loadAudio } from "./storage.js";
import { progressOf, stateText } from "./list.js";
import { Player } from "./player.js";
import { renameSpeaker, Speakers } from "./speakers.js";
import { Text } from "./text.js";
import { FILES, render, retime } from "./export.js";

export class Reader {
  constructor(onRemove) {
    this.job = null;
    this.isEditing = false;
    this.onChange = (event) => this.update(event.detail);
    this.text = new Text((seconds) => this.player.hasSound && this.player.playFrom(seconds));
    this.player = new Player((seconds, isPlaying) => this.text.highlightAt(seconds, isPlaying));
    this.speakers = new Speakers((from, to) => this.renameSpeaker(from, to));
    find("edit").addEventListener("click", () => this.toggleEdit());
    find("copy").addEventListener("click", () => this.copy());
    find("remove").addEventListener("click", () => onRemove(this.job));
    for (const button of document.querySelectorAll("[data-format]")) {
      button.addEventListener("click", () => this.download(button.dataset.format));
    }
    addEventListener("keydown", (event) => this.press(event));
  }

  async open(job) {
    await this.leaveEditing();
    this.job?.removeEventListener("change", this.onChange);
    this.job = job;
    find("welcome").hidden = job !== null;
    find("sheet").hidden = job === null;
    this.player.load(null);
    if (!job) return;
    job.addEventListener("change", this.onChange);
    this.text.show(job.visibleSegments, false);
    this.update("state");
    const blob = job.audio ?? (job.id ? await loadAudio(job.id) : null);
    if (this.job !== job) return; // another job was opened meanwhile
    find("text").classList.toggle("has-sound", Boolean(blob));
    if (blob) this.player.load(blob);
    else if (job.state !== "recording") this.player.silence();
  }

  update(what) {
    const { job } = this;
    if (what === "segment") return this.text.add(job.segments.at(-1), { isNew: true });
    if (what === "text") return this.text.show(job.visibleSegments, false);
    if (what === "whole" && !this.isEditing) this.text.show(job.visibleSegments, false);
    find("reader-title").textContent = job.name;
    find("facts").textContent = detailsOf(job);
    find("bar").hidden = job.hasEnded || job.state === "unknown";
    find("progress-text").textContent = stateText(job);
    const done = progressOf(job);
    if (done === null) find("progress").removeAttribute("value");
    else find("progress").value = done;
    find("problem").textContent = job.error ?? (job.hasText && !job.visibleSegments.length && job.result ? "No speech was found in this recording." : "");
    find("problem").hidden = !find("problem").textContent;
    this.speakers.show(job.visibleSegments, job.hasText);
    for (const button of document.querySelectorAll("#edit, #copy, [data-format]")) button.disabled = !job.hasText;
    find("legend").hidden = this.isEditing || !(job.hasText && this.text.hasUnsure);
    find("remove").textContent = job.hasEnded || job.state === "unknown" ? "Remove" : "Cancel";
  }

  // --- editing ---

  async toggleEdit() {
    if (this.isEditing) return this.leaveEditing();
    this.isEditing = true;
    find("edit").setAttribute("aria-pressed", "true");
    find("edit").textContent = "Done";
    this.text.show(this.job.visibleSegments, true);
    find("legend").hidden = true;
    find("text").querySelector("textarea")?.focus();
  }

  async leaveEditing() {
    if (!this.isEditing) return;
    this.isEditing = false;
    find("edit").setAttribute("aria-pressed", "false");
    find("edit").textContent = "Edit";
    const texts = [...find("text").querySelectorAll("textarea")].map((field) => field.value);
    const edited = this.job.visibleSegments.map((segment, i) => (texts[i].trim() === segment.text.trim() ? segment : retime(segment, texts[i])));
    const isChanged = edited.some((segment, i) => segment !== this.job.visibleSegments[i]);
    if (isChanged) await this.job.edit(edited);
    else this.update("whole");
    announce(isChanged ? "Your changes are saved on this device." : "");
  }

  async renameSpeaker(from, to) {
    await this.leaveEditing();
    const isMerged = this.job.visibleSegments.some(({ speaker }) => speaker === to);
    await this.job.edit(renameSpeaker(this.job.visibleSegments, from, to));
    announce(isMerged ? `${from} and ${to} are one speaker now.` : `${from} is called ${to} now.`);
  }

  // --- copying and downloading ---

  async copy() {
    await this.leaveEditing();
    try {
      await navigator.clipboard.writeText(render("text", this.job.visibleSegments, this.job));
      find("copy").textContent = "Copied";
      announce("The text was copied.");
      setTimeout(() => { find("copy").textContent = "Copy"; }, 1500);
    } catch {
      showNotice("The browser does not allow copying: select the text and copy it manually, or download it.");
    }
  }

  async download(format) {
    await this.leaveEditing();
    const { extension, type, served } = FILES[format];
    const name = `${this.job.name.replace(/\.[^.]+$/, "")}.${extension}`;
    try {
      const text = this.job.edited ? render(format, this.job.edited, this.job) : await getTranscript(this.job.id, served);
      download(name, text, type);
    } catch (error) {
      showNotice(error.message);
    }
  }

  // The space key plays and pauses, except where it has another function.
  press(event) {
    const isBusy = event.target.closest("button, input, select, textarea, summary, a, dialog");
    if (event.key !== " " || isBusy || !this.player.hasSound) return;
    event.preventDefault();
    this.player.toggle();
  }
}

const names = new Intl.DisplayNames(["en"], { type: "language" });

function detailsOf(job) {
  const { result, record } = job;
  if (!result) return "";
  const language = result.language[0].toUpperCase() + result.language.slice(1);
  const elapsed = record.ended_at - record.started_at;
  const parts = [language, clock(result.duration)];
  if (elapsed > 0) parts.push(`transcribed in ${elapsed < 10 ? elapsed.toFixed(1) : Math.round(elapsed)} s`);
  if (job.edited) parts.push("edited");
  return [...parts, ...(result.warnings ?? [])].join(" · ");
}

export const languageName = (code) => {
  try {
    return names.of(code) ?? code;
  } catch {
    return code;
  }
};
