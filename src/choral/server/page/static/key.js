// The API key: requested when the server requires one, and stored until the tab is closed.

import { find } from "./dom.js";

const NAME = "choral-key";
let openPrompt = null;

export const key = () => sessionStorage.getItem(NAME) ?? "";

// Concurrent callers share one dialog.
export function askForKey(problem) {
  openPrompt ??= openDialog(problem).finally(() => { openPrompt = null; });
  return openPrompt;
}

function openDialog(problem) {
  const [dialog, input] = [find("key-dialog"), find("key")];
  find("key-problem").textContent = problem;
  find("key-problem").hidden = !problem;
  input.value = "";
  dialog.showModal();
  return new Promise((resolve) => {
    dialog.addEventListener("cancel", (event) => event.preventDefault());
    find("key-form").addEventListener("submit", () => {
      sessionStorage.setItem(NAME, input.value.trim());
      resolve();
    }, { once: true });
  });
}
