// Nodes for the tree that markdown.js reads, and a text that grows as such nodes.
//
// Every node is made by its name from a list that is here, and every text of the model is a text node: there is no way
// from a text to an element, an attribute or an address but these. A link says where it leads, is opened in a tab of
// its own, and tells nobody where it was followed from. Nothing is loaded. While a text grows, blocks that can change
// no more are left alone.

import { element, onFrame } from "./frame.js";
import { markdown } from "./markdown.js";
import { copyButton } from "./problem.js";

const INLINE = { strong: "strong", emphasis: "em", struck: "s" };

function nodeOfInline(part) {
  if (part.kind === "text") return part.text;
  if (part.kind === "break") return element("br");
  if (part.kind === "code") return element("code", "", part.text);
  if (part.kind === "link") return linkTo(part.url, part.children.map(nodeOfInline));
  return element(INLINE[part.kind], "", ...part.children.map(nodeOfInline));
}

/** A link that says where it leads: beside its words, unless they are the address itself. */
function linkTo(url, words) {
  const link = element("a", "", ...words);
  link.href = url.href;
  link.title = url.href;
  link.target = "_blank";
  link.rel = "noopener noreferrer";
  const said = link.textContent;
  if (said === url.href || `${said}/` === url.href) return link;
  link.append(element("span", "leads", url.host || url.pathname));
  return link;
}

const cell = (name, parts, side) => element(name, side === "left" ? "" : side, ...parts.map(nodeOfInline));

const BLOCKS = {
  paragraph: ({ children }) => element("p", "", ...children.map(nodeOfInline)),
  // The page has two levels of headings of its own above these.
  heading: ({ level, children }) => element(`h${Math.min(level + 2, 6)}`, `h${level}`, ...children.map(nodeOfInline)),
  rule: () => element("hr"),
  quote: ({ children }) => element("blockquote", "", ...children.map(nodeOf)),
  list: ({ start, items }) => {
    const list = element(start === null ? "ul" : "ol");
    list.append(...items.map((item) => element("li", "", ...item.map(nodeOf))));
    if (start !== null && start !== 1) list.start = start;
    return list;
  },
  fence: ({ language, text }) => {
    const head = element("div", "head", element("span", "", language), copyButton(() => text));
    const code = element("pre", "", element("code", "", text));
    code.tabIndex = 0; // so that keys can scroll it
    return element("div", "fence", head, code);
  },
  table: ({ head, sides, rows }) => {
    const row = (name, parts) => element("tr", "", ...parts.map((part, column) => cell(name, part, sides[column])));
    const body = element("tbody", "", ...rows.map((parts) => row("td", parts)));
    return element("div", "table", element("table", "", element("thead", "", row("th", head)), body));
  },
};

function nodeOf(block) {
  return BLOCKS[block.kind](block);
}

/** One text that grows, shown as its Markdown says. It has the methods of `TokenText`. */
export class MarkdownText {
  #text = "";
  /** Where the first block begins that may still change, and how many nodes come before it. */
  #settled = 0;
  #nodes = 0;
  #onDrawn;
  #draw = () => this.#show();

  constructor(label, onDrawn = () => {}) {
    this.#onDrawn = onDrawn;
    this.element = element("div", "markdown");
    this.element.dir = "auto";
    this.element.setAttribute("role", "group");
    this.element.setAttribute("aria-label", label);
  }

  add(pass) {
    this.#text += pass.text;
    onFrame(this.#draw);
  }

  clear() {
    this.#text = "";
    this.#settled = this.#nodes = 0;
    this.element.replaceChildren();
  }

  /** What was rejected is no part of the text. */
  showRejected() {}

  #show() {
    const blocks = markdown(this.#text.slice(this.#settled));
    const all = [...this.element.childNodes];
    for (const node of all.slice(this.#nodes)) node.remove();
    this.element.append(...blocks.map(nodeOf));
    // The last line may become anything, and with it the block before it: all blocks before these two stay.
    const done = Math.max(blocks.length - 2, 0);
    this.#nodes += done;
    this.#settled += blocks[done]?.from ?? 0;
    this.#onDrawn();
  }
}
