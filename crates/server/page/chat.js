// The conversation: turns of a question and an answer, or, for a model without a chat template, a text that is
// continued. A failed turn stays in view with its partial answer, but is not sent to the model again.
//
// This file defines how a turn looks, the content of the next request, and what is stored of a turn (conversations.js
// stores it). There are no branches (a regenerated answer replaces the old one), and no editing of earlier questions.

import { Answer } from "./answer.js";
import { Figures } from "./figures.js";
import { element } from "./frame.js";
import { button, copyButton, cutLine, fullLine, problemLine } from "./problem.js";
import { requestFor, write } from "./requests.js";
import { unpacked } from "./store.js";
import { count, duration, short } from "./words.js";

export class Chat {
  /** Oldest first: `{user, text, state, ...}` with state "writing", "done" or "failed". */
  turns = [];
  #page;

  constructor(page) {
    this.#page = page;
  }

  /** The turns that are sent to the model: all before this one that have an answer. */
  historyBefore(turn) {
    const index = turn ? this.turns.indexOf(turn) : this.turns.length;
    const answered = this.turns.slice(0, index).filter(({ state, text }) => state === "done" && text.text !== "");
    return answered.map(({ user, text }) => ({ user, answer: text.text }));
  }

  async send(user) {
    const last = this.turns.at(-1);
    if (last?.state === "failed" && last.text.text === "") this.#remove(last);
    const turn = this.#newTurn(user, this.#page.model.meta.chat);
    this.turns.push(turn);
    this.#page.log.append(turn.element);
    await this.#write(turn);
  }

  /** The turns as they are stored, for `show`. */
  snapshot() {
    return this.turns.map(({ user, isChat, text, state, line }) => {
      const isDone = state !== "failed" && text.text !== "";
      return { user, isChat, isDone, text: text.text, line: line || "left while it was written", told: text.stored };
    });
  }

  /** Shows stored turns. */
  show(turns) {
    for (const { user, isChat, isDone, text, line, told } of turns) {
      const turn = this.#newTurn(user, isChat !== false);
      for (const pass of unpacked(text, told)) turn.text.add(pass);
      turn.state = isDone ? "done" : "failed";
      turn.line = typeof line === "string" ? line : "";
      if (text !== "") this.#foot(turn);
      else turn.foot.append(element("span", "told", "no answer"));
      this.turns.push(turn);
      this.#page.log.append(turn.element);
    }
    const last = this.turns.at(-1);
    if (last) last.foot.append(this.#againButton());
  }

  /** Regenerates the last answer. */
  async again() {
    const turn = this.turns.at(-1);
    if (!turn) return;
    this.#page.takeBack(turn.user);
    turn.text.clear();
    turn.line = "";
    turn.foot.replaceChildren();
    await this.#write(turn);
  }

  clear() {
    for (const turn of [...this.turns]) this.#remove(turn);
  }

  showRejected(shown) {
    for (const { text } of this.turns) text.showRejected(shown);
  }

  showMarkdown(shown) {
    for (const { text } of this.turns) text.showMarkdown(shown);
  }

  #remove(turn) {
    turn.element.remove();
    this.turns.splice(this.turns.indexOf(turn), 1);
  }

  #newTurn(user, isChat) {
    const { settings, palette } = this.#page;
    const text = new Answer(palette, settings.markdownShown, () => this.#page.follow());
    text.showRejected(settings.rejectedShown);
    const question = element("div", "said", user);
    question.dir = "auto";
    const foot = element("footer", "foot");
    const kind = isChat ? "turn" : "turn running";
    const whole = element("article", kind, element("h2", "unseen", "You"), question, element("h2", "unseen", "Answer"));
    whole.append(text.element, foot);
    return { user, isChat, text, foot, element: whole, state: "writing", line: "" };
  }

  async #write(turn) {
    const page = this.#page;
    for (const other of this.turns) other.foot.querySelector(".again")?.remove();
    page.settings.newSeed();
    const settings = page.settings.read();
    const seed = page.settings.seed;
    const dialogue = { turns: this.historyBefore(turn), text: turn.user };
    const request = requestFor(page.model, dialogue, settings, seed);
    turn.state = "writing";
    turn.element.classList.add("writing");
    await page.occupy(async (access) => {
      const figures = new Figures(performance.now());
      page.panel.watch(figures);
      const onPass = (pass) => {
        figures.add(pass, performance.now());
        turn.text.add(pass);
      };
      try {
        const end = await write(request, access, onPass);
        figures.end(performance.now(), end.timings);
        turn.state = "done";
        if (end.cutBy) turn.foot.append(cutLine(end.cutBy));
        const isLong = end.finish === "length" && !end.cutBy;
        const isFull = isLong && (settings.maxTokens === null || figures.isShorterThan(settings.maxTokens));
        if (isFull) turn.foot.append(this.#fullLine());
        this.#close(turn, figures, settings, seed, isLong && !isFull ? ["as long as allowed"] : []);
      } catch (error) {
        this.#fail(turn, error, figures, settings, seed);
      } finally {
        if (figures.ended === null) figures.end(performance.now());
        turn.element.classList.remove("writing");
        page.panel.rest(figures);
        page.conversations.save();
        page.follow();
      }
    });
  }

  #fail(turn, error, figures, settings, seed) {
    if (error.name === "AbortError") {
      turn.state = "done";
      this.#close(turn, figures, settings, seed, ["stopped"]);
      return;
    }
    turn.state = "failed";
    this.#page.settings.showRefusal(error);
    if (figures.tokens > 0) this.#close(turn, figures, settings, seed, []);
    this.#page.giveBack(turn.user);
    const note = figures.tokens > 0 ? "What came is above." : "";
    const [again, useKey] = [() => this.#page.again(), (key) => this.#page.useKey(key)];
    turn.foot.prepend(problemLine(error, { again, useKey, fresh: () => this.#page.fresh(), note }));
    this.#page.say("The answer failed.");
  }

  #fullLine() {
    const { n_ctx: context } = this.#page.model.meta;
    const size = context ? ` of ${context} tokens` : "";
    const words = `The answer ends here because the model's context${size} is full. A new conversation has room again.`;
    return fullLine(words, () => this.#page.fresh());
  }

  /** Adds the line of figures under an answer, and its buttons. */
  #close(turn, figures, settings, seed, ends) {
    const parts = [
      count(figures.tokens, "token"),
      ...(figures.speed === null ? [] : [`${short(figures.speed)} tokens/s`]),
      ...(figures.tokensPerPass === null ? [] : [`${short(figures.tokensPerPass, 2)} a pass`]),
      ...(figures.firstToken === null ? [] : [`first after ${duration(figures.firstToken)}`]),
      `seed ${seed}`,
      settings.type === "none" ? "plain" : `${settings.type}, ${settings.verify}`,
      ...(figures.lossyLenience === null ? [] : [`lossy (lenience ${figures.lossyLenience})`]),
      ...ends,
    ];
    turn.line = parts.join(" · ");
    this.#foot(turn);
    if (turn.state === "done") turn.foot.append(this.#againButton());
    this.#page.say(`The answer has ended, ${count(figures.tokens, "token")}.`);
  }

  #foot(turn) {
    turn.foot.append(element("span", "told", turn.line), copyButton(() => turn.text.text));
  }

  #againButton() {
    const again = button("Write anew", () => this.#page.again());
    again.classList.add("again");
    return again;
  }
}
