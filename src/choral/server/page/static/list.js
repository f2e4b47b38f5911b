// The list of this browser's jobs: a button for each, with its state and progress.

import { clock, find, make } from "./dom.js";

const STATE_TEXTS = {
  unknown: "…", recording: "recording", uploading: "uploading", queued: "queued", waiting: "waiting for a retry",
  cancelled: "cancelled", gone: "no longer on the server",
};

export function stateText(job) {
  const { done_s: done, duration_s: total } = job.progress;
  if (job.isDisconnected) return "connection lost, retrying";
  if (job.state === "uploading" && job.sentFraction > 0) return `uploading, ${Math.round(100 * job.sentFraction)} %`;
  if (job.state === "running") return total ? `${clock(done)} of ${clock(total)}` : "preparing the audio";
  if (job.state === "succeeded") return total ? clock(total) : "done";
  if (job.state === "failed" || job.state === "dead") return job.error ?? "failed";
  return STATE_TEXTS[job.state] ?? job.state;
}

export function progressOf(job) {
  if (job.state === "uploading") return job.sentFraction || null;
  if (job.state === "running" && job.progress.duration_s) return job.progress.done_s / job.progress.duration_s;
  return null;
}

export class List {
  constructor(onChoose) {
    this.rows = new Map();
    this.onChoose = onChoose;
  }

  add(job, atEnd = false) {
    const row = {
      state: make("span", { className: "job-state" }),
      bar: make("progress", { max: 1 }),
    };
    row.bar.setAttribute("aria-label", `Progress of ${job.name}`);
    row.button = make("button", { type: "button", className: "job" }, make("span", { className: "job-name", textContent: job.name }), row.state);
    row.item = make("li", {}, row.button);
    row.button.addEventListener("click", () => this.onChoose(job));
    job.addEventListener("change", () => this.show(job));
    this.rows.set(job, row);
    find("jobs")[atEnd ? "append" : "prepend"](row.item);
    this.show(job);
  }

  show(job) {
    const row = this.rows.get(job);
    if (!row) return;
    find("list-empty").hidden = true;
    row.state.textContent = stateText(job);
    row.state.classList.toggle("is-bad", ["failed", "dead"].includes(job.state));
    const done = progressOf(job);
    if (done === null) row.bar.remove();
    else {
      row.bar.value = done;
      row.button.append(row.bar);
    }
  }

  select(selected) {
    for (const [job, row] of this.rows) row.button.setAttribute("aria-current", String(job === selected));
  }

  remove(job) {
    this.rows.get(job)?.item.remove();
    this.rows.delete(job);
    find("list-empty").hidden = this.rows.size > 0;
  }
}
