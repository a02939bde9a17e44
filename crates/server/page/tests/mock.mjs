// A mock of `foretoken serve` without a model: it serves the page's files under the same content security policy, and
// streams texts generated from the seed, with drafted and rejected tokens.
//
// `scenario` determines the next requests: speed, number of tokens, and failures. `requests` has the received requests.
// The same prompt and seed give the same text with and without drafts, unless the scenario has `lie`.

import { createServer } from "node:http";
import { readFile } from "node:fs/promises";
import { extname, join } from "node:path";

const FOLDER = new URL("..", import.meta.url).pathname;
const POLICY =
  "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; " +
  "base-uri 'none'; form-action 'none'; frame-ancestors 'none'";
const KINDS = { ".html": "text/html", ".css": "text/css", ".js": "text/javascript" };
export const DRAFTERS = ["draft", "suffix", "lookup", "trie", "ngram", "jacobi", "prediction"];
const WORDS = (
  " the a little dog and cat went to see river, where it was warm. She said that he had never been so far from home" +
  " before; but now they were glad of it and sat down under old tree:\n\n Then came wind, rain, snow, night. One day"
).split(/(?= )/);

/** Tokens of a text if the request has no length. */
const OWN_LENGTH = 256;

/** The default scenario. */
export const PLAIN_SCENARIO = {
  passMilliseconds: 0,
  tokensPerSecond: 0, // if not 0, passes are sent at this speed
  tokens: null, // texts to send one by one instead of generated ones
  lie: false,
  key: null,
  busy: null, // seconds for Retry-After
  refuse: null,
  breakAfter: null, // tokens after which the connection is cut
  failAfter: null, // tokens after which an error is sent in the stream
  more: {}, // further fields of a refusal
  cutBy: null,
  chat: true,
  id: "demo",
  finish: null, // null: "length" if the request has a length, else "stop"
  others: [], // names of further models, which are not loaded at first
  fragment: 0, // bytes written at once; 0 for whole events
};

/** A generator of numbers in [0, 1) from a seed (mulberry32). */
export function chance(seed) {
  let state = seed >>> 0;
  return () => {
    state = (state + 0x6d2b79f5) >>> 0;
    let mixed = Math.imul(state ^ (state >>> 15), state | 1);
    mixed ^= mixed + Math.imul(mixed ^ (mixed >>> 7), mixed | 61);
    return ((mixed ^ (mixed >>> 14)) >>> 0) / 2 ** 32;
  };
}

/** The texts of the tokens that answer this request. */
function textOf(body, scenario) {
  if (scenario.tokens) return scenario.tokens;
  const next = chance(body.seed ?? 0);
  const made = Array.from({ length: body.max_tokens ?? OWN_LENGTH }, () => WORDS[Math.floor(next() * WORDS.length)]);
  if (scenario.lie && body.speculative?.type !== "none") made.splice(Math.floor(made.length / 2), 1, " wrong");
  return made;
}

function draftersOf(body) {
  const type = body.speculative?.type ?? "auto";
  if (type === "none" || body.speculative?.n_max === 0) return [];
  return type === "auto" ? ["draft", "suffix"] : type.split("+");
}

/** The passes of a text: `{tokens, drafted}` each, with the protocol's names. */
export function* passes(texts, drafters, seed) {
  const next = chance(seed + 1);
  const number = (text) => [...text].reduce((sum, character) => (sum * 31 + character.codePointAt(0)) % 4096, 7);
  for (let at = 0, pass = 0; at < texts.length; pass++) {
    const tokens = [];
    const drafted = [];
    const drafter = drafters[Math.floor(next() * drafters.length)];
    const length = drafter && pass > 0 ? Math.floor(next() * 5) : 0;
    let accepting = true;
    for (let depth = 1; depth <= length && at + tokens.length < texts.length; depth++) {
      const text = texts[at + tokens.length];
      const [p, q] = [0.4 + 0.6 * next(), 0.4 + 0.6 * next()];
      accepting &&= next() < 0.75;
      const wrong = WORDS[Math.floor(next() * WORDS.length)];
      const offer = accepting ? text : wrong;
      drafted.push({ drafter, depth, token: number(offer), text: offer, accepted: accepting });
      if (!accepting) continue;
      tokens.push({ token: number(text), text, origin: drafter, depth, pass, p, q: drafter === "draft" ? q : null });
    }
    if (at + tokens.length < texts.length) {
      const text = texts[at + tokens.length];
      tokens.push({ token: number(text), text, origin: "target", depth: 0, pass, p: 0.2 + 0.8 * next(), q: null });
    }
    at += tokens.length;
    yield { tokens, drafted };
  }
}

const sleepUntil = (time) => new Promise((done) => setTimeout(done, Math.max(time - performance.now(), 0)));

export class Mock {
  scenario = { ...PLAIN_SCENARIO };
  requests = [];
  /** Names of models that were loaded. */
  opened = [];
  /** Requests whose client disconnected before the end. */
  abandoned = 0;

  async start(port = 0) {
    this.server = createServer((request, response) => {
      this.#answer(request, response).catch(() => response.destroy());
    });
    await new Promise((done) => this.server.listen(port, "127.0.0.1", done));
    this.address = `http://127.0.0.1:${this.server.address().port}`;
    return this;
  }

  async stop() {
    this.server.closeAllConnections();
    await new Promise((done) => this.server.close(done));
  }

  /** The texts of the tokens that answer this request in the current scenario. */
  textOf(body) {
    return textOf(body, this.scenario);
  }

