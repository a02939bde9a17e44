// The page of `foretoken serve`: a chat in which every token shows its origin, live figures, and a race between plain
// and speculative decoding.
//
// Plain modules and no framework: there is nothing to install, cargo never runs npm, the reviewed code is the code that
// runs, and all of it is smaller than a picture. The page shows one conversation at a time, so the document itself is
// the state; appending spans replaces a framework's synchronization of a large tree with data.
//
// This file connects the parts: the model, the running request, keys. Reading order: stream.js (bytes to JSON),
// requests.js (JSON to passes), figures.js, tokens.js (passes to coloured text), markdown.js and inline.js (text to a
// tree), render.js (tree to nodes), answer.js, chat.js, store.js, conversations.js, race.js.

import { Chat } from "./chat.js";
import { Conversations } from "./conversations.js";
import { Detail } from "./detail.js";
import { examplesFor } from "./examples.js";
import { element, onFrame } from "./frame.js";
import { Models } from "./models.js";
import { Panel } from "./panel.js";
import { button } from "./problem.js";
import { Race } from "./race.js";
import { Settings } from "./settings.js";
import { Store, Tab } from "./store.js";
import { Palette } from "./tokens.js";

const byId = (id) => document.getElementById(id);
const KEY = "foretoken-key";
const WIDE = matchMedia("(min-width: 75rem)"); // the list of conversations fits beside the log, as in style.css
const NEAR_THE_END = 60; // pixels from the end of the log within which the log scrolls with new text

class Page {
  log = byId("log");
  palette = new Palette();
  settings = new Settings(this.palette);
  panel = new Panel(this.settings);
  model = null;
  #tab = new Tab();
  #store = new Store(() => localStorage, (words) => this.#showNotStored(words));
  #models = new Models(this);
  #stop = null;
  #running = Promise.resolve();
  #following = true;
  #scrollTop = 0;
  #scroll = () => {
    if (this.#following) this.log.scrollTop = this.log.scrollHeight; // the user may have scrolled up meanwhile
  };

  constructor() {
    this.chat = new Chat(this);
    this.races = [];
    this.detail = new Detail(this.log);
    this.box = byId("box");
    this.conversations = new Conversations(this, this.#store, this.#tab);
    byId("markdown").checked = this.#store.recall("markdown") === "on";
    this.showList(WIDE.matches && this.#store.recall("list") !== "off", { isKept: false });
    this.log.addEventListener("scroll", () => this.#scrolled());
    // A block that becomes visible gets its true height, which may push the end out of view.
    this.log.addEventListener("contentvisibilityautostatechange", () => this.follow(), true);
  }

  /** Requests the list of models, and sets the controls for the model. */
  async open(name = this.#store.recall("model")) {
    this.model = null;
    this.#enable();
    const model = await this.#models.find(name, this.#tab.get(KEY));
    if (model) this.#use(model);
    return model;
  }

  /** Switches to another model. The conversation continues, unless only one of both has a chat template. */
  async choose(name) {
    await this.leave();
    const before = this.model;
    const model = await this.open(name);
    if (!model && before) {
      // It cannot be loaded, as a line says now: the previous model is used again.
      this.#models.draw(before);
      this.#use(before);
    }
    if (!model) return;
    this.#store.remember("model", model.id);
    if (before && Boolean(before.meta.chat) !== Boolean(model.meta.chat)) await this.fresh();
    this.box.focus();
  }

  #use(model) {
    this.model = model;
    const { meta } = model;
    for (const name of meta.drafters ?? []) this.palette.of(name);
    this.settings.open(meta);
    this.box.placeholder = meta.chat ? "Say something" : "Begin a text";
    byId("examples").replaceChildren(...examplesFor(model).map((text) => this.#example(text)));
    this.#enable();
  }

  #example(text) {
    const made = button(text, () => {
      this.box.value = text;
      this.box.focus();
    });
    made.className = "example";
    return made;
  }

  useKey(key) {
    this.#tab.set(KEY, key);
    for (const line of document.querySelectorAll(".problem:has(.key)")) line.remove();
    this.open(this.model?.id);
    this.box.focus();
  }

  get busy() {
    return this.#stop !== null;
  }

  /** Runs a task that generates text, one at a time; `stop` ends it. */
  async occupy(task) {
    this.#stop = new AbortController();
    this.#enable();
    this.#running = task({ key: this.#tab.get(KEY), signal: this.#stop.signal }).finally(() => {
      this.#stop = null;
      this.#enable();
    });
    await this.#running;
  }

  stop() {
    this.#stop?.abort();
  }

  /** Stops the running task; the text so far stays. */
  async leave() {
    this.stop();
    await this.#running.catch(() => {});
  }

  #enable() {
    const ready = this.model !== null && !this.busy;
    byId("send").hidden = this.busy;
    byId("stop").hidden = !this.busy;
    for (const id of ["send", "race"]) byId(id).disabled = !ready;
    document.body.classList.toggle("busy", this.busy);
    document.body.classList.toggle("empty", this.chat.turns.length + this.races.length === 0);
  }

