// Markdown as models write it, parsed into a tree: headings, paragraphs, code, lists, quotes, tables and rules.
//
// Blocks are parsed line by line. The contents of quotes and list items are parsed in the same way, down to a maximum
// depth, below which they are text; so the time is linear in the length of the text. The syntax is that of CommonMark
// and GitHub's tables, except where models deviate: lists may be indented by any two spaces, and a line end in a
// paragraph is a break. Raw HTML, references, indented code and underlined headings are not supported. Only render.js
// makes nodes of the tree.

import { inline } from "./inline.js";

const DEPTH_MAX = 8;
const COLUMNS_MAX = 64;
const FENCE = /^ *(`{3,}(?=[^`]*$)|~{3,})/;
const HEADING = /^ {0,3}(#{1,6})(?:[ \t]+|$)/;
const RULE = /^ {0,3}(?:(?:\*[ \t]*){3,}|(?:-[ \t]*){3,}|(?:_[ \t]*){3,})$/;
const QUOTE = /^ {0,3}> ?/;
const ITEM = /^( *)([-*+]|\d{1,9}[.)])( +|$)/;

const isBlank = (line) => line.trim() === "";
const indentOf = (line) => line.length - line.trimStart().length;
const startsBlock = (line) =>
  FENCE.test(line) || HEADING.test(line) || RULE.test(line) || QUOTE.test(line) || ITEM.test(line);

/** The blocks of a text, each with `from`, the position of its first line. */
export function markdown(text) {
  const lines = text.split("\n").map((line) => line.replaceAll("\t", "    ").replace("\r", ""));
  const starts = [0];
  for (let at = text.indexOf("\n"); at >= 0; at = text.indexOf("\n", at + 1)) starts.push(at + 1);
  return new Blocks(lines, 0).read().map(({ line, ...block }) => ({ ...block, from: starts[line] }));
}

class Blocks {
  #at = 0;

  constructor(lines, depth) {
    this.lines = lines;
    this.depth = depth;
  }

