// The parts of the page that need no browser: the parser of event streams, the figures, splitting a text by its tokens.

import assert from "node:assert/strict";
import { readFile } from "node:fs/promises";
import { test } from "node:test";
import { ticks } from "../chart.js";
import { Figures, firstDifference } from "../figures.js";
import { passOf, requestFor } from "../requests.js";
import { chunks, EventParser, ServerError } from "../stream.js";
import { cut, Palette, rejectedBefore } from "../tokens.js";
import { duration, short, visible } from "../words.js";
import { chance } from "./mock.mjs";

const bytes = (text) => new TextEncoder().encode(text);

/** The events of a stream whose bytes arrive in chunks of these lengths, repeated. */
function eventsOf(text, lengths) {
  const parser = new EventParser();
  const whole = bytes(text);
  const events = [];
  for (let at = 0, turn = 0; at < whole.length; turn++) {
    const length = lengths[turn % lengths.length];
    events.push(...parser.push(whole.slice(at, at + length)));
    at += length;
  }
  return events;
}

test("events do not depend on how their bytes are split", () => {
  const stream =
    "\uFEFF: ping\n\ndata: {\"a\":\"ü€😀\"}\n\ndata:without a space\r\n\r\ndata: one\ndata: two\n\n" +
    "event: x\nid: 1\ndata:  two spaces\n\n\n\ndata\n\ndata: old mac\r\rdata: [DONE]\n\ndata: never ended";
  const expected = ['{"a":"ü€😀"}', "without a space", "one\ntwo", " two spaces", "", "old mac", "[DONE]"];
  for (let length = 1; length < 40; length++) assert.deepEqual(eventsOf(stream, [length]), expected, `${length}`);
  const next = chance(5);
  for (let round = 0; round < 200; round++) {
    const lengths = Array.from({ length: 9 }, () => 1 + Math.floor(next() * 7));
    assert.deepEqual(eventsOf(stream, lengths), expected, lengths.join());
  }
});

test("a carriage return and a line feed in two chunks are one line end", () => {
  const parser = new EventParser();
  const parts = ["data: a\r", "\ndata: b\r", "\n\r", "\n"];
  assert.deepEqual(parts.flatMap((part) => parser.push(bytes(part))), ["a\nb"]);
});

/** Replaces `fetch` by one answer while `work` runs. */
async function answering(response, work) {
  const real = globalThis.fetch;
  globalThis.fetch = async () => {
    if (response instanceof Error) throw response;
    return response;
  };
  try {
    return await work();
  } finally {
    globalThis.fetch = real;
  }
}

const collect = async () => {
  const found = [];
  for await (const chunk of chunks("x", {}, {})) found.push(chunk);
  return found;
};

test("failures of a request become errors of their kind", async () => {
  const failing = async (response, kind, more = {}) => {
    const error = await answering(response, collect).then(() => null, (error) => error);
    assert.ok(error instanceof ServerError, `${kind}: ${error}`);
    assert.equal(error.kind, kind);
    for (const [key, value] of Object.entries(more)) assert.equal(error[key], value);
  };
  const body = JSON.stringify({ error: { message: "temperature: expected a number" } });
  await failing(new TypeError("failed to fetch"), "gone");
  await failing(new Response(body, { status: 400 }), "refused", { message: "temperature: expected a number" });
  await failing(new Response("<html>", { status: 502 }), "refused", { message: "status 502" });
  await failing(new Response(body, { status: 401 }), "key");
  await failing(new Response(body, { status: 429, headers: { "Retry-After": "7" } }), "busy", { seconds: 7 });
  await failing(new Response(body, { status: 429 }), "busy", { seconds: 1 });
  await failing(new Response("data: {}\n\n"), "broken");
  await failing(new Response("data: {\n\n"), "failed");
  await failing(new Response('data: {"error":{"message":"out of pages"}}\n\n'), "failed", { message: "out of pages" });
  assert.deepEqual(await answering(new Response('data: {"a":1}\n\ndata: [DONE]\n\n'), collect), [{ a: 1 }]);
});

