// Stored conversations, without a browser: a storage with little room, one that forbids access, and entries of other
// pages.

import assert from "node:assert/strict";
import { test } from "node:test";
import { examplesFor } from "../examples.js";
import { MOST, packed, SIZE_MAX, Store, titleOf, unpacked } from "../store.js";

/** A storage like that of browsers, with room for this many characters. */
class Shelf {
  #entries = new Map();

  constructor(room = Infinity) {
    this.room = room;
  }

  get length() {
    return this.#entries.size;
  }

  get size() {
    return [...this.#entries].reduce((sum, [key, value]) => sum + key.length + value.length, 0);
  }

  key(index) {
    return [...this.#entries.keys()][index] ?? null;
  }

  getItem(key) {
    return this.#entries.get(key) ?? null;
  }

  setItem(key, value) {
    if (this.size - (this.getItem(key)?.length ?? 0) + value.length + key.length > this.room) throw new Error("quota");
    this.#entries.set(key, value);
  }

  removeItem(key) {
    this.#entries.delete(key);
  }
}

function storeOn(shelf) {
  const reported = [];
  return { reported, store: new Store(() => shelf, (words) => reported.push(words)) };
}

const turn = (text) => ({ user: "a question", text, isChat: true, isDone: true, line: "" });
const conversation = (changed, turns = [turn("an answer")]) => ({ title: `of ${changed}`, isNamed: false, changed, turns });

test("conversations are listed, the latest first, until they are deleted", () => {
  const { store, reported } = storeOn(new Shelf());
  assert.ok(store.write("one", conversation(1)));
  assert.ok(store.write("two", conversation(2)));
  assert.ok(store.write("one", conversation(3)));
  store.remember("markdown", "on");
  assert.deepEqual(store.list().map(({ id, title }) => [id, title]), [["one", "of 3"], ["two", "of 2"]]);
  assert.deepEqual(store.read("one"), conversation(3));
  store.remove("one");
  assert.deepEqual([store.read("one"), store.list().length], [null, 1]);
  store.removeAll();
  assert.deepEqual([store.list(), store.recall("markdown"), reported], [[], "on", []]);
});

test("number and size are limited: the oldest are deleted", () => {
  const shelf = new Shelf();
  const { store, reported } = storeOn(shelf);
  for (let at = 0; at < MOST + 5; at++) assert.ok(store.write(`c${at}`, conversation(at)));
  assert.deepEqual(store.list().map(({ changed }) => changed), Array.from({ length: MOST }, (_, at) => MOST + 4 - at));
  for (let at = 0; at < 9; at++) store.write(`large${at}`, conversation(1000 + at, [turn("x".repeat(SIZE_MAX / 3))]));
  assert.ok(shelf.size < 1.1 * SIZE_MAX, `${shelf.size}`);
  assert.deepEqual(store.list().map(({ id }) => id).slice(0, 2), ["large8", "large7"]);
  assert.deepEqual(reported, []);
});

test("a browser with less room: the oldest are deleted, but no more than needed", () => {
  const { store, reported } = storeOn(new Shelf(3000));
  for (let at = 0; at < 20; at++) assert.ok(store.write(`c${at}`, conversation(at)), `${at}`);
  assert.ok(store.list().length < 20 && store.list()[0].id === "c19");
  const before = store.list().length;
  assert.equal(store.write("large", conversation(99, [turn("x".repeat(5000))])), false);
  assert.equal(store.write("large", conversation(99, [turn("x".repeat(5000))])), false);
  assert.equal(reported.length, 1, "it is reported once");
  assert.match(reported[0], /not kept/);
  const { store: full } = storeOn(Object.assign(new Shelf(), { setItem: () => { throw new Error("quota"); } }));
  assert.equal(full.write("x", conversation(1)), false);
  assert.ok(before > 0);
  const shelf = new Shelf();
  const other = storeOn(shelf).store;
  for (let at = 0; at < 9; at++) other.write(`c${at}`, conversation(at));
  shelf.room = 0; // filled by another page of the same address
  assert.equal(other.write("new", conversation(10)), false);
  assert.ok(other.list().length >= 5, "no more is deleted than needed");
});

test("a conversation that is too long is stored without its origins", () => {
  const { store } = storeOn(new Shelf());
  const long = turn("y".repeat(SIZE_MAX / 2));
  assert.ok(store.write("one", conversation(1, [{ ...long, told: { origins: ["z".repeat(SIZE_MAX)], passes: [] } }])));
  assert.deepEqual(store.read("one").turns, [long]);
});

test("a browser that forbids storage: it is reported once, and nothing fails", () => {
  const reported = [];
  const store = new Store(() => { throw new Error("SecurityError"); }, (words) => reported.push(words));
  assert.equal(store.write("one", conversation(1)), false);
  assert.equal(store.write("one", conversation(2)), false);
  store.remember("markdown", "on");
  store.remove("one");
  store.removeAll();
  assert.deepEqual([store.list(), store.read("one"), store.recall("markdown")], [[], null, null]);
  assert.equal(reported.length, 1);
  assert.match(reported[0], /forbids/);
});

test("entries of other pages are ignored", () => {
  const shelf = new Shelf();
  const { store } = storeOn(shelf);
  const bad = ["", "x", "\n", "null\n[]", "{}\n[]", '{"title":5,"changed":1}\n[]', '{"title":"a"}\n[]', '{"title":"a","changed":1}\n{'];
  bad.forEach((value, at) => shelf.setItem(`foretoken-conversation-${at}`, value));
  for (const { id } of store.list()) assert.equal(store.read(id), null);
  for (let at = 0; at < bad.length; at++) store.read(String(at));
  shelf.setItem("foretoken-conversation-mixed", '{"title":"a","changed":1}\n[null,5,{"user":1},{"user":"u","text":"t"}]');
  assert.deepEqual(store.read("mixed").turns, [{ user: "u", text: "t" }]);
  store.removeAll();
  assert.equal(shelf.length, 0);
});

test("origins are stored in few characters, and checked when they are read", () => {
  const token = (text, origin) => ({ text, origin });
  const passes = [
    { text: "a bc", tokens: [token("a", "target"), token(" b", "draft"), token("c", "target")] },
    { text: "", tokens: [token("", "target")] },
    { text: "😀!", tokens: [token("😀", "suffix")] },
  ];
  const told = JSON.parse(JSON.stringify(packed(passes)));
  assert.deepEqual(told, { origins: ["target", "draft", "suffix"], passes: [[1, 0, 2, 1, 1, 0], [], [2, 2, 1, 2]] });
  const back = unpacked("a bc😀!", told);
  assert.deepEqual(back.map(({ text }) => text), ["a bc", "", "😀!"]);
  assert.deepEqual(back[0].tokens.map(({ text, origin, pass }) => [text, origin, pass]), [
    ["a", "target", 0], [" b", "draft", 0], ["c", "target", 0],
  ]);
  const whole = [{ text: "abc", tokens: [], drafted: [] }];
  const wrong = [undefined, null, 5, {}, { passes: 3 }, { passes: [null] }, { passes: [[3, 0]] }, { passes: ["ab"] },
    { passes: [[9, 0]], origins: ["a"] }, { passes: [[-1, 0, 4, 0]], origins: ["a"] }, { passes: [[2, 0]], origins: ["a"] },
    { passes: [[3, 0]], origins: [{}] }, { passes: [[1.5, 0, 1.5, 0]], origins: ["a"] }];
  for (const told of wrong) assert.deepEqual(unpacked("abc", told), whole, JSON.stringify(told));
});

test("titles are the first words", () => {
  assert.equal(titleOf("  a\n\nb  c "), "a b c");
  assert.equal(titleOf(" \n"), "A text");
  assert.equal(titleOf("word ".repeat(30)), `${"word ".repeat(11)}word…`);
  assert.equal(titleOf("x".repeat(500)), `${"x".repeat(60)}…`);
});

test("examples depend on the model", () => {
  const of = (id, chat) => examplesFor({ id, meta: { chat } }).join("\n");
  assert.match(of("demo-target", true), /little dog/);
  assert.equal(of("demo-draft", false), of("demo-target", true));
  for (const id of ["SmolLM2-135M-Instruct.Q4_1", "demo-target-2", "my-demo-target"]) {
    assert.match(of(id, true), /Explain .*\./);
    assert.match(of(id, false), /Once upon a time, in/);
    assert.doesNotMatch(of(id, true) + of(id, false), /little dog/);
  }
});
