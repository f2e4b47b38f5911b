// The microphone: a button that starts and stops a recording, a level meter, and live text.

import { announce, clock, find, showNotice } from "./dom.js";
import { startLiveText } from "./realtime.js";

const EXTENSIONS = { "audio/webm": "webm", "audio/mp4": "m4a" }; // the first one that the browser supports
const REASONS = {
  NotAllowedError: "Access to the microphone was denied. Allow it in the address bar and try again.",
  NotFoundError: "No microphone was found. Connect one, or choose a file instead.",
};
const NOT_SECURE = "Browsers allow the microphone only on https pages and on localhost.";

let stopCurrent = null;

// `begin(name)` creates a job when the microphone is on; `end(job, blob)` gets the complete recording.
export function setUpRecorder({ begin, end, options }) {
  find("record").addEventListener("click", async () => {
    if (stopCurrent) return stopCurrent();
    if (!navigator.mediaDevices) return showNotice(NOT_SECURE);
    try {
      await record(begin, end, options());
    } catch (error) {
      showNotice(REASONS[error.name] ?? `The microphone could not be used: ${error.message}`);
    }
  });
}

async function record(begin, end, { language, task, diarize }) {
  const stream = await navigator.mediaDevices.getUserMedia({ audio: true });
  const type = Object.keys(EXTENSIONS).find((type) => MediaRecorder.isTypeSupported(type));
  const recorder = new MediaRecorder(stream, { mimeType: type });
  const job = begin(`Recording ${timestamp()}.${EXTENSIONS[type]}`);
  const chunks = [];
  recorder.addEventListener("dataavailable", (event) => chunks.push(event.data));
  const context = new AudioContext();
  const source = context.createMediaStreamSource(stream);
  const hideLevel = showLevel(context, source);
  // Live text is in the language spoken, so there is none when a translation is requested.
  const stopLiveText = task === "translate" ? null : showLiveText(context, source, { language: language ?? null, diarize: Boolean(diarize) }, job);
  stopCurrent = () => recorder.stop();
  job.aborter.signal.addEventListener("abort", stopCurrent);
  recorder.addEventListener("stop", async () => {
    job.aborter.signal.removeEventListener("abort", stopCurrent);
    stopCurrent = null;
    hideLevel();
    for (const track of stream.getTracks()) track.stop();
    if (!job.aborter.signal.aborted) end(job, new Blob(chunks, { type }));
    (await stopLiveText)?.();
    await context.close();
  });
  recorder.start(1000);
  announce("Recording. Press the button again to stop.");
}

async function showLiveText(context, source, transcription, job) {
  try {
    return await startLiveText(context, source, transcription, (turns) => job.setLiveTurns(turns), showNotice);
  } catch (error) {
    showNotice(`Live text is not available: ${error.message}. The text follows when you stop.`);
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
    const peak = samples.reduce((max, sample) => Math.max(max, Math.abs(sample - 128)), 0) / 128;
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

function timestamp() {
  const now = new Date();
  const pad = (number) => String(number).padStart(2, "0");
  return `${now.getFullYear()}-${pad(now.getMonth() + 1)}-${pad(now.getDate())} ${pad(now.getHours())}.${pad(now.getMinutes())}`;
}
