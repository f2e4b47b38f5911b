// The page: creates jobs from files and recordings, lists them, and opens them in the reader.

import { setUpConnect } from "./connect.js";
import { announce, find, make, showNotice } from "./dom.js";
import { setUpEngine } from "./engine.js";
import { Job } from "./job.js";
import { allJobs } from "./storage.js";
import { List } from "./list.js";
import { languageName, Reader } from "./reader.js";
import { setUpRecorder } from "./recorder.js";

const QUESTIONS = {
  recording: () => "Stop recording and discard it?",
  succeeded: ({ name }) => `Remove “${name}” and its text from this device and from the server?`,
};

const reader = new Reader(remove);
const list = new List(open);

function open(job) {
  list.select(job);
  reader.open(job);
  const isBelow = matchMedia("(max-width: 52rem)").matches; // and the button that stops a recording is above
  if (isBelow && job.state !== "recording") find("reader").scrollIntoView({ behavior: "smooth" });
}

function add(name, audio = null) {
  const job = new Job({ name, audio });
  list.add(job);
  open(job);
  return job;
}

function upload(job) {
  announce(`Uploading ${job.name}.`);
  job.upload(selectedOptions());
}

function finishRecording(job, audio) {
  job.audio = audio;
  if (reader.job === job) reader.open(job);
  upload(job);
}

async function remove(job) {
  const question = QUESTIONS[job.state]?.(job);
  if (question && !confirm(question)) return;
  try {
    await job.remove();
    list.remove(job);
    await reader.open(null);
    find("reader").focus();
  } catch (error) {
    showNotice(error.message);
  }
}

// --- options ---

function selectedOptions() {
  const fields = Object.fromEntries([...new FormData(find("options-form"))].filter(([, value]) => value.trim()));
  return { ...fields, word_timestamps: "true" };
}

function showOptionsHint() {
  const { language, task, diarize, speakers } = find("options-form").elements;
  speakers.disabled = find("speakers-field").hidden = !diarize.checked; // the server refuses a number without the option
  const parts = [
    language.value ? language.selectedOptions[0].textContent : "",
    task.value === "translate" ? "into English" : "",
    diarize.checked ? "speakers" : "",
  ];
  find("options-hint").textContent = parts.filter(Boolean).join(", ");
}

function setLanguages(model) {
  const language = find("language");
  const codes = model.languages.map((code) => ({ code, name: languageName(code) }));
  codes.sort((a, b) => a.name.localeCompare(b.name));
  language.replaceChildren(language.firstElementChild, ...codes.map(({ code, name }) => make("option", { value: code, textContent: name })));
  const isEnglishOnly = model.languages.length === 1;
  for (const id of ["language", "task"]) find(id).disabled = isEnglishOnly;
  if (isEnglishOnly) language.value = model.languages[0];
}

find("options-form").addEventListener("change", showOptionsHint);
find("options-form").addEventListener("submit", (event) => event.preventDefault());

// --- files ---

function addFiles(files) {
  for (const file of files) upload(add(file.name, file));
}

find("files").addEventListener("change", (event) => {
  addFiles([...event.target.files]);
  event.target.value = "";
});

for (const name of ["dragenter", "dragover"]) {
  addEventListener(name, (event) => {
    event.preventDefault();
    find("drop").classList.add("is-over");
  });
}
addEventListener("dragleave", (event) => event.relatedTarget ?? find("drop").classList.remove("is-over"));
addEventListener("drop", (event) => {
  event.preventDefault();
  find("drop").classList.remove("is-over");
  addFiles([...event.dataTransfer.files]);
});

// --- start ---

showOptionsHint(); // a browser may restore a form
setUpRecorder({ begin: add, end: finishRecording, options: selectedOptions });
setUpConnect();
setUpEngine(setLanguages);
try {
  for (const stored of await allJobs()) {
    const job = new Job(stored);
    list.add(job, true);
    job.watch();
  }
} catch {
  showNotice("This browser does not store data for this page: the list is lost when the tab is closed.");
}