  /** The text in the box, if it can be sent now. */
  #input() {
    const text = this.box.value;
    const continues = this.model && !this.model.meta.chat && this.chat.historyBefore(null).length > 0;
    return this.model && !this.busy && (text.trim() !== "" || continues) ? text : null;
  }

  /** Whether the form of the answer is valid; else the settings show the reason. */
  #formIsGood() {
    const isGood = this.settings.formIsGood();
    if (!isGood) (this.showPanel(true), byId("schema").focus());
    return isGood;
  }

  async send() {
    const text = this.#input();
    if (text === null) return this.box.focus();
    if (!this.#formIsGood()) return;
    this.box.value = "";
    this.#followNow();
    await this.chat.send(text);
  }

  async again() {
    if (this.model && !this.busy && this.#formIsGood()) await this.chat.again();
  }

  async race() {
    const text = this.#input();
    if (text === null) return this.box.focus();
    if (!this.#formIsGood()) return;
    const race = new Race(this);
    race.showRejected(this.settings.rejectedShown);
    this.races.push(race);
    this.#followNow();
    await race.run({ turns: this.chat.historyBefore(null), text });
  }

  /** Begins a new conversation; the current one stays in the list. */
  async fresh() {
    await this.leave();
    this.clear();
    this.conversations.fresh();
    this.closeList();
    this.box.focus();
  }

  /** Removes the conversation and its races from view. */
  clear() {
    this.chat.clear();
    for (const race of this.races.splice(0)) race.element.remove();
    this.panel.rest(null);
    this.#enable();
  }

  /** Shows stored turns. */
  show(turns) {
    this.chat.show(turns);
    this.#enable();
    this.#followNow();
  }

  #showNotStored(words) {
    byId("not-kept").replaceChildren(element("p", "problem mild", words));
  }

  /** Puts the question back into the box, unless the box has other text. */
  giveBack(text) {
    if (this.box.value === "") this.box.value = text;
  }

  /** Removes this text from the box, since it is sent again. */
  takeBack(text) {
    if (this.box.value === text) this.box.value = "";
  }

  showRejected() {
    this.chat.showRejected(this.settings.rejectedShown);
    for (const race of this.races) race.showRejected(this.settings.rejectedShown);
  }

  showMarkdown() {
    const isShown = this.settings.markdownShown;
    this.#store.remember("markdown", isShown ? "on" : "off");
    this.detail.show(null);
    this.chat.showMarkdown(isShown);
  }

  /** Scrolls to the end of the log, if the end was in view. */
  follow() {
    if (this.#following) onFrame(this.#scroll, { last: true });
  }

  /** Scrolling up stops automatic scrolling, reaching the end resumes it; the end may also move without scrolling. */
  #scrolled() {
    const { scrollTop, scrollHeight, clientHeight } = this.log;
    if (scrollHeight - scrollTop - clientHeight < NEAR_THE_END) this.#following = true;
    else if (scrollTop < this.#scrollTop) this.#following = false;
    this.#scrollTop = scrollTop;
  }

  #followNow() {
    this.#following = true;
    this.follow();
  }

  /** Announces this to screen readers, which do not read the growing text itself. */
  say(words) {
    byId("status").textContent = words;
  }

  showPanel(open = !document.body.classList.contains("panel-open")) {
    document.body.classList.toggle("panel-open", open);
    byId("panel-button").setAttribute("aria-expanded", String(open));
    if (open && !WIDE.matches) this.showList(false);
  }

  /** Shows or hides the list of conversations; on wide screens this is remembered. */
  showList(open = !document.body.classList.contains("list-open"), { isKept = true } = {}) {
    document.body.classList.toggle("list-open", open);
    byId("list-button").setAttribute("aria-expanded", String(open));
    if (isKept && WIDE.matches) this.#store.remember("list", open ? "on" : "off");
  }

  /** Hides the list after a choice, where it covers the log. */
  closeList() {
    if (!WIDE.matches) this.showList(false);
  }
}

const page = new Page();

byId("send").addEventListener("click", () => page.send());
byId("stop").addEventListener("click", () => page.stop());
byId("race").addEventListener("click", () => page.race());
byId("new").addEventListener("click", () => page.fresh());
byId("list-button").addEventListener("click", () => page.showList());
byId("keys-button").addEventListener("click", () => byId("keys").showModal());
byId("keys-close").addEventListener("click", () => byId("keys").close());
byId("panel-button").addEventListener("click", () => page.showPanel());
byId("rejected").addEventListener("change", () => page.showRejected());
byId("markdown").addEventListener("change", () => page.showMarkdown());
byId("composer").addEventListener("submit", (event) => event.preventDefault());
// An answer that is incomplete when the page is left is stored as it is; the stream's error then is not reported.
addEventListener("pagehide", () => page.conversations.leave(page.busy));
addEventListener("pageshow", () => page.conversations.comeBack());
document.addEventListener("visibilitychange", () => document.hidden && page.busy && page.conversations.save());

page.box.addEventListener("keydown", (event) => {
  if (event.key !== "Enter" || event.shiftKey || event.altKey || event.isComposing) return;
  event.preventDefault();
  if (event.ctrlKey || event.metaKey) page.race();
  else page.send();
});

const outsideFields = {
  "/": () => page.box.focus(),
  "?": () => byId("keys").showModal(),
  c: () => (page.showList(true), byId("list").focus()),
  d: () => byId("rejected").click(),
  m: () => byId("markdown").click(),
  n: () => page.fresh(),
  s: () => (page.showPanel(true), byId("panel").focus()),
};

document.addEventListener("keydown", (event) => {
  if (byId("keys").open) return;
  if (event.key === "Escape") {
    page.stop();
    page.detail.show(null);
    page.showPanel(false);
    page.closeList();
  } else if (event.altKey && event.key === "Enter") {
    event.preventDefault();
    page.again();
  } else if ((event.ctrlKey || event.metaKey) && event.key === "k") {
    event.preventDefault();
    page.box.focus();
  } else if (!event.ctrlKey && !event.metaKey && !event.altKey && !event.target.closest("input, textarea, select")) {
    const act = outsideFields[event.key];
    if (act) event.preventDefault();
    act?.();
  }
});

page.open().then(() => page.conversations.resume());
