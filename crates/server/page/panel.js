// The live figures beside the text. They are updated ten times a second and not with every token: people do not read
// faster, and the frames are needed for the text.

import { DepthChart } from "./chart.js";
import { onFrame } from "./frame.js";
import { duration, short } from "./words.js";

const byId = (id) => document.getElementById(id);
const EVERY = 100; // milliseconds

export class Panel {
  #figures = null;
  #timer = 0;
  #chart = new DepthChart(byId("depths"));
  #settings;
  #draw = () => this.#show();

  constructor(settings) {
    this.#settings = settings;
  }

  /** Shows these figures and updates them until `rest`. */
  watch(figures) {
    this.#figures = figures;
    clearInterval(this.#timer);
    this.#timer = setInterval(() => onFrame(this.#draw), EVERY);
    onFrame(this.#draw);
  }

  /** Stops updating: the answer has ended, or, with `figures` null, there is none any more. */
  rest(figures = this.#figures) {
    clearInterval(this.#timer);
    this.#timer = 0;
    this.#figures = figures;
    onFrame(this.#draw);
  }

  #show() {
    const figures = this.#figures;
    const now = this.#timer ? performance.now() : figures?.ended;
    const said = {
      "speed-now": short(figures?.speedAt(now) ?? null),
      "speed-all": short(figures?.speed ?? null),
      "accepted-length": short(figures?.acceptedLength ?? null),
      "first-token": duration(figures?.firstToken ?? null),
    };
    for (const [id, text] of Object.entries(said)) {
      if (byId(id).textContent !== text) byId(id).textContent = text;
    }
    const strip = figures
      ? `${said["speed-all"]} tokens/s · ${short(figures.tokensPerPass)} a pass · first after ${said["first-token"]}`
      : "";
    byId("strip").textContent = strip;
    this.#chart.draw(figures?.positions ?? []);
    this.#settings.showCounts(figures?.byOrigin ?? new Map());
  }
}
