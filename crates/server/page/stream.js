// Reading what the server sends: from bytes to events, from a request to a run of JSON chunks, from failures to
// errors that say what to tell a person.
//
// `EventSource` can only GET, so the page reads the body of a POST itself. The parser takes bytes cut anywhere, also
// inside a character, and follows the WHATWG rules for event streams (comments, CR and LF, several data lines). It
// leaves out what OpenAI's protocol never uses: event names, ids and reconnecting.

/** Bytes of an event stream in, the data of its complete events out. */
export class EventParser {
  #decoder = new TextDecoder();
  #line = "";
  #data = [];
  #afterReturn = false;

  /** The events that these bytes complete, in order, as strings. */
  push(bytes) {
    const events = [];
    for (const character of this.#split(this.#decoder.decode(bytes, { stream: true }))) {
      if (character.end) this.#endLine(events);
      else this.#line += character.text;
    }
    return events;
  }

  /** Pieces of lines and their ends. A CR ends a line at once; an LF right after it belongs to it. */
  *#split(text) {
    let from = 0;
    for (let at = 0; at < text.length; at++) {
      const code = text.charCodeAt(at);
      if (code === 10 && this.#afterReturn) from = at + 1;
      else if (code === 10 || code === 13) {
        yield { text: text.slice(from, at) };
        yield { end: true };
        from = at + 1;
      }
      this.#afterReturn = code === 13;
    }
    if (from < text.length) yield { text: text.slice(from) };
  }

  #endLine(events) {
    const line = this.#line;
    this.#line = "";
    if (line === "") {
      if (this.#data.length > 0) events.push(this.#data.join("\n"));
      this.#data = [];
    } else if (line === "data") this.#data.push("");
    else if (line.startsWith("data:")) this.#data.push(line.slice(line[5] === " " ? 6 : 5));
  }
}

/**
 * What went wrong, for a person. `kind` is one of "gone" (no answer), "broken" (the answer ended in the middle), "key"
 * (401), "busy" (429, with `seconds` to wait), "refused" (any other status, with the field, `param`, the `code` and, of
 * a prompt that is too long, its `size` and the context's, where the server names them) and "failed" (an error in the
 * stream).
 */
export class ServerError extends Error {
  constructor(kind, message, { seconds = null, param = null, code = null, size = null } = {}) {
    super(message);
    Object.assign(this, { kind, seconds, param, code, size });
  }
}

const headersWith = (key) => (key ? { Authorization: `Bearer ${key}` } : {});

/**
 * The server's own words in a body that should hold `{"error": {"message": ..., "param": ...}}`, or what was given
 * instead, and what it says beside them.
 */
function saidIn(body, otherwise) {
  try {
    const { error } = typeof body === "string" ? JSON.parse(body) : body;
    const message = (typeof error === "string" ? error : error.message) || otherwise;
    const size = [error.n_prompt_tokens, error.n_ctx];
    const text = (value) => (typeof value === "string" ? value : null);
    const sizeOrNone = size.every(Number.isInteger) ? size : null;
    return { message, param: text(error.param), code: text(error.code), size: sizeOrNone };
  } catch {
    return { message: otherwise };
  }
}

async function refusal(response) {
  const { message, ...more } = saidIn(await response.text().catch(() => ""), `status ${response.status}`);
  if (response.status === 401) return new ServerError("key", message);
  if (response.status === 429) {
    const seconds = Number.parseInt(response.headers.get("Retry-After"), 10);
    return new ServerError("busy", message, { seconds: Number.isFinite(seconds) ? Math.max(seconds, 0) : 1 });
  }
  return new ServerError("refused", message, more);
}

async function ask(address, options) {
  let response;
  try {
    response = await fetch(address, { ...options, cache: "no-store" });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new ServerError("gone", "The server does not answer.");
  }
  if (!response.ok) throw await refusal(response);
  return response;
}

/** The models of this server, each with its `meta` if it is open. */
export async function models(key) {
  const response = await ask("v1/models", { headers: headersWith(key) });
  return (await response.json()).data;
}

/** Lets the server open a model, by asking it for the tokens of nothing. */
export async function openModel(model, key) {
  const headers = { "Content-Type": "application/json", ...headersWith(key) };
  await ask("tokenize", { method: "POST", headers, body: JSON.stringify({ model, content: "" }) });
}

/**
 * Posts a request with `stream: true` and yields its chunks as parsed JSON, up to `[DONE]`.
 *
 * Throws a `ServerError`, or an `AbortError` where `signal` stopped it.
 */
export async function* chunks(address, body, { key, signal }) {
  const headers = { "Content-Type": "application/json", ...headersWith(key) };
  const response = await ask(address, { method: "POST", headers, body: JSON.stringify(body), signal });
  const reader = response.body.getReader();
  const parser = new EventParser();
  let complete = false;
  try {
    for (;;) {
      const { done, value } = await reader.read();
      if (done) throw new ServerError("broken", "The server stopped in the middle of the text.");
      for (const data of parser.push(value)) {
        complete = data === "[DONE]";
        if (complete) return;
        yield chunkOf(data);
      }
    }
  } catch (error) {
    if (error instanceof ServerError || error.name === "AbortError") throw error;
    throw new ServerError("broken", "The server stopped in the middle of the text.");
  } finally {
    // Where nobody wants the rest the server is to stop writing; where there is none the connection can be used again.
    (complete ? reader.read() : reader.cancel()).catch(() => {});
  }
}

function chunkOf(data) {
  let chunk;
  try {
    chunk = JSON.parse(data);
  } catch {
    throw new ServerError("failed", "The server sent something that is not JSON.");
  }
  if (chunk.error) throw new ServerError("failed", saidIn(chunk, "The server reports an error.").message);
  return chunk;
}
