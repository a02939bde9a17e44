// Conversations that survive a reload: stored only in this browser, limited in number and size.
//
// Each conversation is one entry of the browser's storage, a short head for the list and then the rest. So several tabs
// do not overwrite each other's lists, and the list is read without reading everything. If there is no room, the oldest
// are deleted; if that does not suffice, a message is shown once. All that is read is checked, since other pages of the
// same origin may have written it. Of each token its text, pass and origin are stored; probabilities and rejected
// drafts are not.

const PREFIX = "foretoken-conversation-";
const SWITCH = "foretoken-";
export const MOST = 100; // conversations
export const SIZE_MAX = 2_000_000; // characters, less than half of the storage that browsers give to a page
export const TITLE_MAX = 60;

/** The first words of a text, as a title. */
export function titleOf(text) {
  const words = text.slice(0, 20 * TITLE_MAX).trim().split(/\s+/).join(" ");
  if (words.length <= TITLE_MAX) return words || "A text";
  const cut = words.slice(0, TITLE_MAX);
  return `${cut.slice(0, cut.lastIndexOf(" ") > TITLE_MAX / 2 ? cut.lastIndexOf(" ") : TITLE_MAX)}…`;
}

/** Passes in few characters: `[length, origin, length, origin, ...]` each, origins by their index in a list. */
export function packed(passes) {
  const origins = [];
  const number = (origin) => (origins.includes(origin) ? origins.indexOf(origin) : origins.push(origin) - 1);
  const pack = ({ text, tokens }) => {
    let left = text;
    const parts = [];
    for (const token of tokens) {
      if (token.text === "" || !left.startsWith(token.text)) continue;
      parts.push(token.text.length, number(token.origin));
      left = left.slice(token.text.length);
    }
    return left === "" ? parts : [...parts, left.length, number(tokens.at(-1)?.origin ?? "target")];
  };
  return { origins, passes: passes.map(pack) };
}

/** The passes of a text, from `packed`; a single pass without origins if the packed passes do not fit the text. */
export function unpacked(text, packedPasses) {
  const passes = [];
  let at = 0;
  const isNumber = (number, most) => Number.isInteger(number) && number >= 0 && number <= most;
  for (const parts of Array.isArray(packedPasses?.passes) ? packedPasses.passes : []) {
    const tokens = [];
    const from = at;
    for (let part = 0; part < (parts?.length ?? 0); part += 2) {
      const origin = packedPasses.origins?.[parts[part + 1]];
      if (!isNumber(parts[part], text.length - at) || typeof origin !== "string") return singlePass(text);
      const end = at + parts[part];
      tokens.push({ text: text.slice(at, end), origin, depth: 0, pass: passes.length, isKept: true });
      at = end;
    }
    passes.push({ text: text.slice(from, at), tokens, drafted: [] });
  }
  return at === text.length ? passes : singlePass(text);
}

const singlePass = (text) => [{ text, tokens: [], drafted: [] }];

/** The entries of a storage; none if the browser forbids access. */
export class Store {
  #storage;
  #onTrouble;
  #hasReported = false;

  /** `storage()` returns a `Storage` or throws; `onTrouble(words)` is called once if something cannot be stored. */
  constructor(storage, onTrouble) {
    this.#onTrouble = onTrouble;
    try {
      this.#storage = storage();
      this.#storage.getItem(PREFIX);
    } catch {
      this.#storage = null;
    }
  }

  /** `{id, title, changed}` of each conversation, the latest first. */
  list() {
    const found = [];
    for (const key of this.#keys()) {
      const value = this.#storage.getItem(key) ?? "";
      const head = parsed(value.slice(0, Math.max(value.indexOf("\n"), 0)));
      if (typeof head?.title !== "string" || !Number.isFinite(head.changed)) continue;
      found.push({ id: key.slice(PREFIX.length), title: head.title.slice(0, TITLE_MAX + 1), changed: head.changed });
    }
    return found.sort((one, other) => other.changed - one.changed);
  }

  /** A conversation, `{title, isNamed, changed, turns}`, null where there is none. */
  read(id) {
    const value = this.#storage?.getItem(PREFIX + id) ?? "";
    const end = value.indexOf("\n");
    const [head, body] = [parsed(value.slice(0, Math.max(end, 0))), parsed(value.slice(end + 1))];
    if (typeof head?.title !== "string" || !Array.isArray(body)) return null;
    const isTurn = (turn) => typeof turn?.user === "string" && typeof turn.text === "string";
    return { title: head.title, isNamed: head.isNamed === true, changed: head.changed, turns: body.filter(isTurn) };
  }

  /** Stores a conversation, and deletes the oldest others if there is no room. Returns whether it is stored. */
  write(id, { title, isNamed, changed, turns }) {
    const head = JSON.stringify({ title, isNamed, changed });
    const plain = () => turns.map(({ told, ...turn }) => turn);
    for (const body of [() => turns, plain]) {
      const value = `${head}\n${JSON.stringify(body())}`;
      if (value.length <= SIZE_MAX && this.#put(PREFIX + id, value)) return true;
    }
    const why = this.#storage ? "it is too long, or the browser has no room" : "the browser forbids it";
    this.trouble(`This conversation is not kept when the page is left: ${why}.`);
    return false;
  }

  /** Reports that something cannot be stored, the first time. */
  trouble(words) {
    if (!this.#hasReported) this.#onTrouble(words);
    this.#hasReported = true;
  }

  remove(id) {
    this.#storage?.removeItem(PREFIX + id);
  }

  removeAll() {
    for (const key of this.#keys()) this.#storage.removeItem(key);
  }

  /** The stored value of a switch; null if there is none. */
  recall(name) {
    return this.#storage?.getItem(SWITCH + name) ?? null;
  }

  remember(name, value) {
    try {
      this.#storage?.setItem(SWITCH + name, value);
    } catch {
      // The next visit has the old value.
    }
  }

  #keys() {
    const all = Array.from({ length: this.#storage?.length ?? 0 }, (_, index) => this.#storage.key(index));
    return all.filter((key) => key?.startsWith(PREFIX));
  }

  #put(key, value) {
    if (!this.#storage) return false;
    const others = this.list().map(({ id }) => PREFIX + id).filter((other) => other !== key);
    const sizeOf = (other) => this.#storage.getItem(other)?.length ?? 0;
    let size = others.reduce((sum, other) => sum + sizeOf(other), value.length);
    let freed = 0; // since the browser first had no room: no more than needed is deleted
    for (;;) {
      const isTooMuch = others.length >= MOST || size > SIZE_MAX;
      try {
        if (!isTooMuch) {
          this.#storage.setItem(key, value);
          return true;
        }
      } catch {
        if (others.length === 0 || freed > value.length) return false;
        freed += sizeOf(others.at(-1));
      }
      const oldest = others.pop();
      size -= sizeOf(oldest);
      this.#storage.removeItem(oldest);
    }
  }
}

/** Values of this tab, until it is closed; if the browser forbids that, until the page is left. */
export class Tab {
  #kept = new Map();

  get(name) {
    if (this.#kept.has(name)) return this.#kept.get(name);
    try {
      return sessionStorage.getItem(name);
    } catch {
      return null;
    }
  }

  set(name, value) {
    this.#kept.set(name, value);
    try {
      sessionStorage.setItem(name, value);
    } catch {
      // The value is in the map.
    }
  }
}

function parsed(text) {
  try {
    return JSON.parse(text);
  } catch {
    return null;
  }
}