  async #answer(request, response) {
    const { pathname } = new URL(request.url, this.address);
    if (pathname === "/" || pathname.startsWith("/page/")) return file(pathname, response);
    const { key, busy, refuse, refuseParam, id, others } = this.scenario;
    if (key && request.headers.authorization !== `Bearer ${key}`) return refusal(response, 401, "no valid key");
    if (pathname === "/v1/models") {
      return json(response, 200, { object: "list", data: [id, ...others].map((name) => this.#model(name)) });
    }
    let text = "";
    for await (const part of request) text += part;
    const body = JSON.parse(text);
    if (pathname === "/tokenize") {
      if (refuse) return refusal(response, 503, refuse);
      this.opened.push(body.model);
      return json(response, 200, { tokens: [] });
    }
    this.requests.push({ pathname, body, headers: request.headers });
    if (busy !== null) return refusal(response, 429, "the queue is full", { "Retry-After": String(busy) });
    if (refuse) return refusal(response, 400, refuse, {}, { param: refuseParam ?? null, ...this.scenario.more });
    await this.#stream(pathname, body, response);
  }

  #model(id) {
    const isOpen = id === this.scenario.id || this.opened.includes(id);
    const common = { id, object: "model", created: 0, owned_by: "foretoken" };
    if (!isOpen) return { ...common, status: { value: "unloaded" } };
    return {
      ...common, status: { value: "loaded" },
      meta: {
        n_ctx: 4096, n_vocab: 4096, parallel: 4, chat: this.scenario.chat, drafters: DRAFTERS, spec_type: "auto",
        auto: ["draft", "suffix"], verify: "exact", defaults: { temperature: 0.8, top_k: 40, top_p: 0.95, min_p: 0.05 },
      },
    };
  }

  async #stream(pathname, body, response) {
    const scenario = { ...this.scenario };
    const chat = pathname.includes("chat");
    response.on("close", () => (this.abandoned += response.writableEnded ? 0 : 1));
    response.writeHead(200, { "Content-Type": "text/event-stream", "Cache-Control": "no-store" });
    const send = (data) => writeBytes(response, `data: ${JSON.stringify(data)}\n\n`, scenario.fragment);
    const object = chat ? "chat.completion.chunk" : "text_completion";
    const chunk = (choice, more = {}) => ({
      id: "x-1", object, created: 1, model: "demo", ...more,
      choices: choice ? [{ index: 0, finish_reason: null, ...choice }] : [],
    });
    const content = (text) => (chat ? { delta: { content: text } } : { text });
    response.write(": ping\n\n");
    if (chat) send(chunk({ delta: { role: "assistant", content: "" } }));
    let sent = 0;
    let first = null; // time and number of tokens
    const started = performance.now();
    const drafters = draftersOf(body);
    for (const { tokens, drafted } of passes(textOf(body, scenario), drafters, body.seed ?? 0)) {
      if (response.destroyed) return;
      if (scenario.breakAfter !== null && sent >= scenario.breakAfter) {
        await sleepUntil(performance.now() + 30); // until the written bytes are sent
        return response.destroy();
      }
      if (scenario.failAfter !== null && sent >= scenario.failAfter) {
        send({ error: { message: "the model broke", type: "server_error", param: null, code: null } });
        return response.end();
      }
      const shown = tokens.map((token) => ({ ...token, text: token.text ?? "" }));
      send(chunk({ ...content(shown.map(({ text }) => text).join("")), provenance: shown, drafted }));
      sent += tokens.length;
      first ??= [performance.now(), sent];
      const { tokensPerSecond, passMilliseconds } = scenario;
      if (tokensPerSecond) await sleepUntil(started + (sent * 1000) / tokensPerSecond);
      else if (passMilliseconds) await sleepUntil(performance.now() + passMilliseconds);
    }
    const end = scenario.cutBy ? { cut_by: scenario.cutBy } : {};
    const predicted_ms = performance.now() - (first?.[0] ?? started);
    const predicted_per_second = ((sent - (first?.[1] ?? 0)) * 1000) / Math.max(predicted_ms, 0.001);
    const timings = { predicted_n: sent, predicted_ms, predicted_per_second };
    const finish_reason = scenario.finish ?? (body.max_tokens === undefined ? "stop" : "length");
    send(chunk({ ...content(""), finish_reason, ...end }, { timings }));
    send(chunk(null, { usage: { prompt_tokens: 4, completion_tokens: sent, total_tokens: sent + 4 } }));
    response.end("data: [DONE]\n\n");
  }
}

function writeBytes(response, text, fragment) {
  const bytes = Buffer.from(text);
  if (!fragment) return response.write(bytes);
  for (let at = 0; at < bytes.length; at += fragment) response.write(bytes.subarray(at, at + fragment));
}

async function file(pathname, response) {
  const name = pathname === "/" ? "index.html" : pathname.slice("/page/".length);
  if (!/^[a-z]+\.(html|css|js)$/.test(name)) return refusal(response, 404, "no such page");
  const headers = { "Content-Type": `${KINDS[extname(name)]}; charset=utf-8`, "Content-Security-Policy": POLICY };
  const text = await readFile(join(FOLDER, name)).catch(() => null);
  if (text === null) return refusal(response, 404, "no such page");
  response.writeHead(200, headers).end(text);
}

function json(response, status, body, headers = {}) {
  response.writeHead(status, { "Content-Type": "application/json", ...headers }).end(JSON.stringify(body));
}

function refusal(response, status, message, headers = {}, more = {}) {
  json(response, status, { error: { message, type: "invalid_request_error", param: null, code: null, ...more } }, headers);
}
