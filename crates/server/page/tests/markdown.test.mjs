// The Markdown parser, without a browser: the supported syntax, what stays text, and that the time for hostile texts is
// linear in their length.

import assert from "node:assert/strict";
import { test } from "node:test";
import { inline, safeAddress } from "../inline.js";
import { markdown } from "../markdown.js";
import { chance } from "./mock.mjs";

const patience = Number(process.env.FORETOKEN_PATIENCE ?? 1);

/** A tree as a short string: `kind(children)`, text as it is. */
function short(node) {
  if (Array.isArray(node)) return node.map(short).join("");
  if (node.kind === "text") return node.text;
  if (node.kind === "break") return "⏎";
  if (node.kind === "code") return `code(${node.text})`;
  if (node.kind === "link") return `link[${node.url.href}](${short(node.children)})`;
  if (node.kind === "fence") return `fence[${node.language}](${node.text})`;
  if (node.kind === "list") return `list[${node.start ?? "-"}](${node.items.map((item) => `·${short(item)}`).join("")})`;
  if (node.kind === "heading") return `h${node.level}(${short(node.children)})`;
  if (node.kind === "rule") return "rule";
  if (node.kind === "paragraph") return `p(${short(node.children)})`;
  if (node.kind !== "table") return `${node.kind}(${short(node.children)})`;
  return `table[${node.sides}](${[node.head, ...node.rows].map((row) => row.map(short).join("|")).join("/")})`;
}

const holds = (read, cases) => {
  for (const [text, expected] of cases) assert.equal(short(read(text)), expected, JSON.stringify(text));
};

test("emphasis, code and breaks", () => {
  holds(inline, [
    ["a *b* _c_ **d** __e__ ***f*** ~~g~~", "a emphasis(b) emphasis(c) strong(d) strong(e) strong(emphasis(f)) struck(g)"],
    ["**a *b* c** *d **e** f*", "strong(a emphasis(b) c) emphasis(d strong(e) f)"],
    ["2 * 3 * 4, snake_case_name, ~5", "2 * 3 * 4, snake_case_name, ~5"],
    ["**open, *a **b* c", "**open, emphasis(a **b) c"],
    ["\\*a\\* \\\\ \\q", "*a* \\ \\q"],
    ["`a*b*` ``a`b`` `` ` `` `open", "code(a*b*) code(a`b) code(`) `open"],
    ["\\```a``", "`code(a)"],
    ["\\``a`", "`code(a)"],
    ["a\nb<br>c<br/>d", "a⏎b⏎c⏎d"],
    ["**** ** __", "**** ** __"],
  ]);
});

