// Local storage in IndexedDB: the jobs of this browser, their audio and edits. Nothing of it leaves the device.

const MAX_AUDIO_BYTES = 500 * 2 ** 20; // of one recording; a larger one has no audio after a reload

const databaseOpened = new Promise((resolve, reject) => {
  const request = indexedDB.open("choral", 1);
  request.onupgradeneeded = () => {
    request.result.createObjectStore("jobs", { keyPath: "id" });
    request.result.createObjectStore("audio");
  };
  request.onsuccess = () => resolve(request.result);
  request.onerror = () => reject(request.error);
});

async function transact(store, mode, operation) {
  const database = await databaseOpened;
  return new Promise((resolve, reject) => {
    const transaction = database.transaction(store, mode);
    const request = operation(transaction.objectStore(store));
    transaction.oncomplete = () => resolve(request.result);
    transaction.onabort = () => reject(transaction.error);
  });
}

export async function allJobs() {
  const jobs = await transact("jobs", "readonly", (store) => store.getAll());
  return jobs.sort((a, b) => b.addedAt - a.addedAt);
}

export const saveJob = (job) => transact("jobs", "readwrite", (store) => store.put(job));

export async function deleteJob(id) {
  await transact("jobs", "readwrite", (store) => store.delete(id));
  await transact("audio", "readwrite", (store) => store.delete(id));
}

export async function saveAudio(id, blob) {
  if (blob.size <= MAX_AUDIO_BYTES) await transact("audio", "readwrite", (store) => store.put(blob, id));
}

export const loadAudio = (id) => transact("audio", "readonly", (store) => store.get(id));