  read() {
    const found = [];
    while (this.#at < this.lines.length) {
      const line = this.#at;
      if (isBlank(this.lines[line])) this.#at += 1;
      else found.push({ ...this.#block(this.lines[line]), line });
    }
    return found;
  }

  #block(line) {
    const fence = FENCE.exec(line);
    if (fence) return this.#code(fence[1], indentOf(line), line.slice(fence[0].length));
    const heading = HEADING.exec(line);
    if (heading) {
      this.#at += 1;
      const text = withoutClosing(line.slice(heading[0].length).trim());
      return { kind: "heading", level: heading[1].length, children: inline(text) };
    }
    if (RULE.test(line)) {
      this.#at += 1;
      return { kind: "rule" };
    }
    const isShallow = this.depth < DEPTH_MAX;
    if (isShallow && QUOTE.test(line)) return this.#quote();
    if (isShallow && ITEM.test(line)) return this.#list();
    return this.#table() ?? this.#paragraph();
  }

  /** A fence without an end extends to the end of the text, as it does while the text grows. */
  #code(fence, indent, info) {
    const text = [];
    let isClosed = false;
    for (this.#at += 1; this.#at < this.lines.length && !isClosed; this.#at++) {
      const line = this.lines[this.#at];
      const end = line.trim();
      isClosed = end.length >= fence.length && end[0] === fence[0] && end === fence[0].repeat(end.length);
      if (!isClosed) text.push(line.slice(Math.min(indent, indentOf(line))));
    }
    return { kind: "fence", language: info.trim().split(" ", 1)[0], text: text.join("\n") };
  }

  /** A quote includes lines without its mark that continue its paragraph. */
  #quote() {
    const inner = [];
    for (; this.#at < this.lines.length; this.#at++) {
      const line = this.lines[this.#at];
      const mark = QUOTE.exec(line);
      if (!mark && (isBlank(line) || startsBlock(line) || isBlank(inner.at(-1)))) break;
      inner.push(mark ? line.slice(mark[0].length) : line);
    }
    return { kind: "quote", children: this.#within(inner) };
  }

  #within(lines) {
    return new Blocks(lines, this.depth + 1).read().map(({ line, ...block }) => block);
  }

  #list() {
    const [, indent, mark] = ITEM.exec(this.lines[this.#at]);
    const isOrdered = mark.length > 1;
    const items = [];
    for (;;) {
      const item = this.#at < this.lines.length ? ITEM.exec(this.lines[this.#at]) : null;
      const isNext = item && item[2].at(-1) === mark.at(-1) && item[2].length > 1 === isOrdered;
      if (!isNext || Math.abs(item[1].length - indent.length) > 1 || RULE.test(this.lines[this.#at])) break;
      items.push(this.#within(this.#item(item)));
    }
    return { kind: "list", start: isOrdered ? Number.parseInt(mark, 10) : null, items };
  }

  /** The lines of an item without its mark and indentation, and the lines up to the next item. */
  #item([whole, { length: indent }, mark, spaces]) {
    const inside = spaces.length > 4 ? indent + mark.length + 1 : whole.length;
    const inner = [this.lines[this.#at].slice(inside)];
    let blanks = 0;
    let fence = FENCE.exec(inner[0])?.[1] ?? null;
    for (this.#at += 1; this.#at < this.lines.length; this.#at++) {
      const line = this.lines[this.#at];
      if (isBlank(line)) {
        blanks += 1;
        continue;
      }
      const isIn = indentOf(line) > indent + 1;
      if (!isIn && (blanks > 0 || startsBlock(line) || fence)) break;
      for (; blanks > 0; blanks--) inner.push("");
      const text = line.slice(Math.min(inside, indentOf(line)));
      const mark = FENCE.exec(text)?.[1];
      if (mark) fence = fence === null ? mark : mark.startsWith(fence) ? null : fence;
      inner.push(text);
    }
    return inner;
  }

  #table() {
    const [head, ruler] = [this.lines[this.#at], this.lines[this.#at + 1] ?? ""];
    if (!head.includes("|") || !/^[|:\- ]+$/.test(ruler) || !ruler.includes("-")) return null;
    const [names, marks] = [cells(head), cells(ruler)];
    if (names.length !== marks.length || names.length > COLUMNS_MAX) return null;
    if (!marks.every((mark) => /^:?-+:?$/.test(mark))) return null;
    const side = (mark) => ({ "::": "center", "-:": "right" })[mark[0] + mark.at(-1)] ?? "left";
    const rows = [];
    for (this.#at += 2; this.#at < this.lines.length; this.#at++) {
      const line = this.lines[this.#at];
      if (isBlank(line) || !line.includes("|") || FENCE.test(line)) break;
      // Missing cells are not added: many short lines could otherwise become many long rows.
      rows.push(cells(line).slice(0, names.length).map(inline));
    }
    return { kind: "table", head: names.map(inline), sides: marks.map(side), rows };
  }

  #paragraph() {
    const text = [this.lines[this.#at].trim()];
    for (this.#at += 1; this.#at < this.lines.length; this.#at++) {
      const line = this.lines[this.#at];
      // A number at the beginning of a line begins no list, unless it is 1.
      const isNumber = /^ *(?!1[.)])\d+[.)]/.test(line);
      if (isBlank(line) || (this.depth < DEPTH_MAX && startsBlock(line) && !isNumber)) break;
      text.push(line.trim());
    }
    return { kind: "paragraph", children: inline(text.join("\n")) };
  }
}

/** A heading's text without the optional closing `#`. */
function withoutClosing(text) {
  let end = text.length;
  while (text[end - 1] === "#") end -= 1;
  return end === 0 || text[end - 1] === " " ? text.slice(0, end).trimEnd() : text;
}

/** The cells of a line of a table. */
function cells(line) {
  const found = [""];
  const row = line.trim();
  for (let at = row[0] === "|" ? 1 : 0; at < row.length; at++) {
    if (row[at] === "\\" && row[at + 1] === "|") found[found.length - 1] += row[(at += 1)];
    else if (row[at] !== "|") found[found.length - 1] += row[at];
    else if (at + 1 < row.length) found.push("");
  }
  return found.map((cell) => cell.trim());
}
