// The official client of OpenAI for Node: runs the calls it reads as JSON, and prints what each gave or threw.
import fs from "node:fs";
import { createRequire } from "node:module";

const { folder, baseURL, apiKey, calls } = JSON.parse(fs.readFileSync(0, "utf8"));
const { default: OpenAI } = await import(createRequire(`${folder}/`).resolve("openai"));
const client = new OpenAI({ baseURL, apiKey, maxRetries: 0 });
const AT_ONCE = 8;

async function answer({ method, path, name, model, fields }) {
  if (method === "models.list") return (await client.models.list()).data;
  if (method === "models.retrieve") return client.models.retrieve(model);
  const file = path ? fs.createReadStream(path) : await OpenAI.toFile(Buffer.from("Dear diary, ".repeat(500)), name);
  const given = await client.audio[method].create({ file, model, ...fields });
  if (!fields.stream) return given;
  const events = [];
  for await (const event of given) events.push(event);
  return events;
}

async function outcome(call) {
  try {
    return { answer: await answer(call) };
  } catch (error) {
    const { status, param, code, type, message } = error;
    return { error: { kind: error.constructor.name, status, param, code, type, message } };
  }
}

const outcomes = [];
let next = 0;
async function work() {
  for (let index = next++; index < calls.length; index = next++) outcomes[index] = await outcome(calls[index]);
}
await Promise.all(Array.from({ length: AT_ONCE }, work));
console.log(JSON.stringify(outcomes));
