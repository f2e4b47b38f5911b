// The audio player. While it plays, `onTime` is called on every animation frame to highlight the current word.

import { clock, find } from "./dom.js";

const CANNOT_PLAY = "This browser cannot play this type of file; the text still works.";
const NOT_STORED = "The audio of this transcript is not on this device; the text still works.";
const FAR_BEYOND_END_S = 1e9;

export class Player {
  constructor(onTime) {
    this.audio = find("audio");
    this.onTime = onTime;
    this.address = null;
    const { audio } = this;
    find("play").addEventListener("click", () => this.toggle());
    find("seek").addEventListener("input", (event) => { audio.currentTime = Number(event.target.value); this.show(); });
    find("rate").addEventListener("change", (event) => { audio.playbackRate = Number(event.target.value); });
    for (const name of ["play", "pause", "ended"]) audio.addEventListener(name, () => this.showPlaying());
    for (const name of ["seeked", "timeupdate", "durationchange"]) audio.addEventListener(name, () => this.show());
    audio.addEventListener("loadedmetadata", () => this.findDuration());
    audio.addEventListener("error", () => this.address && this.silence(CANNOT_PLAY));
  }

  load(blob) {
    if (this.address) URL.revokeObjectURL(this.address);
    this.address = blob ? URL.createObjectURL(blob) : null;
    find("player").hidden = !blob;
    find("no-sound").hidden = true;
    if (!blob) {
      this.audio.removeAttribute("src");
      this.audio.load();
      return;
    }
    this.audio.src = this.address;
    this.audio.playbackRate = this.audio.defaultPlaybackRate = Number(find("rate").value);
    this.show();
  }

  silence(reason = NOT_STORED) {
    this.load(null);
    find("no-sound").textContent = reason;
    find("no-sound").hidden = false;
    find("text").classList.remove("has-sound");
  }

  get hasSound() { return this.address !== null; }

  // A file from MediaRecorder has no duration until it has been read to its end: seek there once.
  findDuration() {
    const { audio } = this;
    if (audio.duration !== Infinity) return;
    audio.currentTime = FAR_BEYOND_END_S;
    audio.addEventListener("durationchange", () => { audio.currentTime = 0; }, { once: true });
  }

  toggle() {
    if (this.audio.paused) this.audio.play().catch(() => this.silence(CANNOT_PLAY));
    else this.audio.pause();
  }

  playFrom(seconds) {
    this.audio.currentTime = seconds;
    this.show();
    this.audio.play().catch((error) => error.name === "AbortError" || this.silence(CANNOT_PLAY));
  }

  showPlaying() {
    const isPlaying = !this.audio.paused;
    find("play").classList.toggle("is-playing", isPlaying);
    find("play").setAttribute("aria-label", isPlaying ? "Pause" : "Play");
    const step = () => {
      this.show();
      if (!this.audio.paused) requestAnimationFrame(step);
    };
    if (isPlaying) requestAnimationFrame(step);
  }

  show() {
    const { currentTime, duration } = this.audio;
    const length = Number.isFinite(duration) ? duration : 0;
    const seek = find("seek");
    seek.max = String(length);
    seek.value = String(currentTime);
    seek.setAttribute("aria-valuetext", `${clock(currentTime)} of ${clock(length)}`);
    find("clock").textContent = `${clock(currentTime)} / ${clock(length)}`;
    this.onTime(currentTime, !this.audio.paused);
  }
}
