// Export of edited text: words get new times, and segments are rendered in the download formats.

// Unchanged words at both ends keep their times; the words between share the time between them evenly.
export function retime(segment, text) {
  const before = segment.words ?? [];
  const after = text.split(/\s+/).filter(Boolean);
  const textOf = (word) => word.word.trim();
  let head = 0;
  while (head < Math.min(before.length, after.length) && textOf(before[head]) === after[head]) head++;
  let tail = 0;
  while (
    tail < Math.min(before.length, after.length) - head &&
    textOf(before[before.length - 1 - tail]) === after[after.length - 1 - tail]
  ) tail++;
  const start = before[head]?.start ?? (head ? before[head - 1].end : segment.start);
  const end = before.length - tail > head ? before[before.length - tail - 1].end : (before[head]?.start ?? segment.end);
  const middle = after.slice(head, after.length - tail);
  const share = (end - start) / Math.max(1, middle.length);
  const changed = middle.map((word, i) => ({
    word: ` ${word}`, start: start + i * share, end: start + (i + 1) * share, probability: 1, speaker: segment.speaker,
  }));
  const words = [...before.slice(0, head), ...changed, ...before.slice(before.length - tail)];
  return { ...segment, text: ` ${after.join(" ")}`, words };
}

const pad = (number, width = 2) => String(number).padStart(width, "0");

function stamp(seconds, comma) {
  const milliseconds = Math.round(seconds * 1000);
  const whole = Math.floor(milliseconds / 1000);
  return `${pad(Math.floor(whole / 3600))}:${pad(Math.floor(whole / 60) % 60)}:${pad(whole % 60)}${comma}${pad(milliseconds % 1000, 3)}`;
}

const line = (segment) => segment.text.trim().replaceAll("-->", "->");
const span = (segment, comma) => `${stamp(segment.start, comma)} --> ${stamp(segment.end, comma)}`;

const label = ({ speaker }) => (speaker ? `${speaker.replaceAll("-->", "->")}: ` : "");
const escaped = (text) => text.replaceAll("&", "&amp;").replaceAll("<", "&lt;").replaceAll(">", "&gt;");
const voice = ({ speaker }) => (speaker ? `<v ${escaped(speaker)}>` : "");

const renderers = {
  text: (segments) => segments.map((segment) => `${label(segment)}${segment.text.trim()}\n`).join(""),
  srt: (segments) => segments.map((segment, i) => `${i + 1}\n${span(segment, ",")}\n${label(segment)}${line(segment)}\n\n`).join(""),
  vtt: (segments) => `WEBVTT\n\n${segments.map((segment) => `${span(segment, ".")}\n${voice(segment)}${line(segment)}\n\n`).join("")}`,
  json: (segments, job) => `${JSON.stringify({
    text: segments.map((segment) => segment.text).join("").trim(),
    language: job.result?.language,
    duration: job.result?.duration,
    segments: segments.map(({ id, start, end, text, speaker, words }) => ({ id, start, end, text, speaker, words })),
  }, null, 2)}\n`,
};

export function render(format, segments, job) {
  const nonEmpty = segments.filter((segment) => segment.text.trim());
  return renderers[format](nonEmpty, job);
}

export const FILES = {
  text: { extension: "txt", type: "text/plain", served: "text" },
  srt: { extension: "srt", type: "application/x-subrip", served: "srt" },
  vtt: { extension: "vtt", type: "text/vtt", served: "vtt" },
  json: { extension: "json", type: "application/json", served: "verbose_json" },
};
