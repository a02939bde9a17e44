// The list of conversations: showing, creating, renaming and deleting them.
//
// Storage is in store.js, turns are in chat.js. An empty conversation is not stored. The open conversation is
// remembered per tab, so a reload shows it again and another tab begins with an empty one. If two tabs write to the
// same conversation, the last write wins.

import { element } from "./frame.js";
import { button } from "./problem.js";
import { TITLE_MAX, titleOf } from "./store.js";
import { randomWord } from "./words.js";

const byId = (id) => document.getElementById(id);
const OPEN = "foretoken-open";

export class Conversations {
  #page;
  #store;
  #tab;
  /** The open conversation; the title is empty at first. */
  #id = randomWord();
  #title = "";
  #isNamed = false;
  #isLeft = false;

  constructor(page, store, tab) {
    this.#page = page;
    this.#store = store;
    this.#tab = tab;
    byId("delete-all").addEventListener("click", () => this.#deleteAll());
    addEventListener("storage", () => this.draw()); // another tab has changed something
  }

  /** Shows the conversation that was open in this tab before, if there is one. */
  resume() {
    const id = this.#tab.get(OPEN);
    if (id) this.#show(id);
    this.draw();
  }

  /** Begins a new conversation. */
  fresh() {
    [this.#id, this.#title, this.#isNamed] = [randomWord(), "", false];
    this.#tab.set(OPEN, "");
    this.draw();
  }

  /** The page is left: stores the conversation if an answer is incomplete, and nothing after that. */
  leave(isWriting) {
    if (isWriting) this.save();
    this.#isLeft = true;
  }

  comeBack() {
    this.#isLeft = false;
  }

  /** Stores the conversation in its current state. */
  save() {
    const turns = this.#page.chat.snapshot();
    if (turns.length === 0 || this.#isLeft) return;
    if (!this.#isNamed) this.#title = titleOf(turns[0].user || turns[0].text);
    const { title, isNamed } = { title: this.#title, isNamed: this.#isNamed };
    const isKept = this.#store.write(this.#id, { title, isNamed, changed: Date.now(), turns });
    if (isKept) this.#tab.set(OPEN, this.#id);
    this.draw();
  }

  draw() {
    const all = this.#store.list();
    byId("conversations").replaceChildren(...all.map((one) => this.#row(one)));
    byId("delete-all").hidden = all.length === 0;
    byId("no-conversations").hidden = all.length > 0;
  }

  #row({ id, title }) {
    const name = title || "A text";
    const open = element("button", "quiet open", name);
    open.addEventListener("click", () => this.#open(id));
    const row = element("li", "", open, this.#tool("✎", `Rename: ${name}`, () => this.#rename(id, row)));
    row.append(this.#tool("✕", `Delete: ${name}`, () => this.#delete(id, name)));
    open.type = "button";
    open.title = name;
    if (id === this.#id) open.setAttribute("aria-current", "true");
    return row;
  }

  #tool(sign, words, act) {
    const made = button(sign, act);
    made.className = "quiet tool";
    made.title = words;
    made.setAttribute("aria-label", words);
    return made;
  }

  async #open(id) {
    await this.#page.leave();
    this.#page.clear();
    if (!this.#show(id)) this.fresh();
    this.#page.closeList();
    this.draw();
    this.#page.box.focus();
  }

  /** Shows a stored conversation. Returns whether it could be read. */
  #show(id) {
    const found = this.#store.read(id);
    if (!found) return false;
    [this.#id, this.#title, this.#isNamed] = [id, found.title, found.isNamed];
    this.#tab.set(OPEN, id);
    this.#page.show(found.turns);
    return true;
  }

  /** Turns the name into a field; an empty name is replaced by the first words of the conversation. */
  #rename(id, row) {
    const found = this.#store.read(id);
    if (!found) return this.draw();
    const field = element("input");
    field.value = found.title;
    field.maxLength = TITLE_MAX;
    field.setAttribute("aria-label", "Name of the conversation");
    const end = (isWanted) => {
      field.onblur = null;
      const title = field.value.trim();
      const first = found.turns[0];
      const named = { title: title || titleOf(first?.user || first?.text || ""), isNamed: title !== "" };
      if (isWanted) this.#store.write(id, { ...found, ...named });
      if (isWanted && id === this.#id) [this.#title, this.#isNamed] = [named.title, named.isNamed];
      this.draw();
    };
    field.onblur = () => end(true);
    field.addEventListener("keydown", (event) => {
      if (event.key === "Enter" || event.key === "Escape") (event.stopPropagation(), end(event.key === "Enter"));
    });
    row.replaceChildren(field);
    field.select();
  }

  async #delete(id, name) {
    if (!confirm(`Delete this conversation?\n\n${name}`)) return;
    if (id === this.#id) await this.#page.fresh();
    this.#store.remove(id);
    this.draw();
  }

  async #deleteAll() {
    if (!confirm("Delete all conversations that this browser keeps?")) return;
    await this.#page.fresh();
    this.#store.removeAll();
    this.draw();
  }
}
