// The speakers of a transcript: a button for each, in its colour, that opens a dialog to rename it or merge it with another.

import { find, make } from "./dom.js";

const N_COLOURS = 8; // classes voice-0 to voice-7

export const speakersOf = (segments) => [...new Set(segments.map((segment) => segment.speaker).filter(Boolean))];

export const voiceClass = (number) => `voice-${number % N_COLOURS}`;

export function renameSpeaker(segments, from, to) {
  const rename = (part) => (part.speaker === from ? { ...part, speaker: to } : part);
  return segments.map((segment) => ({ ...rename(segment), words: segment.words?.map(rename) }));
}

export class Speakers {
  // `onRename(from, to)`: if `to` is the name of another speaker, the two become one.
  constructor(onRename) {
    this.names = [];
    this.chosen = null;
    find("speaker-cancel").addEventListener("click", () => find("speaker-dialog").close());
    find("speaker-form").addEventListener("submit", () => {
      const to = find("speaker-same").value || find("speaker-name").value.trim();
      if (to && to !== this.chosen) onRename(this.chosen, to);
    });
  }

  show(segments, isEditable) {
    this.names = speakersOf(segments);
    const buttons = this.names.map((name, number) => {
      const button = make("button", { type: "button", className: `voice ${voiceClass(number)}`, textContent: name, disabled: !isEditable });
      button.addEventListener("click", () => this.ask(name));
      return button;
    });
    find("speakers-list").replaceChildren(...buttons);
    find("speakers").hidden = !buttons.length;
  }

  ask(name) {
    this.chosen = name;
    const others = this.names.filter((other) => other !== name);
    find("speaker-name").value = name;
    find("speaker-same").replaceChildren(
      make("option", { value: "", textContent: "nobody else" }),
      ...others.map((other) => make("option", { value: other, textContent: other })),
    );
    find("speaker-merge").hidden = !others.length;
    find("speaker-dialog").showModal();
    find("speaker-name").select();
  }
}
