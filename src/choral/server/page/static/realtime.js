// Live text: streams microphone audio to /v1/realtime and collects the turns that come back.

import { key } from "./key.js";

const AUDIO_INPUT = { format: { type: "audio/pcm", rate: 16_000 }, turn_detection: { type: "server_vad" } };
const CLOSED = "The server ended the live text. The recording continues, and its whole text follows when you stop.";
const TRANSCRIPTION = "conversation.item.input_audio_transcription";

// Calls `onTurns` with all turns so far, shaped like segments, after each change. Returns a function that stops it.
export async function startLiveText(context, source, transcription, onTurns, onError) {
  await context.audioWorklet.addModule("/page/pcm-worklet.js");
  const socket = new WebSocket(realtimeUrl(), key() ? ["realtime", `openai-insecure-api-key.${key()}`] : ["realtime"]);
  const turns = new Map();
  let isActive = true;
  const early = []; // what was said while the socket was being connected
  const send = (event) => {
    if (socket.readyState === WebSocket.OPEN) socket.send(JSON.stringify(event));
    else if (socket.readyState === WebSocket.CONNECTING) early.push(event);
  };
  const encoder = new AudioWorkletNode(context, "pcm-encoder", { numberOfOutputs: 0, channelCount: 1, channelCountMode: "explicit" });
  encoder.port.onmessage = ({ data }) => send({ type: "input_audio_buffer.append", audio: toBase64(data) });
  send({ type: "session.update", session: { type: "transcription", audio: { input: { ...AUDIO_INPUT, transcription } } } });
  source.connect(encoder);
  socket.addEventListener("open", () => {
    for (const event of early.splice(0)) send(event);
  });
  socket.addEventListener("message", ({ data }) => {
    if (!isActive) return; // the transcript of the whole recording replaces the live text
    const event = JSON.parse(data);
    if (event.type === "error") onError(event.error.message);
    else if (applyEvent(event, turns)) onTurns([...turns.values()].filter((turn) => turn.text));
  });
  socket.addEventListener("close", () => isActive && onError(CLOSED));
  return () => {
    isActive = false;
    socket.close();
  };
}

const realtimeUrl = () => `${location.origin.replace(/^http/, "ws")}/v1/realtime?intent=transcription`;

const toBase64 = (samples) => btoa(String.fromCharCode(...new Uint8Array(samples.buffer)));

// Returns whether the event changed a turn.
function applyEvent(event, turns) {
  const turn = turns.get(event.item_id);
  if (event.type === "input_audio_buffer.speech_started") {
    const start = event.audio_start_ms / 1000;
    turns.set(event.item_id, { id: turns.size, start, end: start, text: "", isLive: true });
  } else if (event.type === "input_audio_buffer.speech_stopped") turn.end = event.audio_end_ms / 1000;
  else if (event.type === `${TRANSCRIPTION}.delta`) turn.text += event.delta;
  else if (event.type === `${TRANSCRIPTION}.completed` && event.speaker) turn.speaker = event.speaker;
  else return false;
  return true;
}
