// The page of `foretoken serve`: a chat in which every token shows who wrote it, live figures, and a race between
// plain and speculative writing.
//
// Plain modules and no framework: nothing to install, cargo never runs npm, what is reviewed is what runs, and the
// whole is a fraction of the 100 kB that it may weigh. The page is one conversation at a time, so the document itself
// is the state; what a framework would add (keeping a large tree in step with data) is done here by appending spans.
//
// This file puts the parts together: which model, who is busy, keys. Reading order: stream.js (bytes to JSON),
// requests.js (JSON to passes), figures.js, tokens.js (passes to coloured text), chat.js, race.js.

import { Chat } from "./chat.js";
import { Detail } from "./detail.js";
import { onFrame } from "./frame.js";
import { Panel } from "./panel.js";
import { problemLine } from "./problem.js";
import { Race } from "./race.js";
import { Settings } from "./settings.js";
import { models } from "./stream.js";
import { Palette } from "./tokens.js";

const byId = (id) => document.getElementById(id);
const KEY = "foretoken-key";
const NEAR_THE_END = 60; // pixels from the end of the log within which new text is followed

class Page {
  log = byId("log");
  palette = new Palette();
  settings = new Settings(this.palette);
  panel = new Panel(this.settings);
  model = null;
  #known = [];
  #stop = null;
  #following = true;
  #scrollTop = 0;
  #scroll = () => {
    if (this.#following) this.log.scrollTop = this.log.scrollHeight; // someone may have scrolled up since it was asked
  };

  constructor() {
    this.chat = new Chat(this);
    this.races = [];
    this.detail = new Detail(this.log);
    this.box = byId("box");
    this.log.addEventListener("scroll", () => this.#scrolled());
    // A block that comes into view gets its true height, which may push the end out of it.
    this.log.addEventListener("contentvisibilityautostatechange", () => this.follow(), true);
  }

  /** Asks which models there are; what the server says decides the switches. */
  async open() {
    byId("trouble").replaceChildren();
    try {
      this.#known = await models(sessionStorage.getItem(KEY));
    } catch (error) {
      const line = problemLine(error, { again: () => this.open(), useKey: (key) => this.useKey(key) });
      byId("trouble").replaceChildren(line);
      line.querySelector("input, button")?.focus();
      return;
    }
    byId("models").replaceChildren(...this.#known.map(({ id }) => new Option(id, id)));
    byId("models").hidden = this.#known.length < 2;
    this.#use(this.#known[0]);
  }

  useModel(id) {
    this.clear();
    this.#use(this.#known.find((model) => model.id === id));
  }

  #use(model) {
    this.model = { ...model, meta: model.meta ?? { chat: true } };
    const { meta } = this.model;
    byId("model").textContent = this.#known.length < 2 ? model.id : "";
    for (const name of meta.drafters ?? []) this.palette.of(name);
    this.settings.open(meta);
    this.box.placeholder = meta.chat ? "Say something" : "Begin a text";
    this.#enable();
  }

  useKey(key) {
    sessionStorage.setItem(KEY, key);
    for (const line of document.querySelectorAll(".problem:has(.key)")) line.remove();
    this.open();
    this.box.focus();
  }

  get busy() {
    return this.#stop !== null;
  }

  /** Runs a task that writes, alone; `stop` ends it. */
  async occupy(task) {
    this.#stop = new AbortController();
    this.#enable();
    try {
      await task({ key: sessionStorage.getItem(KEY), signal: this.#stop.signal });
    } finally {
      this.#stop = null;
      this.#enable();
    }
  }

  stop() {
    this.#stop?.abort();
  }

  #enable() {
    const ready = this.model !== null && !this.busy;
    byId("send").hidden = this.busy;
    byId("stop").hidden = !this.busy;
    for (const id of ["send", "race", "clear"]) byId(id).disabled = !ready;
    document.body.classList.toggle("busy", this.busy);
    document.body.classList.toggle("empty", this.chat.turns.length + this.races.length === 0);
  }

  /** The text in the box, if something can be made of it now. */
  #asked() {
    const text = this.box.value;
    const goesOn = this.model && !this.model.meta.chat && this.chat.historyBefore(null).length > 0;
    return this.model && !this.busy && (text.trim() !== "" || goesOn) ? text : null;
  }

  /** Whether the form of the answer can be asked for; else the settings show why not. */
  #formIsGood() {
    const isGood = this.settings.formIsGood();
    if (!isGood) (this.showPanel(true), byId("schema").focus());
    return isGood;
  }

