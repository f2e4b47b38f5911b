// The engine status: polls the server's counters and shows their rates.

import { getEngine } from "./api.js";
import { find } from "./dom.js";

const POLL_INTERVAL_MS = 1000;
const MAX_SAMPLES = 10; // audio is counted when a request ends: with fewer samples the speed would jump

export async function setUpEngine(onModel) {
  let samples = [];
  for (;;) {
    if (!document.hidden) samples = await poll(samples, onModel);
    await new Promise((resolve) => setTimeout(resolve, samples.length ? POLL_INTERVAL_MS : 5 * POLL_INTERVAL_MS));
  }
}

async function poll(samples, onModel) {
  try {
    const now = await getEngine();
    if (!samples.length) onModel(now.model);
    show(now, samples.at(-1) ?? now, samples[0] ?? now);
    return [...samples.slice(1 - MAX_SAMPLES), now];
  } catch {
    for (const id of ["engine-fill-text", "engine-waiting", "engine-speed"]) find(id).textContent = "–";
    return [];
  }
}

function show(now, last, first) {
  const steps = now.decoder_steps - last.decoder_steps;
  const fill = steps > 0 ? (now.decoder_rows - last.decoder_rows) / steps / now.slots : 0;
  const seconds = now.at - first.at;
  const speed = seconds > 0 ? (now.audio_s - first.audio_s) / seconds : 0;
  find("engine-fill").value = fill;
  find("engine-fill-text").textContent = `${Math.round(100 * fill)} %`;
  find("engine-waiting").textContent = String(now.waiting);
  find("engine-speed").textContent = speed > 0.05 ? `${speed.toFixed(speed < 10 ? 1 : 0)}×` : "idle";
  find("engine-model").textContent = now.slots
    ? `${now.model.name} on ${now.model.device}`
    : `${now.model.name}, not loaded`;
}
