// The "Connect" panel: for each app, the lines to paste, with the address of this server.

import { announce, find, make } from "./dom.js";
import { key } from "./key.js";

const MODEL = "whisper-1"; // every server answers to it

// Each gets the address of the server, its host, and a key: the text is shown and copied, so it never has the real one.
const APPS = {
  curl: ({ url, hasKey }) => `curl ${url}/v1/audio/transcriptions${hasKey ? ' \\\n  -H "Authorization: Bearer $CHORAL_API_KEY"' : ""} \\
  -F model=${MODEL} -F file=@talk.mp3`,
  Python: ({ url, secret }) => `from openai import OpenAI

client = OpenAI(base_url="${url}/v1", api_key="${secret}")
with open("talk.mp3", "rb") as file:
    print(client.audio.transcriptions.create(model="${MODEL}", file=file).text)`,
  JavaScript: ({ url, secret }) => `import fs from "node:fs";
import OpenAI from "openai";

const client = new OpenAI({ baseURL: "${url}/v1", apiKey: "${secret}" });
const file = fs.createReadStream("talk.mp3");
console.log((await client.audio.transcriptions.create({ model: "${MODEL}", file })).text);`,
  "Open WebUI": ({ url, secret }) => `# environment of Open WebUI, or Admin Settings → Audio
AUDIO_STT_ENGINE=openai
AUDIO_STT_OPENAI_API_BASE_URL=${url}/v1
AUDIO_STT_OPENAI_API_KEY=${secret}
AUDIO_STT_MODEL=${MODEL}`,
  "Home Assistant": ({ host }) => `# start the server with its Wyoming port:
choral serve --host 0.0.0.0 --dialects all
# Settings → Devices & services → Add integration → Wyoming Protocol
Host: ${host}
Port: 10300`,
  LiveKit: ({ url, secret }) => `from livekit.plugins import openai

stt = openai.STT(model="${MODEL}", base_url="${url}/v1", api_key="${secret}")`,
  Pipecat: ({ url, secret }) => `from pipecat.services.openai.stt import OpenAISTTService

stt = OpenAISTTService(model="${MODEL}", base_url="${url}/v1", api_key="${secret}")`,
  n8n: ({ url, hasKey }) => `# an HTTP Request node
Method: POST
URL: ${url}/v1/audio/transcriptions
${hasKey ? "Header: Authorization = Bearer YOUR_KEY\n" : ""}Body Content Type: Form-Data
  file: n8n Binary File, Input Data Field Name: data
  model: Form Data, ${MODEL}`,
  Bazarr: ({ url }) => `# Settings → Providers → Whisper
Whisper ASR Docker Endpoint: ${url}
# whole films are large: choral serve --max-upload-bytes 1000000000`,
};

function show() {
  const hasKey = Boolean(key());
  const server = { url: location.origin, host: location.hostname, hasKey, secret: hasKey ? "YOUR_KEY" : "none" };
  find("connect-lines").textContent = APPS[find("connect-app").value](server);
}

export function setUpConnect() {
  find("connect-app").replaceChildren(...Object.keys(APPS).map((name) => make("option", { value: name, textContent: name })));
  find("connect-app").addEventListener("change", show);
  find("connect").addEventListener("click", () => {
    show();
    find("connect-dialog").showModal();
  });
  find("connect-close").addEventListener("click", () => find("connect-dialog").close());
  find("connect-copy").addEventListener("click", async () => {
    try {
      await navigator.clipboard.writeText(find("connect-lines").textContent);
      announce("Copied.");
    } catch { // not every page may write to the clipboard: the lines can be copied by hand then
      getSelection().selectAllChildren(find("connect-lines"));
    }
  });
}