  async send() {
    const text = this.#asked();
    if (text === null) return this.box.focus();
    if (!this.#formIsGood()) return;
    this.box.value = "";
    this.#followNow();
    await this.chat.send(text);
  }

  async again() {
    if (!this.busy && this.#formIsGood()) await this.chat.again();
  }

  async race() {
    const text = this.#asked();
    if (text === null) return this.box.focus();
    if (!this.#formIsGood()) return;
    const race = new Race(this);
    race.showRejected(this.settings.rejectedShown);
    this.races.push(race);
    this.#followNow();
    await race.run({ turns: this.chat.historyBefore(null), text });
  }

  clear() {
    if (this.busy) return;
    this.chat.clear();
    for (const race of this.races.splice(0)) race.element.remove();
    this.panel.rest(null);
    this.#enable();
    this.box.focus();
  }

  /** What was asked comes back into the box, unless something else was written there meanwhile. */
  giveBack(text) {
    if (this.box.value === "") this.box.value = text;
  }

  /** The text that came back is being asked again, so it leaves the box. */
  takeBack(text) {
    if (this.box.value === text) this.box.value = "";
  }

  showRejected() {
    this.chat.showRejected(this.settings.rejectedShown);
    for (const race of this.races) race.showRejected(this.settings.rejectedShown);
  }

  /** Keeps the end of the log in view, where it was in view. */
  follow() {
    if (this.#following) onFrame(this.#scroll, { last: true });
  }

  /** Scrolling up ends following, reaching the end begins it; the end may also move away by itself. */
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

  /** Tells a screen reader; the growing text itself is not read aloud. */
  say(words) {
    byId("status").textContent = words;
  }

  showPanel(open = !document.body.classList.contains("panel-open")) {
    document.body.classList.toggle("panel-open", open);
    byId("panel-button").setAttribute("aria-expanded", String(open));
  }
}

const page = new Page();

byId("send").addEventListener("click", () => page.send());
byId("stop").addEventListener("click", () => page.stop());
byId("race").addEventListener("click", () => page.race());
byId("clear").addEventListener("click", () => page.clear());
byId("keys-button").addEventListener("click", () => byId("keys").showModal());
byId("keys-close").addEventListener("click", () => byId("keys").close());
byId("panel-button").addEventListener("click", () => page.showPanel());
byId("rejected").addEventListener("change", () => page.showRejected());
byId("models").addEventListener("change", (event) => page.useModel(event.target.value));
byId("composer").addEventListener("submit", (event) => event.preventDefault());
for (const example of document.querySelectorAll(".example")) {
  example.addEventListener("click", () => {
    page.box.value = example.textContent;
    page.box.focus();
  });
}

page.box.addEventListener("keydown", (event) => {
  if (event.key !== "Enter" || event.shiftKey || event.altKey || event.isComposing) return;
  event.preventDefault();
  if (event.ctrlKey || event.metaKey) page.race();
  else page.send();
});

const outsideFields = {
  "/": () => page.box.focus(),
  "?": () => byId("keys").showModal(),
  d: () => byId("rejected").click(),
  s: () => (page.showPanel(true), byId("panel").focus()),
};

document.addEventListener("keydown", (event) => {
  if (byId("keys").open) return;
  if (event.key === "Escape") {
    page.stop();
    page.detail.show(null);
    page.showPanel(false);
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

page.open();
