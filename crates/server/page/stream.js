// Reads the server's streams: from bytes to events, from a request to JSON chunks, from failures to errors with a
// message for the user.
//
// `EventSource` can only GET, so the page reads the body of a POST itself. The bytes may be split anywhere, also inside
// a character. The parser follows the WHATWG rules for event streams (comments, CR and LF, several data lines), without
// event names, ids and reconnecting, which OpenAI's protocol does not use.

/** Parses the bytes of an event stream into the data of its events. */
export class EventParser {
  #decoder = new TextDecoder();
  #line = "";
  #data = [];
  #afterReturn = false;

  /** The data of the events that these bytes complete, in order. */
  push(bytes) {
    const events = [];
    for (const character of this.#split(this.#decoder.decode(bytes, { stream: true }))) {
      if (character.end) this.#endLine(events);
      else this.#line += character.text;
    }
    return events;
  }

  /** Parts of lines and their ends. A CR ends a line; an LF right after it belongs to the same line end. */
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
 * An error for the user. `kind` is one of "gone" (no answer), "broken" (the answer ended in the middle), "key"
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
 * The server's message in a body `{"error": {"message": ..., "param": ...}}`, or else `fallback`, and the error's
 * other fields.
 */
function errorIn(body, fallback) {
  try {
    const { error } = typeof body === "string" ? JSON.parse(body) : body;
    const message = (typeof error === "string" ? error : error.message) || fallback;
    const size = [error.n_prompt_tokens, error.n_ctx];
    const text = (value) => (typeof value === "string" ? value : null);
    const sizeOrNone = size.every(Number.isInteger) ? size : null;
    return { message, param: text(error.param), code: text(error.code), size: sizeOrNone };
  } catch {
    return { message: fallback };
  }
}

async function refusal(response) {
  const { message, ...more } = errorIn(await response.text().catch(() => ""), `status ${response.status}`);
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

/** The models of this server, each with its `meta` if it is loaded. */
export async function models(key) {
  const response = await ask("v1/models", { headers: headersWith(key) });
  return (await response.json()).data;
}

/** Makes the server load a model, by a request for the tokens of an empty text. */
export async function openModel(model, key) {
  const headers = { "Content-Type": "application/json", ...headersWith(key) };
  await ask("tokenize", { method: "POST", headers, body: JSON.stringify({ model, content: "" }) });
}

/**
 * Posts a request with `stream: true` and yields its chunks as parsed JSON, up to `[DONE]`.
 *
 * Throws a `ServerError`, or an `AbortError` if `signal` stopped it.
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
    // Cancelling stops the server; after a complete answer the last read lets the connection be reused.
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
  if (chunk.error) throw new ServerError("failed", errorIn(chunk, "The server reports an error.").message);
  return chunk;
}
