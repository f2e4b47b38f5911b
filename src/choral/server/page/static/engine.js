// The live view of the engine: counters from the server, and what they did since an earlier look.

import { engine } from "./api.js";
import { find } from "./dom.js";

const EVERY_MS = 1000;
const LOOKS = 10; // audio is counted when a request ends: over fewer looks the speed would jump

export async function setUpEngine(onModel) {
  let looks = [];
  for (;;) {
    if (!document.hidden) looks = await look(looks, onModel);
    await new Promise((resolve) => setTimeout(resolve, looks.length ? EVERY_MS : 5 * EVERY_MS));
  }
}

async function look(looks, onModel) {
  try {
    const now = await engine();
    if (!looks.length) onModel(now.model);
    show(now, looks.at(-1) ?? now, looks[0] ?? now);
    return [...looks.slice(1 - LOOKS), now];
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
  find("engine-speed").textContent = speed > 0.05 ? `${speed.toFixed(speed < 10 ? 1 : 0)}×` : "at rest";
  find("engine-model").textContent = `${now.model.name} on ${now.model.device}`;
}
