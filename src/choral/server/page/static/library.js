// What this browser remembers: its jobs, their sound, and what was edited. All of it stays on this device.

const MOST_AUDIO_BYTES = 500 * 2 ** 20; // of one recording; longer ones are read without their sound after a reload

const opened = new Promise((resolve, reject) => {
  const request = indexedDB.open("choral", 1);
  request.onupgradeneeded = () => {
    request.result.createObjectStore("jobs", { keyPath: "id" });
    request.result.createObjectStore("audio");
  };
  request.onsuccess = () => resolve(request.result);
  request.onerror = () => reject(request.error);
});

async function act(store, mode, work) {
  const database = await opened;
  return new Promise((resolve, reject) => {
    const transaction = database.transaction(store, mode);
    const request = work(transaction.objectStore(store));
    transaction.oncomplete = () => resolve(request.result);
    transaction.onabort = () => reject(transaction.error);
  });
}

export async function allJobs() {
  const jobs = await act("jobs", "readonly", (store) => store.getAll());
  return jobs.sort((one, other) => other.addedAt - one.addedAt);
}

export const keepJob = (job) => act("jobs", "readwrite", (store) => store.put(job));

export async function dropJob(id) {
  await act("jobs", "readwrite", (store) => store.delete(id));
  await act("audio", "readwrite", (store) => store.delete(id));
}

export async function keepAudio(id, blob) {
  if (blob.size <= MOST_AUDIO_BYTES) await act("audio", "readwrite", (store) => store.put(blob, id));
}

export const audioOf = (id) => act("audio", "readonly", (store) => store.get(id));