test("chats and completions make equivalent requests", () => {
  const lengths = { maxTokens: 9, nMax: 4 };
  const settings = { type: "auto", verify: "exact", temperature: 0.5, ...lengths, system: "be kind", prediction: "" };
  const dialogue = { turns: [{ user: "a", answer: "b" }], text: "c" };
  const chat = requestFor({ id: "m", meta: { chat: true } }, dialogue, settings, 3);
  assert.equal(chat.address, "v1/chat/completions");
  assert.deepEqual(chat.body.messages.map(({ role, content }) => `${role} ${content}`), [
    "system be kind", "user a", "assistant b", "user c",
  ]);
  assert.deepEqual(chat.body.speculative, { type: "auto", verify: "exact", n_max: 4 });
  const plain = requestFor({ id: "m", meta: { chat: false } }, dialogue, settings, 3);
  assert.equal(plain.address, "v1/completions");
  assert.equal(plain.body.prompt, "abc");
  assert.equal(plain.body.messages, undefined);
  assert.equal(passOf({ choices: [{ text: "x" }] }).text, "x");
  assert.equal(passOf({ choices: [{ delta: { content: "x" } }] }).text, "x");
  assert.equal(passOf({ choices: [{ delta: { role: "assistant", content: "" } }] }), null);
  assert.equal(passOf({ choices: [], usage: {} }), null);
});

const token = (text, origin = "target", depth = 0) => ({ token: 1, text, origin, depth, pass: 0, p: 0.5, q: null });
const draft = (depth, accepted, drafter = "draft") => ({ drafter, depth, token: 2, text: "x", accepted });

test("figures count tokens, drafts and depths as servers do", () => {
  const figures = new Figures(1000);
  assert.equal(figures.firstToken, null);
  assert.equal(figures.speed, null);
  assert.equal(figures.acceptedLength, null);
  figures.add({ tokens: [token("a")], drafted: [] }, 1050);
  const tree = [draft(1, true, "suffix"), draft(1, false), draft(2, true, "suffix"), draft(3, false)];
  figures.add({ tokens: [token("b", "suffix", 1), token("c", "suffix", 2), token("d")], drafted: tree }, 1150);
  figures.add({ tokens: [token("e")], drafted: [draft(1, false)] }, 1250);
  assert.equal(figures.firstToken, 50);
  assert.equal(figures.tokens, 5);
  assert.equal(figures.speed, (4 * 1000) / 200);
  assert.equal(figures.acceptedLength, 1 + 2 / 2);
  assert.equal(figures.tokensPerPass, 5 / 3);
  assert.deepEqual(figures.positions, [
    { drafted: 2, accepted: 1 }, { drafted: 1, accepted: 1 }, { drafted: 1, accepted: 0 },
  ]);
  assert.deepEqual([...figures.byOrigin], [["target", 3], ["suffix", 2]]);
  figures.end(1300);
  assert.deepEqual([figures.ended, figures.speed], [1300, 20]);
  figures.end(1300, { predicted_per_second: 25 });
  assert.equal(figures.speed, 25, "the server's own speed is used");
});

test("the speed of the last second ignores older tokens", () => {
  const figures = new Figures(0);
  for (let at = 0; at <= 2000; at += 100) figures.add({ tokens: [token("a"), token("b")], drafted: [] }, at);
  assert.equal(figures.speedAt(2000), 20);
  assert.equal(figures.speedAt(2500), 10);
  assert.equal(figures.speedAt(5000), 0);
  const young = new Figures(0);
  young.add({ tokens: [token("a")], drafted: [] }, 100);
  young.add({ tokens: [token("a"), token("b")], drafted: [] }, 300);
  assert.equal(young.speedAt(300), 10);
});

test("a text is split by its tokens and never changed by them", () => {
  const texts = (found) => found.pieces.map((piece) => piece.text);
  assert.deepEqual(texts(cut("a bc", [token("a"), token(" b"), token("c")])), ["a", " b", "c"]);
  const emoji = cut("x😀", [token("x"), token(""), token("😀")]);
  assert.deepEqual(texts(emoji), ["x", "😀"]);
  assert.equal(emoji.pieces[1].tokens.length, 2);
  const held = cut("", [token("st")]);
  assert.deepEqual(texts(held), []);
  assert.deepEqual(texts(cut("stop", [token("op")], held.waiting)), ["st", "op"]);
  const special = cut("a", [token("a"), token("</s>")]);
  assert.deepEqual(texts(special), ["a"]);
  assert.equal(special.waiting.length, 1);
  assert.deepEqual(texts(cut("plain", [])), ["plain"]);
  const next = chance(2);
  for (let round = 0; round < 500; round++) {
    const letters = () => "ab€"[Math.floor(next() * 3)].repeat(Math.floor(next() * 3));
    const tokens = Array.from({ length: 4 }, () => token(letters()));
    const text = tokens.map(({ text }) => text).join("").slice(Math.floor(next() * 3));
    const found = cut(text, tokens, [token(letters())]);
    assert.equal(texts(found).join(""), text);
    assert.equal(found.pieces.flatMap((piece) => piece.tokens).length + found.waiting.length, 5);
  }
});

