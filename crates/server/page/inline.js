// Markdown within a paragraph: emphasis, code, links and addresses, parsed into a tree that render.js makes nodes of.
//
// One pass from left to right with a stack of open marks. There is no backtracking, lookahead reads each character a
// bounded number of times, and the stack has a maximum depth, so hostile texts take no longer than others of their
// length. Unsupported syntax is text: raw HTML, images (a link with their description), links to other schemes than
// http, https and mailto. References, footnotes, entities and formulas are not supported.

const DEPTH_MAX = 12;
const PUNCTUATION = /[!-/:-@[-`{-~]/;
const SPACE = /\s/;
const WORD = /[\p{L}\p{N}]/u;
const BREAK = /<br *\/?>/iy;
const ADDRESS = /https?:\/\/[^\s<>"`\\[\]]+/iy;
const SPECIAL = /[\\`*_~[\]!<\nhH]/g;

/** An address that a link may have, as the browser parses it; null for all others, such as scripts. */
export function safeAddress(text) {
  let url;
  try {
    url = new URL(text);
  } catch {
    return null;
  }
  return ["http:", "https:", "mailto:"].includes(url.protocol) ? url : null;
}

/**
 * The tree of a text: `{kind: "text", text}`, `{kind: "code", text}`, `{kind: "break"}`, and with `children`
 * `"strong"`, `"emphasis"`, `"struck"` and `{kind: "link", url}`.
 */
export function inline(text) {
  return new Reader(text).read();
}

class Reader {
  #text;
  #at = 0;
  /** Open marks, outermost first; the first is the paragraph itself. */
  #open = [{ mark: "", children: [] }];
  /** The positions of runs of backticks by length, in order. */
  #ticks = new Map();

  constructor(text) {
    this.#text = text;
    for (const { 0: run, index } of text.matchAll(/`+/g)) {
      if (!this.#ticks.has(run.length)) this.#ticks.set(run.length, { next: 0, all: [] });
      this.#ticks.get(run.length).all.push(index);
    }
  }

  read() {
    const text = this.#text;
    while (this.#at < text.length) {
      SPECIAL.lastIndex = this.#at;
      const special = SPECIAL.exec(text)?.index ?? text.length;
      this.#say(text.slice(this.#at, special));
      this.#at = special;
      if (special < text.length) this.#special(text[special]);
    }
    while (this.#open.length > 1) this.#giveUp();
    return this.#open[0].children;
  }

  #special(character) {
    const next = this.#text[this.#at + 1] ?? "";
    if (character === "\\" && next === "\n") this.#skip(1);
    else if (character === "\\" && PUNCTUATION.test(next)) this.#say(next, 2);
    else if (character === "`") this.#code();
    else if ("*_~".includes(character)) this.#marks(character);
    else if (character === "[" || (character === "!" && next === "[")) this.#bracket(character === "!" ? "![" : "[");
    else if (character === "]") this.#link();
    else if (character === "\n") this.#add({ kind: "break" }, 1);
    else if (character === "<") this.#angle();
    else if (character.toLowerCase() === "h" && !WORD.test(this.#text[this.#at - 1] ?? "")) this.#address(this.#at);
    else this.#say(character, 1);
  }

  #skip(length) {
    this.#at += length;
  }

  #add(node, length) {
    this.#open.at(-1).children.push(node);
    this.#skip(length);
  }

  /** Adds plain text; adjacent texts are merged. */
  #say(text, length = 0) {
    const { children } = this.#open.at(-1);
    if (children.at(-1)?.kind === "text") children.at(-1).text += text;
    else if (text !== "") children.push({ kind: "text", text });
    this.#skip(length);
  }

  #code() {
    const run = /`+/y;
    run.lastIndex = this.#at;
    const { length } = run.exec(this.#text)[0];
    const ticks = this.#ticks.get(length);
    while (ticks?.all[ticks.next] <= this.#at) ticks.next += 1;
    const end = ticks?.all[ticks.next];
    if (end === undefined) return this.#say("`".repeat(length), length);
    let code = this.#text.slice(this.#at + length, end).replaceAll("\n", " ");
    if (code.startsWith(" ") && code.endsWith(" ") && code.trim() !== "") code = code.slice(1, -1);
    this.#at = end + length;
    this.#add({ kind: "code", text: code }, 0);
  }

  /** A run of `*`, `_` or `~`: it closes open marks, and may then open new ones. */
  #marks(character) {
    const text = this.#text;
    let end = this.#at;
    while (text[end] === character) end += 1;
    const [before, after] = [text[this.#at - 1] ?? " ", text[end] ?? " "];
    const whole = text.slice(this.#at, end);
    this.#at = end;
    let left = whole.length;
    const inWord = character === "_" && WORD.test(before) && WORD.test(after);
    if (left > 3 || (character === "~" && left !== 2) || inWord) return this.#say(whole);
    while (left > 0 && !SPACE.test(before)) {
      const open = this.#lastOpen(({ mark }) => mark[0] === character && mark.length <= left);
      if (open === 0) break;
      left -= this.#open[open].mark.length;
      this.#close(open);
    }
    if (left > 0 && !SPACE.test(after) && this.#open.length + 1 < DEPTH_MAX) {
      for (const mark of left === 3 ? [character.repeat(2), character] : [character.repeat(left)]) {
        this.#open.push({ mark, children: [] });
      }
    } else this.#say(character.repeat(left));
  }

  /** The index of the innermost matching mark, 0 if there is none. Emphasis does not cross brackets. */
  #lastOpen(isWanted) {
    for (let place = this.#open.length - 1; place > 0; place--) {
      if (isWanted(this.#open[place])) return place;
      if (this.#open[place].mark.endsWith("[")) return 0;
    }
    return 0;
  }

  /** Closes the mark at this index; those within it that are still open become text. */
  #close(place) {
    while (this.#open.length > place + 1) this.#giveUp();
    const { mark, children } = this.#open.pop();
    const kind = mark[0] === "~" ? "struck" : mark.length === 2 ? "strong" : "emphasis";
    if (children.length > 0) this.#add({ kind, children }, 0);
    else this.#say(mark + mark);
  }

  /** Turns the innermost mark, which is not closed, into text. */
  #giveUp() {
    const { mark, children } = this.#open.pop();
    this.#say(mark);
    const [first, ...others] = children;
    if (first?.kind === "text") this.#say(first.text);
    else if (first) this.#add(first, 0);
    for (const child of others) this.#open.at(-1).children.push(child);
  }

  #bracket(mark) {
    if (this.#open.length >= DEPTH_MAX) return this.#say(mark, mark.length);
    this.#skip(mark.length);
    this.#open.push({ mark, children: [] });
  }

  #link() {
    const place = this.#open.findLastIndex(({ mark }) => mark.endsWith("["));
    const target = place > 0 && this.#text[this.#at + 1] === "(" ? this.#target(this.#at + 2) : null;
    const url = target && safeAddress(target.address);
    if (!url) {
      // Brackets without an allowed address stay text.
      if (place > 0) while (this.#open.length > place) this.#giveUp();
      return this.#say("]", 1);
    }
    while (this.#open.length > place + 1) this.#giveUp();
    const { children } = this.#open.pop();
    this.#at = target.end;
    this.#add({ kind: "link", url, children }, 0);
  }

  /** Parses `ADDRESS "title")` from here: the address and its end; null if it does not match. */
  #target(from) {
    const text = this.#text;
    let [at, depth] = [from, 0];
    const inAngles = text[at] === "<";
    for (at += inAngles; at < text.length && !SPACE.test(text[at]) && text[at] !== "<" && text[at] !== ">"; at++) {
      if (text[at] === "(" && ++depth > 3) return null;
      if (text[at] === ")" && --depth < 0) break;
    }
    const address = text.slice(from + inAngles, at);
    if (inAngles && text[at++] !== ">") return null;
    while (text[at] === " ") at += 1;
    const quote = text[at];
    if (quote === '"' || quote === "'") {
      const last = text.indexOf(quote, at + 1);
      if (last < 0) return null;
      at = last + 1;
    }
    return text[at] === ")" ? { address, end: at + 1 } : null;
  }

  #angle() {
    BREAK.lastIndex = this.#at;
    const [found] = BREAK.exec(this.#text) ?? [];
    if (found) return this.#add({ kind: "break" }, found.length);
    const end = this.#address(this.#at + 1, "<");
    if (end && this.#text[end] === ">") this.#at = end + 1;
  }

  /** Parses a bare address from here; the text before it, `mark`, is dropped. */
  #address(from, mark = "") {
    ADDRESS.lastIndex = from;
    const [found] = ADDRESS.exec(this.#text) ?? [];
    if (!found) return this.#say(mark || this.#text[from], 1);
    let { length } = found;
    const hasBrackets = found.includes("(");
    while (length > 0 && (".,;:!?'*_~]|".includes(found[length - 1]) || (found[length - 1] === ")" && !hasBrackets))) {
      length -= 1;
    }
    const address = found.slice(0, length);
    const url = safeAddress(address);
    const isClosed = mark === "" || this.#text[from + length] === ">";
    const isLinked = this.#open.some((open) => open.mark.endsWith("["));
    if (!url) return this.#say(mark + found, mark.length + found.length);
    if (!isClosed) return this.#say(mark, 1);
    this.#at = from + length;
    if (isLinked) this.#say(address);
    else this.#add({ kind: "link", url, children: [{ kind: "text", text: address }] }, 0);
    return this.#at;
  }
}
