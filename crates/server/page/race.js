// The race: the same prompt, seed and settings run twice, first plain, then with drafts, on one axis of time. At its
// end both texts are compared byte for byte.
//
// The runs are sequential, since concurrent ones would share the machine and slow each other down. The compared speeds
// are those after the first token; the time to the first token is shown, but not counted. Drafters learn from earlier
// texts, also from the plain run, so each run has a `cache_salt` of its own and begins without memory. A race always
// has the promise *exact*, since only that guarantees the same bytes. It is not part of the conversation, and without a
// length limit it ends after some hundred tokens.

import { RaceChart } from "./chart.js";
import { Figures, firstDifference } from "./figures.js";
import { element, onFrame } from "./frame.js";
import { button, cutLine, problemLine } from "./problem.js";
import { requestFor, write } from "./requests.js";
import { TokenText } from "./tokens.js";
import { count, duration, randomWord, short, visible } from "./words.js";

const LEAST_TOKENS = 16; // fewest tokens for a comparison of speeds
const MOST_TOKENS = 512; // without a length limit
const REPLAY_LONGEST = 8000; // milliseconds; a longer race is replayed faster

class Lane {
  passes = [];
  times = [];
  end = null;

  constructor(name, kind, palette, follow) {
    this.name = name;
    this.class = kind;
    this.text = new TokenText(palette, `Text of the ${name} run. Arrow keys go through its tokens.`, () => {
      this.text.element.scrollTop = this.text.element.scrollHeight;
      follow();
    });
    this.told = element("span", "told", "waits");
    this.element = element("div", `lane ${kind}`, element("h3", "", name), this.told, this.text.element);
  }

  get points() {
    return this.figures?.points ?? [];
  }

  /** The time of its last token, in milliseconds since its request. */
  get time() {
    return this.points.at(-1)?.[0] ?? 0;
  }

  showFigures() {
    const { tokens, speed, firstToken } = this.figures;
    const parts = [count(tokens, "token"), duration(this.time), `${short(speed)} tokens/s`];
    this.told.textContent = `${parts.join(" · ")} · first after ${duration(firstToken)}`;
  }
}

export class Race {
  #page;
  #chart = new RaceChart();
  #verdict = element("div", "verdict");
  #draw = () => this.#chart.draw(this.#lanes);
  #lanes;

