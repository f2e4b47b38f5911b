// Text while it is spoken: what the microphone hears goes to the server, and turns come back, word by word.

import { key } from "./key.js";

const INPUT = { format: { type: "audio/pcm", rate: 16_000 }, turn_detection: { type: "server_vad" } };
const ENDED = "The server ended the live text. The recording goes on, and all of its text comes when you stop.";
const SAYS = "conversation.item.input_audio_transcription.";

// Calls `onTurns` with all turns so far, as segments are, whenever one has changed. Gives a function that ends it.
export async function listen(context, source, language, onTurns, onProblem) {
  await context.audioWorklet.addModule("/page/tap.js");
  const socket = new WebSocket(address(), key() ? ["realtime", `openai-insecure-api-key.${key()}`] : ["realtime"]);
  const turns = new Map();
  let isWanted = true;
  const send = (event) => socket.readyState === WebSocket.OPEN && socket.send(JSON.stringify(event));
  const tap = new AudioWorkletNode(context, "tap", { numberOfOutputs: 0, channelCount: 1, channelCountMode: "explicit" });
  tap.port.onmessage = ({ data }) => send({ type: "input_audio_buffer.append", audio: base64(data) });
  socket.addEventListener("open", () => {
    const transcription = language ? { language } : {};
    send({ type: "session.update", session: { type: "transcription", audio: { input: { ...INPUT, transcription } } } });
    source.connect(tap);
  });
  socket.addEventListener("message", ({ data }) => {
    if (!isWanted) return; // the recording as a whole knows better from here on
    const event = JSON.parse(data);
    if (event.type === "error") onProblem(event.error.message);
    else if (take(event, turns)) onTurns([...turns.values()].filter((turn) => turn.text));
  });
  socket.addEventListener("close", () => isWanted && onProblem(ENDED));
  return () => {
    isWanted = false;
    socket.close();
  };
}

const address = () => `${location.origin.replace(/^http/, "ws")}/v1/realtime?intent=transcription`;

const base64 = (samples) => btoa(String.fromCharCode(...new Uint8Array(samples.buffer)));

function take(event, turns) {
  const turn = turns.get(event.item_id);
  if (event.type === "input_audio_buffer.speech_started") {
    const start = event.audio_start_ms / 1000;
    turns.set(event.item_id, { id: turns.size, start, end: start, text: "", isHeard: true });
  } else if (event.type === "input_audio_buffer.speech_stopped") turn.end = event.audio_end_ms / 1000;
  else if (event.type === `${SAYS}delta`) turn.text += event.delta;
  else return false;
  return true;
}
