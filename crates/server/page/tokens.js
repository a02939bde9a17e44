// A text whose tokens have the colours of their origin.
//
// The text shown is exactly `content`; the tokens only determine where it is split and its colours. So the text is
// right even if the server buffers text (a possible stop string) or a token has no text of its own (the first byte of a
// character). Spans are made once per frame; long texts are split into blocks at line ends, which the browser skips
// while they are out of view. Markdown is not rendered here (render.js).

import { element, onFrame } from "./frame.js";
import { visible } from "./words.js";

const TOKENS_A_FRAME = 300;
const TOKENS_A_BLOCK = 48;

/**
 * Cuts `text` into pieces by its tokens: `{pieces: [{text, tokens}], waiting}`.
 *
 * A token whose text is empty or not yet in `text` joins the next piece; those at the end are returned in `waiting`,
 * for the next call. A token that still waits at the end of a text (the end token) is only counted.
 */
export function cut(text, tokens, waiting = []) {
  const pieces = [];
  let joined = [];
  let at = 0;
  for (const token of [...waiting, ...tokens]) {
    joined.push(token);
    if (token.text === "" || !text.startsWith(token.text, at)) continue;
    pieces.push({ text: token.text, tokens: joined });
    at += token.text.length;
    joined = [];
  }
  if (at < text.length) {
    pieces.push({ text: text.slice(at), tokens: joined });
    joined = [];
  }
  return { pieces, waiting: joined };
}

/**
 * The rejected tokens of a pass that are shown before its token at this position, which was generated in their place.
 * The i-th token of a pass, from 1, replaces the drafts of depth i, the last token also those of greater depths.
 */
export function rejectedBefore(pass, position) {
  const last = position >= pass.tokens.length;
  const here = (token) => !token.accepted && (token.depth === position || (last && token.depth > position));
  return pass.drafted.filter(here).sort((one, other) => one.depth - other.depth);
}

/** Colours are numbers of classes in style.css: 0 is the target, drafters from 1 in the order of their appearance. */
export class Palette {
  #names = ["target"];

  of(origin) {
    let index = this.#names.indexOf(origin);
    if (index < 0) index = this.#names.push(origin) - 1;
    return index === 0 ? 0 : ((index - 1) % 8) + 1;
  }
}

/** A growing text. `element` has its spans; `text` is exactly the content that the server sent. */
export class TokenText {
  text = "";
  tokens = 0;
  #palette;
  #passes = [];
  #drawn = 0;
  #waiting = [];
  #block = null;
  #inBlock = 0;
  #rejected = false;
  #draw = () => this.#drawSome();
  #onDrawn;

  constructor(palette, label, onDrawn = () => {}) {
    this.#palette = palette;
    this.#onDrawn = onDrawn;
    this.element = element("div", "text");
    this.element.dir = "auto";
    this.element.tabIndex = 0;
    this.element.setAttribute("role", "group");
    this.element.setAttribute("aria-label", label);
  }

  add(pass) {
    this.text += pass.text;
    this.tokens += pass.tokens.length;
    this.#passes.push(pass);
    onFrame(this.#draw);
  }

  clear() {
    this.text = "";
    this.tokens = 0;
    this.#passes = [];
    this.#restart();
  }

  /** Shows or hides rejected tokens. Hidden tokens are not in the document, so they cost nothing. */
  showRejected(shown) {
    if (shown === this.#rejected) return;
    this.#rejected = shown;
    this.#restart();
    onFrame(this.#draw);
  }

  #restart() {
    this.element.replaceChildren();
    this.#drawn = 0;
    this.#waiting = [];
    this.#block = null;
  }

  #drawSome() {
    for (let tokens = 0; this.#drawn < this.#passes.length && tokens < TOKENS_A_FRAME; this.#drawn++) {
      const pass = this.#passes[this.#drawn];
      this.#drawPass(pass);
      tokens += pass.tokens.length + pass.drafted.length;
    }
    if (this.#drawn < this.#passes.length) onFrame(this.#draw);
    this.#onDrawn();
  }

  #drawPass(pass) {
    const { pieces, waiting } = cut(pass.text, pass.tokens, this.#waiting);
    this.#waiting = waiting;
    const number = pass.tokens[0]?.pass ?? null;
    let shown = 0;
    const rejectedUpTo = (position) => {
      while (this.#rejected && shown < position) {
        shown += 1;
        for (const token of rejectedBefore(pass, shown)) this.#addRejected(token, number);
      }
    };
    for (const piece of pieces) {
      const position = pass.tokens.indexOf(piece.tokens.at(-1)) + 1;
      rejectedUpTo(position);
      this.#addPiece(piece, number);
    }
    rejectedUpTo(Math.max(pass.tokens.length, 1));
  }

  #addPiece({ text, tokens }, pass) {
    const author = tokens.at(-1)?.origin ?? "target";
    const span = this.#append("span", text, this.#palette.of(author));
    span.tokens = tokens;
    span.pass = tokens.at(-1)?.pass ?? pass;
    this.#inBlock += 1;
    if (this.#inBlock >= TOKENS_A_BLOCK && text.endsWith("\n")) this.#endBlock();
  }

  #endBlock() {
    this.#block.classList.add("done");
    this.#block = null;
  }

  #addRejected(token, pass) {
    const span = this.#append("del", visible(token.text), this.#palette.of(token.drafter));
    span.tokens = [{ ...token, origin: token.drafter, rejected: true }];
    span.pass = pass;
  }

  /** The underline of a drafted token excludes its leading space, so that words and tokens stay separated. */
  #append(kind, text, colour) {
    const word = text.trimStart();
    const span = element(kind, `t o${colour}`);
    if ((colour === 0 && kind !== "del") || word === "") span.append(text);
    else span.append(text.slice(0, text.length - word.length), element("u", "", word));
    span.colour = colour;
    if (!this.#block) {
      this.#block = element("div", "block");
      this.#inBlock = 0;
      this.element.append(this.#block);
    }
    this.#block.append(span);
    return span;
  }
}