  constructor(page) {
    this.#page = page;
    const follow = () => page.follow();
    const lane = (name, kind) => new Lane(name, kind, page.palette, follow);
    this.#lanes = [lane("plain", "plain"), lane("with drafts", "drafts")];
    const texts = element("div", "lanes", ...this.#lanes.map((lane) => lane.element));
    this.element = element("article", "race", this.#chart.element, texts, this.#verdict);
    this.#verdict.setAttribute("role", "status");
  }

  async run(dialogue) {
    const page = this.#page;
    page.settings.newSeed();
    const chosen = page.settings.read();
    chosen.maxTokens ??= MOST_TOKENS;
    const type = chosen.type === "none" ? "auto" : chosen.type;
    const seed = page.settings.seed;
    const about = dialogue.text.trim() === "" ? "the text so far" : element("q", "", shorten(dialogue.text));
    const title = element("h2", "", "A race: ", about);
    title.dir = "auto";
    const how = [
      `${type} against plain`, `temperature ${chosen.temperature}`, `seed ${seed}`, "promise exact",
      `at most ${chosen.maxTokens} tokens`,
    ].join(" · ");
    const fair = "Both runs begin without memory of earlier texts, so a second race is no faster than the first.";
    this.element.prepend(title, element("p", "told", how), element("p", "told", fair));
    page.log.append(this.element);
    page.follow();
    await page.occupy(async (access) => {
      try {
        for (const [lane, drafters] of [[this.#lanes[0], "none"], [this.#lanes[1], type]]) {
          const settings = { ...chosen, type: drafters, verify: "exact", cacheSalt: randomWord() };
          if (drafters === "none") settings.prediction = "";
          await this.#runLane(lane, requestFor(page.model, dialogue, settings, seed), access);
        }
        this.#judge();
      } catch (error) {
        this.#fail(error);
      }
    });
    page.follow();
  }

  async #runLane(lane, request, access) {
    lane.figures = new Figures(performance.now());
    lane.element.classList.add("running");
    this.#page.panel.watch(lane.figures);
    const onPass = (pass) => {
      const now = performance.now();
      lane.figures.add(pass, now);
      lane.passes.push(pass);
      lane.times.push(now);
      lane.text.add(pass);
      onFrame(this.#draw);
    };
    const started = performance.now();
    try {
      lane.end = await write(request, access, onPass);
    } finally {
      lane.times = lane.times.map((time) => time - started);
      lane.figures.end(performance.now(), lane.end?.timings);
      lane.element.classList.remove("running");
      this.#page.panel.rest(lane.figures);
      lane.showFigures();
    }
  }

  #judge() {
    const [plain, drafts] = this.#lanes;
    const cut = this.#lanes.find(({ end }) => end.cutBy);
    if (cut) {
      this.#verdict.append(cutLine(cut.end.cutBy), element("p", "same", "same text: not known, one of them was cut"));
      return;
    }
    const times = drafts.figures.speed / plain.figures.speed;
    if (Math.min(drafts.figures.tokens, plain.figures.tokens) < LEAST_TOKENS || !Number.isFinite(times)) {
      this.#verdict.append(element("p", "faster", "too short to compare speeds"));
    } else {
      const faster = times >= 1 ? `${short(times)} times faster` : `${short(1 / times)} times slower`;
      this.#verdict.append(element("p", "faster", faster));
    }
    const difference = firstDifference(plain.text.text, drafts.text.text);
    const answer = element("p", difference ? "same no" : "same yes", `same text: ${difference ? "no" : "yes"}`);
    this.#verdict.append(answer);
    const bytes = new TextEncoder().encode(plain.text.text).length;
    if (!difference) answer.append(element("span", "told", ` all ${count(bytes, "byte")}`));
    else this.#verdict.append(differenceLine(difference));
    if (!matchMedia("(prefers-reduced-motion: reduce)").matches) {
      this.#verdict.append(button("Replay side by side", () => this.#replay()));
    }
    this.#page.say(`The race has ended. Same text: ${difference ? "no" : "yes"}.`);
  }

  #fail(error) {
    if (error.name === "AbortError") {
      this.#verdict.append(element("p", "told", "stopped"));
      return;
    }
    this.#page.settings.showRefusal(error);
    const useKey = (key) => this.#page.useKey(key);
    const [again, fresh] = [() => this.#page.race(), () => this.#page.fresh()];
    this.#verdict.append(problemLine(error, { again, useKey, fresh }));
  }

  /** Replays both runs side by side, each pass at its time. */
  #replay() {
    const longest = Math.max(...this.#lanes.map((lane) => lane.time));
    const pace = Math.max(longest / REPLAY_LONGEST, 1);
    const next = this.#lanes.map(() => 0);
    for (const lane of this.#lanes) lane.text.clear();
    const started = performance.now();
    const run = Symbol("replay"); // a later replay stops this one
    this.running = run;
    const step = () => {
      if (this.running !== run || !this.element.isConnected) return;
      const now = (performance.now() - started) * pace;
      this.#lanes.forEach((lane, index) => {
        while (lane.times[next[index]] <= now) lane.text.add(lane.passes[next[index]++]);
      });
      const ended = now > longest;
      this.#chart.draw(this.#lanes, ended ? Infinity : now);
      if (!ended) return onFrame(step);
      this.#lanes.forEach((lane, index) => {
        for (const pass of lane.passes.slice(next[index])) lane.text.add(pass);
      });
    };
    onFrame(step);
  }

  showRejected(shown) {
    for (const { text } of this.#lanes) text.showRejected(shown);
  }
}

function differenceLine({ at, one, other }) {
  const mark = (words, text) => element("span", "", `${words} `, element("code", "", visible(text) || "(the end)"));
  const words = `First difference at byte ${at}: `;
  return element("p", "difference", words, mark("plain", one), " ", mark("with drafts", other));
}

const shorten = (text) => (text.length > 80 ? `${text.slice(0, 80)}…` : text);
