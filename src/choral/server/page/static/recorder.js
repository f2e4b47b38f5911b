// The microphone: one button starts and stops, a bar shows that something is heard, and text comes while it is spoken.

import { clock, complain, find, say } from "./dom.js";
import { listen } from "./live.js";

const EXTENSIONS = { "audio/webm": "webm", "audio/mp4": "m4a" }; // the first that the browser can write
const REASONS = {
  NotAllowedError: "The browser was not allowed to use the microphone. Allow it in the address bar, and try again.",
  NotFoundError: "No microphone was found. Plug one in, or choose a file instead.",
};
const NOT_SECURE = "Browsers give the microphone only to pages from https or from this machine itself (localhost).";

let stopCurrent = null;

// `begin` gives a job for a name when the microphone is on, `end` is called with it when the sound is whole.
export function setUpRecorder({ begin, end, options }) {
  find("record").addEventListener("click", async () => {
    if (stopCurrent) return stopCurrent();
    if (!navigator.mediaDevices) return complain(NOT_SECURE);
    try {
      await record(begin, end, options());
    } catch (error) {
      complain(REASONS[error.name] ?? `The microphone could not be used: ${error.message}`);
    }
  });
}

async function record(begin, end, { language, task }) {
  const stream = await navigator.mediaDevices.getUserMedia({ audio: true });
  const type = Object.keys(EXTENSIONS).find((type) => MediaRecorder.isTypeSupported(type));
  const recorder = new MediaRecorder(stream, { mimeType: type });
  const job = begin(`Recording ${stampNow()}.${EXTENSIONS[type]}`);
  const pieces = [];
  recorder.addEventListener("dataavailable", (event) => pieces.push(event.data));
  const context = new AudioContext();
  const source = context.createMediaStreamSource(stream);
  const hide = showLevel(context, source);
  // Live text is in the language that is spoken: not what somebody expects who asked for English.
  const deafen = task === "translate" ? null : hear(context, source, language, job);
  stopCurrent = () => recorder.stop();
  job.aborter.signal.addEventListener("abort", stopCurrent);
  recorder.addEventListener("stop", async () => {
    job.aborter.signal.removeEventListener("abort", stopCurrent);
    stopCurrent = null;
    hide();
    for (const track of stream.getTracks()) track.stop();
    if (!job.aborter.signal.aborted) end(job, new Blob(pieces, { type }));
    (await deafen)?.();
    await context.close();
  });
  recorder.start(1000);
  say("Recording. Press the button again to stop.");
}

async function hear(context, source, language, job) {
  try {
    return await listen(context, source, language, (turns) => job.hear(turns), complain);
  } catch (error) {
    complain(`There is no live text: ${error.message}. The text comes when you stop.`);
    return null;
  }
}

function showLevel(context, source) {
  const [button, label, bar] = [find("record"), find("record-text"), find("level-bar")];
  const analyser = context.createAnalyser();
  source.connect(analyser);
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
