// Nodes for the tree of markdown.js, and a text that grows as such nodes.
//
// Elements are created only from the list of names in this file, and all text of the model becomes text nodes: a text
// cannot create any other element, attribute or address. A link shows its destination, opens in a new tab, and sends no
// referrer. Nothing is loaded. While a text grows, blocks that can no longer change are not redrawn.

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

/** A link that shows its destination after its text, unless the text is the address itself. */
function linkTo(url, words) {
  const link = element("a", "", ...words);
  link.href = url.href;
  link.title = url.href;
  link.target = "_blank";
  link.rel = "noopener noreferrer";
  const label = link.textContent;
  if (label === url.href || `${label}/` === url.href) return link;
  link.append(element("span", "leads", url.host || url.pathname));
  return link;
}

const cell = (name, parts, side) => element(name, side === "left" ? "" : side, ...parts.map(nodeOfInline));

const BLOCKS = {
  paragraph: ({ children }) => element("p", "", ...children.map(nodeOfInline)),
  // The page itself has two levels of headings above these.
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
    code.tabIndex = 0; // so that it can be scrolled by keys
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

/** A growing text, rendered as Markdown. It has the methods of `TokenText`. */
export class MarkdownText {
  #text = "";
  /** The position of the first block that may still change, and the number of nodes before it. */
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

  /** Rejected tokens are not part of the text. */
  showRejected() {}

  #show() {
    const blocks = markdown(this.#text.slice(this.#settled));
    const all = [...this.element.childNodes];
    for (const node of all.slice(this.#nodes)) node.remove();
    this.element.append(...blocks.map(nodeOf));
    // The last line may change its meaning, and that of the block before it: all blocks before these two are final.
    const done = Math.max(blocks.length - 2, 0);
    this.#nodes += done;
    this.#settled += blocks[done]?.from ?? 0;
    this.#onDrawn();
  }
}
