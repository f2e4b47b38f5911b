// The server's routes. What it refuses is an `ApiError` in its own words; a key is asked for when it wants one.

import { askForKey, key } from "./key.js";
import { readEvents } from "./events.js";

export class ApiError extends Error {
  constructor(message, status) {
    super(message);
    this.status = status;
  }
}

const UNREACHABLE = "The server cannot be reached. Check that it runs, and that this device is online.";

export async function ask(path, { method = "GET", headers = {}, signal } = {}) {
  for (;;) {
    const response = await fetch(path, { method, headers: { ...headers, ...authorization() }, signal }).catch((error) => {
      throw error.name === "AbortError" ? error : new ApiError(UNREACHABLE, 0);
    });
    if (response.ok) return response;
    const text = await response.text();
    if (response.status !== 401) throw refusal(response.status, text);
    await askForKey(key() ? refusal(401, text).message : "");
  }
}

const authorization = () => (key() ? { Authorization: `Bearer ${key()}` } : {});

function refusal(status, text) {
  try {
    return new ApiError(JSON.parse(text).error.message, status);
  } catch {
    return new ApiError(`The server answered with ${status}, and did not say why.`, status);
  }
}

// XMLHttpRequest, since fetch does not tell how much of an upload has gone.
function post(path, form, onSent) {
  return new Promise((resolve, reject) => {
    const request = new XMLHttpRequest();
    request.open("POST", path);
    for (const [name, value] of Object.entries(authorization())) request.setRequestHeader(name, value);
    request.upload.addEventListener("progress", (event) => event.lengthComputable && onSent(event.loaded / event.total));
    request.addEventListener("load", () => resolve({ status: request.status, text: request.responseText }));
    request.addEventListener("error", () => reject(new ApiError(UNREACHABLE, 0)));
    request.send(form);
  });
}

export async function submit(file, name, options, onSent) {
  const form = new FormData();
  for (const [field, value] of Object.entries(options)) form.append(field, value);
  form.append("file", file, name);
  for (;;) {
    const { status, text } = await post("/v1/jobs", form, onSent);
    if (status < 300) return JSON.parse(text);
    if (status !== 401) throw refusal(status, text);
    await askForKey(key() ? refusal(status, text).message : "");
  }
}

export const showJob = async (id) => (await ask(`/v1/jobs/${id}`)).json();
export const transcriptAs = async (id, format) => (await ask(`/v1/jobs/${id}?response_format=${format}`)).text();
export const engine = async () => (await ask("/v1/engine")).json();

// One DELETE stops a job that is under way, the next forgets it.
export async function removeJob(id) {
  try {
    const { deleted } = await (await ask(`/v1/jobs/${id}`, { method: "DELETE" })).json();
    if (!deleted) await ask(`/v1/jobs/${id}`, { method: "DELETE" });
  } catch (error) {
    if (error.status !== 404) throw error;
  }
}

const PAUSES_MS = [500, 1000, 2000, 5000];

// Calls `on(name, fields)` for every event until the end, over lost connections and restarts of the server.
export async function follow(id, on, signal) {
  let last = 0;
  let failures = 0;
  while (!signal.aborted) {
    try {
      const response = await ask(`/v1/jobs/${id}/events`, { headers: { "Last-Event-ID": String(last) }, signal });
      for await (const event of readEvents(response.body)) {
        failures = 0;
        last = Number(event.id) || last;
        on(event.name, JSON.parse(event.data));
        if (event.name === "end") return;
      }
    } catch (error) {
      if (signal.aborted) return;
      if (error instanceof ApiError && error.status >= 400 && error.status < 500) throw error;
      on("lost", {});
    }
    await new Promise((resolve) => setTimeout(resolve, PAUSES_MS[Math.min(failures++, PAUSES_MS.length - 1)]));
  }
}

