// The server's routes. An error response is thrown as `ApiError` with its message; a 401 asks the user for an API key.

import { askForKey, key } from "./key.js";
import { readEvents } from "./events.js";

export class ApiError extends Error {
  constructor(message, status) {
    super(message);
    this.status = status;
  }
}

const UNREACHABLE = "The server cannot be reached. Check that it is running and that this device is online.";

export async function request(path, { method = "GET", headers = {}, signal } = {}) {
  for (;;) {
    const response = await fetch(path, { method, headers: { ...headers, ...authorization() }, signal }).catch((error) => {
      throw error.name === "AbortError" ? error : new ApiError(UNREACHABLE, 0);
    });
    if (response.ok) return response;
    const text = await response.text();
    if (response.status !== 401) throw toApiError(response.status, text);
    await askForKey(key() ? toApiError(401, text).message : "");
  }
}

const authorization = () => (key() ? { Authorization: `Bearer ${key()}` } : {});

function toApiError(status, text) {
  try {
    return new ApiError(JSON.parse(text).error.message, status);
  } catch {
    return new ApiError(`The server returned status ${status} without a message.`, status);
  }
}

// XMLHttpRequest, because fetch does not report upload progress.
function post(path, form, onProgress) {
  return new Promise((resolve, reject) => {
    const request = new XMLHttpRequest();
    request.open("POST", path);
    for (const [name, value] of Object.entries(authorization())) request.setRequestHeader(name, value);
    request.upload.addEventListener("progress", (event) => event.lengthComputable && onProgress(event.loaded / event.total));
    request.addEventListener("load", () => resolve({ status: request.status, text: request.responseText }));
    request.addEventListener("error", () => reject(new ApiError(UNREACHABLE, 0)));
    request.send(form);
  });
}

export async function submit(file, name, options, onProgress) {
  const form = new FormData();
  for (const [field, value] of Object.entries(options)) form.append(field, value);
  form.append("file", file, name);
  for (;;) {
    const { status, text } = await post("/v1/jobs", form, onProgress);
    if (status < 300) return JSON.parse(text);
    if (status !== 401) throw toApiError(status, text);
    await askForKey(key() ? toApiError(status, text).message : "");
  }
}

export const getJob = async (id) => (await request(`/v1/jobs/${id}`)).json();
export const getTranscript = async (id, format) => (await request(`/v1/jobs/${id}?response_format=${format}`)).text();
export const getEngine = async () => (await request("/v1/engine")).json();

// The first DELETE cancels a running job, the second one deletes it.
export async function deleteServerJob(id) {
  try {
    const { deleted } = await (await request(`/v1/jobs/${id}`, { method: "DELETE" })).json();
    if (!deleted) await request(`/v1/jobs/${id}`, { method: "DELETE" });
  } catch (error) {
    if (error.status !== 404) throw error;
  }
}

const RETRY_DELAYS_MS = [500, 1000, 2000, 5000];

// Calls `onEvent(name, fields)` for every event until the job ends, and reconnects after failures.
export async function followEvents(id, onEvent, signal) {
  let lastId = 0;
  let failures = 0;
  while (!signal.aborted) {
    try {
      const response = await request(`/v1/jobs/${id}/events`, { headers: { "Last-Event-ID": String(lastId) }, signal });
      for await (const event of readEvents(response.body)) {
        failures = 0;
        lastId = Number(event.id) || lastId;
        onEvent(event.name, JSON.parse(event.data));
        if (event.name === "end") return;
      }
    } catch (error) {
      if (signal.aborted) return;
      if (error instanceof ApiError && error.status >= 400 && error.status < 500) throw error;
      onEvent("lost", {});
    }
    await new Promise((resolve) => setTimeout(resolve, RETRY_DELAYS_MS[Math.min(failures++, RETRY_DELAYS_MS.length - 1)]));
  }
}

