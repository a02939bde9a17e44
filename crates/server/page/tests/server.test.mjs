// The page against a real server: `FORETOKEN_SERVER` is its address, or the path of a binary, which is started here
// and, at the end, killed during an answer. Without it these tests are skipped.

import assert from "node:assert/strict";
import { spawn } from "node:child_process";
import { after, before, describe, test } from "node:test";
import { EventParser } from "../stream.js";
import { drawn, ended, launch, open, paintsWithin, patience, pointAt, say, shownText } from "./browser.mjs";

const given = process.env.FORETOKEN_SERVER ?? "";
const skip = given === "" ? "FORETOKEN_SERVER is not set" : false;

/** Starts the binary on a free port and waits until it prints its address. */
async function start(binary) {
  const child = spawn(binary, ["serve", "--port", "0"], { stdio: ["ignore", "pipe", "pipe"] });
  const address = await new Promise((found, failed) => {
    let said = "";
    const hear = (part) => {
      said += part;
      const match = /http:\/\/[\w.:[\]]+:\d+/.exec(said);
      if (match) found(match[0]);
    };
    child.stdout.on("data", hear);
    child.stderr.on("data", hear);
    child.on("error", failed);
    child.on("exit", (code) => failed(new Error(`${binary} serve ended with ${code}: ${said}`)));
    const late = () => failed(new Error(`${binary} serve: expected an address within 60 s, found ${said}`));
    setTimeout(late, 60_000).unref();
  });
  return { child, address };
}

describe("with a real server", { skip }, () => {
  let browser;
  let child = null;
  let address = given;

  before(async () => {
    browser = await launch();
    if (!given.startsWith("http")) ({ child, address } = await start(given));
  });
  after(async () => {
    await browser?.close();
    child?.kill();
  });

  /** Sends a text and returns the chunks of the answer, as the server sent them. */
  async function answer(page, text) {
    await page.evaluate(() => {
      const real = window.fetch;
      window.fetch = async (...request) => {
        window.fetch = real;
        const response = await real(...request);
        window.body_ = response.clone().text();
        return response;
      };
    });
    await say(page, text);
    await ended(page);
    const events = new EventParser().push(new TextEncoder().encode(await page.evaluate(() => window.body_)));
    assert.equal(events.at(-1), "[DONE]");
    return events.slice(0, -1).map((event) => JSON.parse(event));
  }

  test("a text is shown as sent, in the colours of its origins", async () => {
    const { page, close } = await open(browser, address);
    await page.locator("#endless").check();
    await page.locator("#max-tokens").fill("80");
    const found = await answer(page, "once upon a time, there was a little dog");
    const choices = found.flatMap(({ choices }) => choices);
    const text = choices.map((choice) => choice.delta?.content ?? choice.text ?? "").join("");
    assert.equal(await shownText(page), text);
    const tokens = choices.flatMap(({ provenance }) => provenance ?? []);
    assert.ok(tokens.length > 4, `${tokens.length} tokens`);
    assert.ok(tokens.map((token) => token.text).join("").startsWith(text), "the tokens make up the text");
    // Tokens that end within a character are shown with the token that completes it, in its colour.
    const shown = await page.locator(".t").evaluateAll((all) =>
      all.map(({ tokens, colour }) => ({ tokens: tokens.length, author: tokens.at(-1).origin, colour })));
    const held = tokens.slice(0, shown.reduce((count, piece) => count + piece.tokens, 0));
    let next = 0;
    for (const piece of shown) assert.equal(piece.author, held[(next += piece.tokens) - 1].origin, `token ${next}`);
    const pairs = new Set(shown.map(({ author, colour }) => `${author} in ${colour}`));
    assert.equal(new Set(shown.map(({ author }) => author)).size, pairs.size, `${[...pairs]}`);
    assert.equal(new Set(shown.map(({ colour }) => colour)).size, pairs.size, `${[...pairs]}`);
    assert.ok(text.startsWith(held.slice(0, -1).map((token) => token.text).join("")), "shown tokens make up the text");
    await pointAt(page.locator(".t >> nth=2"));
    assert.match(await page.locator("#detail").innerText(), /token\s+\d+[^]*pass\s+\d+[^]*p\s+[01]\./);
    await page.locator(".text").focus();
    await page.keyboard.press("ArrowRight");
    assert.ok(await page.locator("#detail").isVisible());
    await page.locator("#rejected").check();
    await drawn(page);
    const drafted = choices.flatMap((choice) => choice.drafted ?? []);
    assert.equal(await page.locator("del").count(), drafted.filter(({ accepted }) => !accepted).length);
    await answer(page, "and then?");
    assert.equal(await page.locator("article").count(), 2);
    assert.equal(await page.locator(".problem").count(), 0);
    await close();
  });

  test("a race gives the same text", async () => {
    const { page, close } = await open(browser, address);
    await page.locator("#send:enabled").waitFor();
    await page.locator("#endless").check();
    await page.locator("#max-tokens").fill("200");
    await page.locator("#box").fill("once upon a time, there was a little dog");
    await page.locator("#race").click();
    await page.locator(".same, .race .problem").waitFor({ timeout: 60_000 });
    assert.match(await page.locator(".verdict").innerText(), /same text: yes/);
    console.log(`race: ${(await page.locator(".verdict .faster").innerText())}`);
    await close();
  });

  test("every choice of drafters and promise works", async () => {
    const { page, close } = await open(browser, address);
    await page.locator("#send:enabled").waitFor();
    await page.locator("#max-tokens").fill("12");
    const names = await page.locator("#drafters input").evaluateAll((boxes) => boxes.map(({ value }) => value));
    for (const verify of ["exact", "rejection", "block"]) {
      await page.locator(`[name=verify][value=${verify}]`).check();
      await answer(page, "hello");
      assert.equal(await page.locator(".problem").count(), 0, verify);
      await page.locator("#new").click();
    }
    for (const name of names.filter((name) => name !== "prediction")) {
      for (const other of names) await page.getByLabel(other, { exact: true }).setChecked(other === name);
      await answer(page, "hello");
      assert.equal(await page.locator(".problem").count(), 0, name);
      await page.locator("#new").click();
    }
    await close();
  });

  test("an answer can be stopped, and the next request works", async () => {
    const { page, close } = await open(browser, address);
    await page.locator("#send:enabled").waitFor();
    await page.locator("#max-tokens").fill("2000");
    await page.locator("#endless").check();
    await say(page, "tell a long story");
    await page.locator(".t >> nth=5").waitFor();
    await page.keyboard.press("Escape");
    await ended(page);
    assert.match(await page.locator(".foot .told").innerText(), /stopped/);
    await page.locator("#max-tokens").fill("10");
    await answer(page, "hello");
    assert.equal(await page.locator(".problem").count(), 0);
    await close();
  });

  test("the page is painted within 100 ms", async () => {
    await paintsWithin(100 * patience, browser, address);
  });

  test("a server that is killed during an answer", { skip: given.startsWith("http") }, async () => {
    const { page, close } = await open(browser, address);
    await page.locator("#send:enabled").waitFor();
    await page.locator("#max-tokens").fill("2000");
    await page.locator("#endless").check();
    await say(page, "tell a long story");
    await page.locator(".t >> nth=5").waitFor();
    child.removeAllListeners("exit");
    child.kill("SIGKILL");
    await page.locator(".problem").waitFor();
    assert.match(await page.locator(".problem").innerText(), /stopped in the middle of the text/);
    assert.ok((await shownText(page)).length > 0);
    assert.equal(await page.locator("#box").inputValue(), "tell a long story");
    await close(/Failed to load resource/);
  });
});
