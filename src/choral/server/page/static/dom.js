// DOM helpers shared by all views.

export const find = (id) => document.getElementById(id);

export function make(tag, properties = {}, ...children) {
  const { data = {}, ...attributes } = properties;
  const element = Object.assign(document.createElement(tag), attributes);
  Object.assign(element.dataset, data);
  element.append(...children);
  return element;
}

export function clock(seconds) {
  const whole = Math.max(0, Math.floor(seconds));
  const [hours, minutes, secs] = [Math.floor(whole / 3600), Math.floor(whole / 60) % 60, String(whole % 60).padStart(2, "0")];
  return hours ? `${hours}:${String(minutes).padStart(2, "0")}:${secs}` : `${minutes}:${secs}`;
}

// Announces a status message to screen readers, which are not told about every step of a progress bar.
export function announce(text) {
  find("status").textContent = text;
}

export function showNotice(text) {
  find("notice-text").textContent = text;
  find("notice").hidden = false;
}

find("notice-close").addEventListener("click", () => { find("notice").hidden = true; });

export function download(name, text, type) {
  const url = URL.createObjectURL(new Blob([text], { type }));
  make("a", { href: url, download: name }).click();
  setTimeout(() => URL.revokeObjectURL(url), 10_000);
}
