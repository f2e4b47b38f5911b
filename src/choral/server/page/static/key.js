// The API key: asked for when the server wants one, kept until the tab is closed.

import { find } from "./dom.js";

const NAME = "choral-key";
let asking = null;

export const key = () => sessionStorage.getItem(NAME) ?? "";

// Everyone who needs it at the same time waits for the one answer.
export function askForKey(problem) {
  asking ??= openDialog(problem).finally(() => { asking = null; });
  return asking;
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
