// The text of a job: a paragraph for each segment, a span for each word. Words are selected by time and by arrow keys.

import { clock, find, make } from "./dom.js";
import { voiceClass } from "./speakers.js";

const UNSURE_BELOW = 0.4; // the probability of a word

export class Text {
  constructor(onWord) {
    this.box = find("text");
    this.onWord = onWord;
    this.clear();
    this.box.addEventListener("click", (event) => {
      const target = event.target.closest("[data-start]");
      if (target) this.onWord(Number(target.dataset.start));
    });
    this.box.addEventListener("keydown", (event) => this.press(event));
  }

  clear() {
    this.words = [];
    this.spoken = null;
    this.chosen = null;
    this.speakers = []; // in the order in which they first speak
    this.speaker = null; // of the last segment
    this.box.replaceChildren();
  }

  show(segments, isEditing) {
    this.clear();
    for (const segment of segments) this.add(segment, { isEditing });
  }

  add(segment, { isEditing = false, isNew = false } = {}) {
    const stamp = make("button", { type: "button", className: "stamp", textContent: clock(segment.start), data: { start: segment.start } });
    stamp.setAttribute("aria-label", `Play from ${clock(segment.start)}`);
    const body = isEditing ? this.field(segment) : this.paragraph(segment);
    const row = make("div", { className: "segment" }, stamp, segment.speaker ? this.saidBy(segment.speaker, body) : body);
    row.classList.toggle("is-new", isNew);
    row.classList.toggle("is-live", Boolean(segment.isLive));
    this.box.append(row);
  }

  // In the speaker's colour, with the name where the speaker changes.
  saidBy(speaker, body) {
    if (!this.speakers.includes(speaker)) this.speakers.push(speaker);
    const name = speaker === this.speaker ? [] : [make("span", { className: "speaker", textContent: speaker })];
    this.speaker = speaker;
    return make("div", { className: `said ${voiceClass(this.speakers.indexOf(speaker))}` }, ...name, body);
  }

  field(segment) {
    const field = make("textarea", { value: segment.text.trim(), rows: 1, data: { segment: segment.id } });
    field.setAttribute("aria-label", `Text from ${clock(segment.start)} to ${clock(segment.end)}`);
    return field;
  }

  paragraph(segment) {
    const words = segment.words?.length ? segment.words : [{ word: segment.text, start: segment.start, end: segment.end, probability: 1 }];
    const paragraph = make("p");
    for (const word of words) {
      const spelling = word.word.trimStart();
      if (paragraph.childNodes.length && spelling !== word.word) paragraph.append(" ");
      const span = make("span", { className: "word", textContent: spelling, data: { start: word.start } });
      span.classList.toggle("is-unsure", word.probability < UNSURE_BELOW);
      paragraph.append(span);
      this.words.push({ start: word.start, end: word.end, span });
    }
    return paragraph;
  }

  get hasUnsure() { return this.box.querySelector(".is-unsure") !== null; }

  // Highlights the last word that has started, until it ends.
  highlightAt(seconds, isPlaying) {
    let [low, high] = [0, this.words.length];
    while (low < high) {
      const middle = (low + high) >> 1;
      if (this.words[middle].start <= seconds + 0.005) low = middle + 1;
      else high = middle;
    }
    const word = this.words[low - 1];
    const span = word && seconds < word.end + 0.15 ? word.span : null;
    if (span === this.spoken) return;
    this.spoken?.classList.remove("is-spoken");
    span?.classList.add("is-spoken");
    this.spoken = span;
    if (span && isPlaying) keepInView(span);
  }

  press(event) {
    if (event.target !== this.box || !this.words.length) return;
    const step = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    const at = this.words.findIndex((word) => word.span === this.chosen);
    if (step) this.choose(this.words[Math.min(this.words.length - 1, Math.max(0, at + step))].span);
    else if (event.key === "Enter" && this.chosen) this.onWord(Number(this.chosen.dataset.start));
    else return;
    event.preventDefault();
  }

  choose(span) {
    this.chosen?.classList.remove("is-chosen");
    this.chosen = span;
    span.classList.add("is-chosen");
    keepInView(span);
    find("status").textContent = span.textContent;
  }
}

function keepInView(element) {
  const { top, bottom } = element.getBoundingClientRect();
  if (top < 90 || bottom > innerHeight - 40) element.scrollIntoView({ block: "center", behavior: "smooth" });
}
