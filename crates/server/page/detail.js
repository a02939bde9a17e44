// The details of one token in a small box beside it: its origin, depth and probabilities.
//
// The page has one box, and one listener for all texts. Pointer, tap or keyboard select the token: a text is one tab
// stop, arrow keys move through its tokens (left and right) and passes (up and down). The tokens of the same pass are
// highlighted. Escape closes the box.

import { element, onFrame } from "./frame.js";
import { short, visible } from "./words.js";

const ASIDE = 8;

export class Detail {
  #box = element("div", "detail");
  #span = null;
  #marked = [];
  #place = () => this.#put();

  constructor(root) {
    this.#box.id = "detail";
    this.#box.hidden = true;
    this.#box.setAttribute("role", "tooltip");
    document.body.append(this.#box);
    const tokenOf = (event) => event.target.closest?.(".t") ?? null;
    const focused = () => (document.activeElement?.matches(".t") ? document.activeElement : null);
    root.addEventListener("pointerover", (event) => this.show(tokenOf(event) ?? focused()));
    root.addEventListener("pointerleave", () => this.show(focused()));
    root.addEventListener("click", (event) => tokenOf(event) && this.show(tokenOf(event)));
    root.addEventListener("focusin", (event) => this.show(tokenOf(event)));
    root.addEventListener("focusout", () => this.show(null));
    root.addEventListener("keydown", (event) => this.#key(event));
    root.addEventListener("scroll", () => this.#span && onFrame(this.#place, { last: true }), true);
  }

  get open() {
    return this.#span !== null;
  }

  /** Shows the box for this token's span, or hides it (null). */
  show(span) {
    if (span === this.#span) return;
    for (const marked of this.#marked) marked.classList.remove("same");
    this.#span?.removeAttribute("aria-describedby");
    this.#marked = span ? samePass(span) : [];
    this.#span = span;
    this.#box.hidden = span === null;
    if (!span) return;
    for (const marked of this.#marked) marked.classList.add("same");
    span.setAttribute("aria-describedby", "detail");
    this.#box.replaceChildren(...lines(span));
    this.#put();
  }

  #put() {
    // A token may span two lines, with its leading space on the first; a line end has no width at all.
    const all = this.#span?.isConnected ? [...this.#span.getClientRects()] : [];
    const wide = all.filter((rect) => rect.width > 0);
    const [first, last] = wide.length > 0 ? [wide[0], wide.at(-1)] : [all[0], all[0]];
    if (!first) return this.show(null);
    const { offsetWidth: width, offsetHeight: height } = this.#box;
    const below = last.bottom + ASIDE;
    const top = below + height > innerHeight - ASIDE ? first.top - height - ASIDE : below;
    const left = Math.min(Math.max(last.left - ASIDE, ASIDE), document.documentElement.clientWidth - width - ASIDE);
    this.#box.style.top = `${Math.max(top, ASIDE)}px`;
    this.#box.style.left = `${left}px`;
  }

  #key(event) {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const text = event.target.closest?.(".text");
    if (!text) return;
    const here = event.target.closest(".t");
    const all = text.getElementsByClassName("t");
    const to = {
      ArrowRight: () => (here ? next(here) : all[0]),
      ArrowLeft: () => (here ? previous(here) : all[all.length - 1]),
      ArrowDown: () => (here ? another(here, next) : all[0]),
      ArrowUp: () => (here ? another(here, previous) : all[all.length - 1]),
      Home: () => all[0],
      End: () => all[all.length - 1],
    }[event.key];
    if (!to) return;
    event.preventDefault();
    const span = to();
    if (!span) return;
    span.tabIndex = -1;
    span.focus();
  }
}

const next = (span) => span.nextElementSibling ?? span.parentElement.nextElementSibling?.firstElementChild ?? null;
const previous = (span) =>
  span.previousElementSibling ?? span.parentElement.previousElementSibling?.lastElementChild ?? null;

/** The first token of the next pass in this direction. */
function another(span, step) {
  let found = step(span);
  while (found && found.pass === span.pass) found = step(found);
  return found;
}

function samePass(span) {
  const same = [span];
  for (const step of [previous, next]) {
    for (let other = step(span); other && other.pass === span.pass; other = step(other)) same.push(other);
  }
  return same;
}

const shares = (name, value, otherwise) => {
  const row = element("div", "row", element("span", "name", name));
  if (value === null || value === undefined) row.append(element("span", "none", otherwise));
  else {
    const bar = element("span", "bar", element("span", "fill"));
    bar.firstChild.style.width = `${Math.min(Math.max(value, 0), 1) * 100}%`;
    row.append(element("span", "number", value > 0 && value < 0.001 ? value.toExponential(1) : short(value, 4)), bar);
  }
  return row;
};

const row = (name, value) =>
  element("div", "row", element("span", "name", name), element("span", "number", String(value)));

function lines(span) {
  const [token] = span.tokens.slice(-1);
  if (!token) return [element("div", "row", "the tokens of this text are not known")];
  const known = { target: "the model itself", forced: "forced: no other token was possible" };
  const who = known[token.origin] ?? token.origin;
  const shown = element("code", "", element("u", "", visible(token.text) || "(no text)"));
  const head = element("div", `head o${span.colour}`, shown, ` ${who}`);
  if (token.rejected) head.append(element("strong", "", " rejected"));
  if (token.isKept) return [head, row("pass", span.pass), element("div", "none", "its probabilities were not kept")];
  const parts = span.tokens.slice(0, -1);
  return [
    head,
    row("token", parts.map((part) => `${part.token} + `).join("") + token.token),
    row("pass", span.pass ?? "–"),
    ...(token.depth > 0 ? [row("depth", token.depth)] : []),
    ...(token.rejected ? [] : [shares("p", token.p, "not known"), shares("q", token.q, "none")]),
  ];
}
