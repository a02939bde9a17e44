// Two small charts as SVG: acceptance by depth, and the tokens of a race over time.
//
// Both have an equivalent text (`aria-label`). Colours are in style.css. A chart library would be larger than the whole
// page.

const SVG = "http://www.w3.org/2000/svg";

function shape(name, attributes, text = "") {
  const made = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  if (text) made.textContent = text;
  return made;
}

const DEPTHS_MAX = 16;

/** One bar per depth: the share of passes with a draft of at least this depth that accepted a token at it. */
export class DepthChart {
  constructor(host) {
    this.element = shape("svg", { viewBox: "0 0 320 96", role: "img", class: "depths" });
    host.append(this.element);
    this.draw([]);
  }

  draw(positions) {
    const shown = positions.slice(0, DEPTHS_MAX);
    const step = 320 / Math.max(shown.length, 8);
    const parts = [shape("line", { x1: 0, x2: 320, y1: 78.5, y2: 78.5, class: "axis" })];
    shown.forEach(({ drafted, accepted }, index) => {
      const share = drafted > 0 ? accepted / drafted : 0;
      const left = index * step + 2;
      const width = step - 4;
      const middle = left + width / 2;
      parts.push(shape("rect", { x: left, y: 16, width, height: 62, class: "all", rx: 2 }));
      parts.push(shape("rect", { x: left, y: 78 - 62 * share, width, height: 62 * share, class: "part", rx: 2 }));
      if (shown.length <= 10) parts.push(shape("text", { x: middle, y: 11 }, `${Math.round(share * 100)}%`));
      parts.push(shape("text", { x: middle, y: 92 }, String(index + 1)));
    });
    if (shown.length === 0) parts.push(shape("text", { x: 160, y: 52 }, "nothing drafted yet"));
    this.element.replaceChildren(...parts);
    const line = ({ drafted, accepted }, index) => `depth ${index + 1}: ${accepted} of ${drafted}`;
    const words = positions.length > 0 ? positions.map(line).join(", ") : "nothing drafted yet";
    this.element.setAttribute("aria-label", `Accepted by depth. ${words}`);
  }
}

/** About `count` round numbers from 0 up to at least `maximum`. */
export function ticks(maximum, count) {
  const rough = Math.max(maximum, 1e-9) / count;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].find((factor) => factor * power >= rough) * power;
  const number = Math.ceil(maximum / step - 1e-9);
  return Array.from({ length: number + 1 }, (_, index) => Number((index * step).toPrecision(12)));
}

const HEIGHT = 190;
const EDGE = { left: 40, right: 12, top: 10, bottom: 34 };

/** Tokens over seconds, a line for each run; `lines` are `{name, class, points: [[milliseconds, tokens]]}`. */
export class RaceChart {
  #lines = [];
  #until = Infinity;

  constructor() {
    this.element = shape("svg", { role: "img", class: "race-chart", height: HEIGHT });
    new ResizeObserver(() => this.#draw()).observe(this.element);
  }

  /** Draws the points up to `until`, in milliseconds; the axes have room for all points. */
  draw(lines, until = Infinity) {
    this.#lines = lines;
    this.#until = until;
    this.#draw();
  }

  #draw() {
    const width = Math.max(this.element.clientWidth, 240);
    const ends = this.#lines.map(({ points }) => points.at(-1) ?? [0, 0]);
    const times = ticks(Math.max(...ends.map(([time]) => time / 1000), 0.1), width > 480 ? 6 : 3);
    const counts = ticks(Math.max(...ends.map(([, tokens]) => tokens), 10), 4);
    const right = width - EDGE.right;
    const x = (time) => EDGE.left + ((right - EDGE.left) * time) / 1000 / times.at(-1);
    const y = (tokens) => HEIGHT - EDGE.bottom - ((HEIGHT - EDGE.bottom - EDGE.top) * tokens) / counts.at(-1);
    const parts = [];
    for (const tokens of counts) {
      parts.push(shape("line", { x1: EDGE.left, x2: right, y1: y(tokens), y2: y(tokens), class: "grid" }));
      parts.push(shape("text", { x: EDGE.left - 8, y: y(tokens) + 4, class: "side" }, String(tokens)));
    }
    for (const time of times) parts.push(shape("text", { x: x(time * 1000), y: HEIGHT - 17 }, `${time}`));
    parts.push(shape("text", { x: (EDGE.left + right) / 2, y: HEIGHT - 2, class: "unit" }, "seconds"));
    for (const line of this.#lines) parts.push(...this.#line(line, x, y));
    this.element.setAttribute("viewBox", `0 0 ${width} ${HEIGHT}`);
    this.element.replaceChildren(...parts);
    const seconds = ([time]) => (time / 1000).toFixed(2);
    const words = this.#lines.map(({ name }, at) => `${name}: ${ends[at][1]} tokens in ${seconds(ends[at])} s`);
    this.element.setAttribute("aria-label", `Tokens over time. ${words.join("; ")}`);
  }

  #line({ points, class: kind }, x, y) {
    const shown = points.filter(([time]) => time <= this.#until);
    if (shown.length === 0) return [];
    const least = 1; // pixels between points: denser ones would not be visible
    let path = `M${x(0)} ${y(0)}`;
    let before = -Infinity;
    shown.forEach(([time, tokens], index) => {
      if (x(time) - before < least && index < shown.length - 1) return;
      before = x(time);
      path += `L${x(time).toFixed(1)} ${y(tokens).toFixed(1)}`;
    });
    const [time, tokens] = shown.at(-1);
    return [
      shape("path", { d: path, class: `line ${kind}` }),
      shape("circle", { cx: x(time), cy: y(tokens), r: 4, class: kind }),
    ];
  }
}