test("links lead only to the web and to mailboxes", () => {
  holds(inline, [
    ["[a *b*](https://x.org/p \"title\")", "link[https://x.org/p](a emphasis(b))"],
    ["[w](https://x.org/a_(b))", "link[https://x.org/a_(b)](w)"],
    ["[m](mailto:a@b.org), <https://x.org>", "link[mailto:a@b.org](m), link[https://x.org/](https://x.org)"],
    ["see https://x.org/a_b_c. (http://y.org)", "see link[https://x.org/a_b_c](https://x.org/a_b_c). " +
      "(link[http://y.org/](http://y.org))"],
    ["![cat](https://x.org/cat.png)", "link[https://x.org/cat.png](cat)"],
    ["[a](<https://x.org/ b>) [b] [c](", "[a](<link[https://x.org/](https://x.org/) b>) [b] [c]("],
    ["[https://a.org](https://b.org)", "link[https://b.org/](https://a.org)"],
  ]);
  const bad = ["javascript:alert(1)", " javascript:alert(1)", "JaVaScRiPt:alert(1)", "java\tscript:alert(1)", "data:text/html,x",
    "vbscript:x", "file:///etc/passwd", "blob:x", "//x.org", "/path", "page/app.js", "&#106;avascript:x",
    "\u0001javascript:x", "view-source:https://x.org", ""];
  for (const address of bad) {
    assert.equal(safeAddress(address), null, address);
    const tree = short(inline(`[x](${address}) [y](<${address}>)`));
    assert.ok(tree.startsWith("[x](") && !/link\[(?!https:)/.test(tree), tree);
  }
});

test("blocks", () => {
  holds((text) => markdown(text), [
    ["# A ##\n\ntext\nmore\n## B\n#no", "h1(A)p(text⏎more)h2(B)p(#no)"],
    ["```js\nlet a;\n\n  b\n```\nafter", "fence[js](let a;\n\n  b)p(after)"],
    ["~~~\n```\n~~~~\nafter", "fence[](```)p(after)"],
    ["text\n```py\nopen\n# still", "p(text)fence[py](open\n# still)"],
    ["- a\n- b\n  - c\n    1. d\n    2. e\n- f", "list[-](·p(a)·p(b)list[-](·p(c)list[1](·p(d)·p(e)))·p(f))"],
    ["1. a\n  - b\n\n2. c\n   more\nlazy", "list[1](·p(a)list[-](·p(b))·p(c⏎more⏎lazy))"],
    ["3) c\n4) d\n\ntext", "list[3](·p(c)·p(d))p(text)"],
    ["* a\n\n  b\n\n  ```\n  x\n\n    y\n  ```\n* c", "list[-](·p(a)p(b)fence[](x\n\n  y)·p(c))"],
    ["1. a\n```\ncode\n```\n2. b", "list[1](·p(a))fence[](code)list[2](·p(b))"],
    ["> a\n> > b\nlazy\n\nafter", "quote(p(a)quote(p(b⏎lazy)))p(after)"],
    ["a\n---\n* * *\n- - -", "p(a)rulerulerule"],
    ["| a | b |\n|---|:-:|\n| 1 | *2* |\n| x\\|y |\ntext", "table[left,center](a|b/1|emphasis(2)/x|y)p(text)"],
    ["a | b\n---|--:\n1 | 2", "table[left,right](a|b/1|2)"],
    ["a | b\nno ruler", "p(a | b⏎no ruler)"],
    ["in the year\n1984. It was", "p(in the year⏎1984. It was)"],
    ["<div onclick=x>\n<script>y</script>", "p(<div onclick=x>⏎<script>y</script>)"],
    ["", ""],
    ["\r\n- a\r\n- b\r\n", "list[-](·p(a)·p(b))"],
  ]);
  assert.deepEqual(markdown("\na\n\n- b\n").map(({ from }) => from), [1, 4]);
});

const HOSTILE = {
  stars: "*", underscores: "_", "stars apart": "*a ", "stars and letters": "a*", "open strong": "**a ", mixed: "*_a",
  tildes: "~~~", "tildes and a tick": ["~", "`"], ticks: "`", "odd ticks": "`a``b```c", brackets: "[", "closed brackets": "]",
  "open links": "[a](", "empty links": "[](", "links within links": "[a](b", "link titles": "[a](b \"", angles: "<",
  "angle links": "](<", addresses: "http://[", "long address": ["http://", "a"], "h's": "h", quotes: ">", "quotes apart": "> ",
  lists: "- ", "lists on lines": "- a\n", "deep lists": Array.from({ length: 400 }, (_, depth) => `${" ".repeat(2 * depth)}- a\n`).join(""),
  "quotes on lines": "> > > > > > > > > > a\n", fences: "```\n", "open fences": "~~~~\n```a\n", pipes: "|", tables: "|a|b|\n|-|-|\n",
  rulers: ["a|b\n", "-|"], hashes: "#", headings: "# #", blanks: " \n", spaces: " ", numbers: "1. ", escapes: "\\", breaks: "<br>",
  "nested links": "![", "rules that are none": ["- ", "x"], "code in items": "- ```\n",
};

/** Milliseconds that parsing takes, the least of some runs. */
function timeOf(text) {
  let least = Infinity;
  for (let round = 0; round < 2; round++) {
    const started = performance.now();
    markdown(text);
    least = Math.min(least, performance.now() - started);
  }
  return least;
}

for (const [name, unit] of Object.entries(HOSTILE)) {
  test(`hostile: ${name}`, () => {
    const [first, again] = Array.isArray(unit) ? unit : ["", unit];
    const ofLength = (length) => (first + again.repeat(Math.ceil(length / again.length))).slice(0, length);
    for (const ending of ["", "`", ")"]) {
      const [some, more] = [25_000, 100_000].map((length) => timeOf(ofLength(length) + ending));
      assert.ok(more < 8 * some + 150, `${some} ms for 25 kB, ${more} ms for 100 kB`); // the square would be 16
      assert.ok(more < 500 * patience, `${more} ms for 100 kB`);
    }
  });
}

test("no text is lost", () => {
  const parts = ["a", " ", "\n", "*", "_", "**", "`", "```", "[", "](", ")", "https://x.org", "<", ">", "- ", "1. ", "|", "#", "~~", "\\"];
  const next = chance(11);
  const letters = (text) => text.replace(/[^a-z]/g, "").replaceAll("br", "");
  for (let round = 0; round < 3000; round++) {
    const text = Array.from({ length: 24 }, () => parts[Math.floor(next() * parts.length)]).join("");
    const found = JSON.stringify(markdown(text), (key, value) => (key === "url" ? String(value) : value));
    const count = (of) => (of.match(/a/g) ?? []).length;
    const tree = short(markdown(text));
    assert.ok(count(tree) >= count(letters(text)) || found.includes("url") || found.includes("language"), `${text}\n${tree}`);
  }
});

test("the depth is limited", () => {
  const depthOf = (blocks) =>
    Math.max(0, ...blocks.map(({ children, items }) => 1 + depthOf(items?.flat() ?? children ?? [])));
  for (const text of [">".repeat(1000), "- ".repeat(1000), HOSTILE["deep lists"], "*a **b ".repeat(500)]) {
    assert.ok(depthOf(markdown(text)) < 24);
  }
});