test("rejected drafts are before the token that replaced them", () => {
  const pass = {
    tokens: [token("a", "draft", 1), token("b")],
    drafted: [draft(1, true), draft(1, false), draft(3, false), draft(2, false)],
  };
  assert.deepEqual(rejectedBefore(pass, 1).map(({ depth }) => depth), [1]);
  assert.deepEqual(rejectedBefore(pass, 2).map(({ depth }) => depth), [2, 3]);
});

test("the first difference is found in bytes", () => {
  assert.equal(firstDifference("aü", "aü"), null);
  assert.equal(firstDifference("aü", "aö").at, 2);
  assert.equal(firstDifference("abc", "ab").at, 2);
  assert.equal(firstDifference("abc", "ab").other, "ab");
  assert.equal(firstDifference("\u00e9", "e\u0301").at, 0);
});

test("numbers, characters, colours and ticks", () => {
  assert.deepEqual([0, 0.5, 3.14159, 99.95, 12345, null, NaN].map((number) => short(number)), [
    "0.00", "0.50", "3.14", "100.0", "12345", "–", "–",
  ]);
  assert.equal(duration(4.25), "4.3 ms");
  assert.equal(duration(2440), "2.44 s");
  assert.equal(visible("a\u200b\u202e\n\t"), "a<U+200B><U+202E>⏎⇥");
  const palette = new Palette();
  assert.deepEqual(["target", "a", "b", "a", "target"].map((name) => palette.of(name)), [0, 1, 2, 1, 0]);
  for (let name = 0; name < 20; name++) assert.ok(palette.of(`more${name}`) <= 8);
  assert.deepEqual(ticks(2.44, 6), [0, 0.5, 1, 1.5, 2, 2.5]);
  assert.deepEqual(ticks(10, 4), [0, 5, 10]);
});

// Simulates the lack of one of the three kinds of cones: Machado, Oliveira and Fernandes 2009, severity 1.
const SIGHTS = {
  all: [[1, 0, 0], [0, 1, 0], [0, 0, 1]],
  "no red": [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]],
  "no green": [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.01182, 0.04294, 0.968881]],
  "no blue": [[1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602], [0.004733, 0.691367, 0.3039]],
};

/** A colour (#rrggbb) in CIE Lab, as perceived. */
function seen(colour, sight) {
  const part = (at) => Number.parseInt(colour.slice(at, at + 2), 16) / 255;
  const toLinear = (value) => (value <= 0.04045 ? value / 12.92 : ((value + 0.055) / 1.055) ** 2.4);
  const linear = [1, 3, 5].map(part).map(toLinear);
  const times = (row, values) => row.reduce((sum, factor, index) => sum + factor * values[index], 0);
  const cones = sight.map((row) => Math.min(Math.max(times(row, linear), 0), 1));
  const xyz = [[0.4339, 0.3762, 0.1899], [0.2126, 0.7152, 0.0722], [0.0177, 0.1095, 0.8728]];
  const curve = (value) => (value > 0.008856 ? Math.cbrt(value) : 7.787 * value + 16 / 116);
  const [x, y, z] = xyz.map((row) => curve(times(row, cones)));
  return [116 * y - 16, 500 * (x - y), 200 * (y - z)];
}

test("the colours of drafters are distinct, also for colour-blind people", async () => {
  const style = await readFile(new URL("../style.css", import.meta.url), "utf8");
  const [light, dark] = style.split("@media (prefers-color-scheme: dark)");
  for (const [scheme, part] of Object.entries({ light, dark })) {
    const names = ["text", "o1", "o2", "o3", "o4", "o5", "o6", "o7"];
    const colours = names.map((name) => new RegExp(`--${name}: (#[0-9a-f]{6})`).exec(part)[1]);
    for (const [sight, matrix] of Object.entries(SIGHTS)) {
      const all = colours.map((colour) => seen(colour, matrix));
      for (let one = 0; one < all.length; one++) {
        for (let other = 0; other < one; other++) {
          const distance = Math.hypot(...all[one].map((value, index) => value - all[other][index]));
          assert.ok(distance > 10, `${scheme}, ${sight}: ${names[one]} and ${names[other]} are ${distance} apart`);
        }
      }
    }
  }
});
