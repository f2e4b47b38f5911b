// The microphone: one button starts and stops, a bar shows that something is heard.

import { clock, complain, find, say } from "./dom.js";

const REASONS = {
  NotAllowedError: "The browser was not allowed to use the microphone. Allow it in the address bar, and try again.",
  NotFoundError: "No microphone was found. Plug one in, or choose a file instead.",
};
const NOT_SECURE = "Browsers give the microphone only to pages from https or from this machine itself (localhost).";

let stopCurrent = null;

export function setUpRecorder(onRecording) {
  find("record").addEventListener("click", async () => {
    if (stopCurrent) return stopCurrent();
    if (!navigator.mediaDevices) return complain(NOT_SECURE);
    try {
      await record(onRecording);
    } catch (error) {
      complain(REASONS[error.name] ?? `The microphone could not be used: ${error.message}`);
    }
  });
}

async function record(onRecording) {
  const stream = await navigator.mediaDevices.getUserMedia({ audio: true });
  const recorder = new MediaRecorder(stream);
  const pieces = [];
  recorder.addEventListener("dataavailable", (event) => pieces.push(event.data));
  const hide = showLevel(stream);
  recorder.addEventListener("stop", () => {
    hide();
    stopCurrent = null;
    for (const track of stream.getTracks()) track.stop();
    const type = recorder.mimeType.split(";")[0] || "audio/webm";
    onRecording(new Blob(pieces, { type }), `Recording ${stampNow()}.${type.includes("mp4") ? "m4a" : "webm"}`);
  });
  stopCurrent = () => recorder.stop();
  recorder.start(1000);
  say("Recording. Press the button again to stop.");
}

function showLevel(stream) {
  const [button, label, bar] = [find("record"), find("record-text"), find("level-bar")];
  const context = new AudioContext();
  const analyser = context.createAnalyser();
  context.createMediaStreamSource(stream).connect(analyser);
  const samples = new Uint8Array(analyser.fftSize);
  const startedAt = performance.now();
  button.setAttribute("aria-pressed", "true");
  find("level").hidden = false;
  let frame = 0;
  const draw = () => {
    analyser.getByteTimeDomainData(samples);
    const peak = samples.reduce((most, sample) => Math.max(most, Math.abs(sample - 128)), 0) / 128;
    bar.style.transform = `scaleX(${Math.min(1, Math.sqrt(peak))})`;
    label.textContent = `Stop · ${clock((performance.now() - startedAt) / 1000)}`;
    frame = requestAnimationFrame(draw);
  };
  draw();
  return () => {
    cancelAnimationFrame(frame);
    context.close();
    button.removeAttribute("aria-pressed");
    label.textContent = "Record";
    find("level").hidden = true;
  };
}

function stampNow() {
  const now = new Date();
  const two = (number) => String(number).padStart(2, "0");
  return `${now.getFullYear()}-${two(now.getMonth() + 1)}-${two(now.getDate())} ${two(now.getHours())}.${two(now.getMinutes())}`;
}
