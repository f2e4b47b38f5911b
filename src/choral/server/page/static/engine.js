// The live view of the engine: counters from the server, and what they did between two looks.

import { engine } from "./api.js";
import { find } from "./dom.js";

const EVERY_MS = 1000;

export async function setUpEngine(onModel) {
  let before = null;
  for (;;) {
    if (!document.hidden) before = await look(before, onModel);
    await new Promise((resolve) => setTimeout(resolve, before ? EVERY_MS : 5 * EVERY_MS));
  }
}

async function look(before, onModel) {
  try {
    const now = await engine();
    if (!before) onModel(now.model);
    show(now, before ?? now);
    return now;
  } catch {
    for (const id of ["engine-fill-text", "engine-waiting", "engine-speed"]) find(id).textContent = "–";
    return null;
  }
}

function show(now, before) {
  const steps = now.decoder_steps - before.decoder_steps;
  const fill = steps > 0 && now.slots ? (now.decoder_rows - before.decoder_rows) / steps / now.slots : 0;
  const seconds = now.at - before.at;
  const speed = seconds > 0 ? (now.audio_s - before.audio_s) / seconds : 0;
  find("engine-fill").value = fill;
  find("engine-fill-text").textContent = `${Math.round(100 * fill)} %`;
  find("engine-waiting").textContent = String(now.waiting);
  find("engine-speed").textContent = speed > 0.05 ? `${speed.toFixed(speed < 10 ? 1 : 0)}×` : "at rest";
  find("engine-model").textContent = `${now.model.name} on ${now.model.device}`;
}
