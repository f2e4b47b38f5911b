// Small helpers of every view: find, make, and write times the way people read them.

export const find = (id) => document.getElementById(id);

export function make(tag, properties = {}, ...children) {
  const { data = {}, ...own } = properties;
  const element = Object.assign(document.createElement(tag), own);
  Object.assign(element.dataset, data);
  element.append(...children);
  return element;
}

export function clock(seconds) {
  const whole = Math.max(0, Math.floor(seconds));
  const [hours, minutes, rest] = [Math.floor(whole / 3600), Math.floor(whole / 60) % 60, String(whole % 60).padStart(2, "0")];
  return hours ? `${hours}:${String(minutes).padStart(2, "0")}:${rest}` : `${minutes}:${rest}`;
}

// For screen readers, which would hear of every progress bar otherwise: only what somebody waits for.
export function say(text) {
  find("status").textContent = text;
}

export function complain(text) {
  find("notice-text").textContent = text;
  find("notice").hidden = false;
}

find("notice-close").addEventListener("click", () => { find("notice").hidden = true; });

export function save(name, text, type) {
  const address = URL.createObjectURL(new Blob([text], { type }));
  make("a", { href: address, download: name }).click();
  setTimeout(() => URL.revokeObjectURL(address), 10_000);
}
