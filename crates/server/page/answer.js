// The text of an answer in one of two views: tokens in the colours of their origin, or rendered Markdown.
//
// The passes are stored; each view is built from them, and switching builds the other one.

import { MarkdownText } from "./render.js";
import { packed } from "./store.js";
import { TokenText } from "./tokens.js";

export class Answer {
  text = "";
  #passes = [];
  #view;
  #palette;
  #onDrawn;
  #rejected = false;

  constructor(palette, isMarkdown, onDrawn) {
    this.#palette = palette;
    this.#onDrawn = onDrawn;
    this.#view = this.#newView(isMarkdown);
  }

  #newView(isMarkdown) {
    if (isMarkdown) return new MarkdownText("Answer", this.#onDrawn);
    const view = new TokenText(this.#palette, "Answer. Arrow keys go through its tokens.", this.#onDrawn);
    view.showRejected(this.#rejected);
    return view;
  }

  get element() {
    return this.#view.element;
  }

  add(pass) {
    this.text += pass.text;
    this.#passes.push(pass);
    this.#view.add(pass);
  }

  clear() {
    this.text = "";
    this.#passes = [];
    this.#view.clear();
  }

  showRejected(shown) {
    this.#rejected = shown;
    this.#view.showRejected(shown);
  }

  showMarkdown(isMarkdown) {
    const before = this.#view;
    this.#view = this.#newView(isMarkdown);
    for (const pass of this.#passes) this.#view.add(pass);
    before.element.replaceWith(this.#view.element);
  }

  /** The passes in the format in which they are stored. */
  get stored() {
    return packed(this.#passes);
  }
}
