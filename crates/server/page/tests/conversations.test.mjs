// The page against the mock: stored conversations and their list, Markdown, examples, choice of models, full context.

import assert from "node:assert/strict";
import { after, afterEach, before, beforeEach, describe, test } from "node:test";
import { contrasts, drawn, ended, launch, open, say, shownText } from "./browser.mjs";
import { Mock, PLAIN_SCENARIO } from "./mock.mjs";

const FAILED_LOAD = /Failed to load resource/;

let browser;
let mock;
let current;

before(async () => {
  browser = await launch();
  mock = await new Mock().start();
});
after(async () => {
  await browser?.close();
  await mock?.stop();
});
beforeEach(() => {
  mock.scenario = { ...PLAIN_SCENARIO };
  [mock.requests, mock.opened] = [[], []];
});
afterEach(async () => {
  const opened = current;
  current = null;
  await opened?.context.close();
});

async function visit(options) {
  current = await open(browser, mock.address, options);
  await current.page.locator("#send:enabled, .problem").first().waitFor();
  return current;
}

const titles = (page) => page.locator("#conversations .open").allInnerTexts();
const colours = (page) => page.locator(".t").evaluateAll((all) => all.map(({ className }) => className));
const again = async (page) => {
  await page.reload();
  await page.locator("#send:enabled").waitFor();
  await drawn(page);
};

describe("conversations", () => {
  test("a reload shows the conversation in its colours, and it can be continued", async () => {
    const { page, close } = await visit();
    await say(page, "tell me of dogs");
    await ended(page);
    const [text, before, line] = [await shownText(page), await colours(page), await page.locator(".foot .told").innerText()];
    assert.ok(before.some((name) => name !== "t o0"));
    await again(page);
    assert.equal(await page.locator(".said").innerText(), "tell me of dogs");
    assert.equal(await shownText(page), text);
    assert.deepEqual(await colours(page), before);
    assert.equal(await page.locator(".foot .told").innerText(), line);
    await page.locator(".text").focus();
    await page.keyboard.press("ArrowRight");
    assert.match(await page.locator("#detail").innerText(), /pass\s+0\s+its probabilities were not kept/);
    await say(page, "and of cats");
    await ended(page);
    const sent = mock.requests[1].body.messages.map(({ content }) => content);
    assert.deepEqual(sent, ["tell me of dogs", text, "and of cats"]);
    assert.deepEqual(await titles(page), ["tell me of dogs"]);
    await again(page);
    assert.equal(await page.locator("article").count(), 2);
    await page.getByRole("button", { name: "Write anew" }).click();
    await ended(page);
    assert.deepEqual(mock.requests[2].body.messages.map(({ content }) => content), sent);
    await close();
  });

  test("an answer that is incomplete when the page is left is stored", async () => {
    mock.scenario.passMilliseconds = 20;
    const { page, close } = await visit();
    await say(page, "a long one");
    await page.locator(".t >> nth=8").waitFor();
    mock.scenario.passMilliseconds = 0;
    await again(page);
    assert.ok((await shownText(page)).length > 10);
    assert.match(await page.locator(".foot .told").innerText(), /left while it was written/);
    await close();
  });

  test("the list: opening, creating, renaming, deleting one and deleting all", async () => {
    const { page, close } = await visit();
    page.on("dialog", (dialog) => dialog.accept());
    for (const text of ["the first one", "the second one"]) {
      await page.locator("#new").click();
      await say(page, text);
      await ended(page);
    }
    assert.equal(mock.requests[1].body.messages.length, 1, "a new conversation has no earlier messages");
    assert.deepEqual(await titles(page), ["the second one", "the first one"]);
    await page.getByRole("button", { name: "the first one", exact: true }).click();
    assert.equal(await page.locator(".said").innerText(), "the first one");
    assert.equal(await page.locator("#conversations [aria-current]").innerText(), "the first one");
    await page.getByRole("button", { name: "Rename: the first one" }).click();
    await page.keyboard.type("<b>Dogs</b>");
    await page.keyboard.press("Enter");
    assert.deepEqual(await titles(page), ["the second one", "<b>Dogs</b>"]);
    await say(page, "go on");
    await ended(page);
    assert.deepEqual(await titles(page), ["<b>Dogs</b>", "the second one"]);
    await page.getByRole("button", { name: "Rename: <b>Dogs</b>" }).click();
    await page.keyboard.press("Delete");
    await page.keyboard.press("Enter");
    assert.deepEqual(await titles(page), ["the first one", "the second one"]);
    mock.scenario.passMilliseconds = 20;
    await say(page, "slowly");
    await page.locator("article:last-of-type .t >> nth=4").waitFor();
    await page.getByRole("button", { name: "the second one", exact: true }).click();
    await page.waitForFunction(() => document.querySelector(".said")?.textContent === "the second one");
    await page.getByRole("button", { name: "the first one", exact: true }).click();
    await page.waitForFunction(() => document.querySelectorAll("article").length === 3);
    assert.match(await page.locator("article:last-of-type .foot .told").innerText(), /stopped/);
    await page.getByRole("button", { name: "Delete: the first one" }).click();
    await page.waitForFunction(() => !document.querySelector("article"));
    assert.deepEqual(await titles(page), ["the second one"]);
    await page.locator("#delete-all").click();
    await page.waitForFunction(() => !document.querySelector("#conversations li"));
    const kept = await page.evaluate(() => Object.keys(localStorage).filter((key) => key.includes("conversation")));
    assert.deepEqual(kept, []);
    await again(page);
    assert.equal(await page.locator("article").count(), 0);
    await close();
  });

  test("a browser that forbids storage, or has no room: one message, and the page works", async () => {
    const forbid = () => {
      const throws = { get: () => { throw new DOMException("no", "SecurityError"); } };
      Object.defineProperty(window, "localStorage", throws);
      Object.defineProperty(window, "sessionStorage", throws);
    };
    const fill = () => (Storage.prototype.setItem = () => { throw new DOMException("full", "QuotaExceededError"); });
    for (const [break_, words] of [[forbid, /forbids/], [fill, /no room/]]) {
      const { page, context, close } = await visit();
      await context.addInitScript(break_);
      await page.goto(mock.address);
      for (const text of ["one", "two"]) {
        await say(page, text);
        await ended(page);
      }
      assert.match(await page.locator("#not-kept").innerText(), words);
      assert.equal(await page.locator("#not-kept .problem").count(), 1);
      assert.equal(await page.locator("article").count(), 2);
      await close();
    }
  });
});

const ANSWER = [
  "# Title\n\nSome **bold** and `code` and a [link](https://example.org/page).\n\n", "- one\n  - two\n- three\n\n",
  "```python\nprint('<b>')\n", "```\n\n| a | b |\n|---|--:|\n| 1 | 2 |\n\n> quoted\n\n",
];
const HOSTILE = [
  "<script>document.title='broken'</script>\n<img src=x onerror=\"document.title='broken'\">\n\n",
  "[x](javascript:document.title='broken') [y](data:text/html,z) ![i](http://127.0.0.1:1/i.png)\n\n",
  "```\"onmouseover=x <b>\nopen\n", "*".repeat(100_000), "\n> ".repeat(3000),
];

describe("Markdown", () => {
  test("it is shown if switched on, the switch is remembered, and switching off restores the text", async () => {
    mock.scenario.tokens = ANSWER;
    const { page, close } = await visit();
    await say(page, "hello");
    await ended(page);
    assert.equal(await shownText(page), ANSWER.join(""));
    await page.locator("#markdown").check();
    await drawn(page);
    for (const [selector, text] of Object.entries({
      ".markdown h3": "Title", ".markdown strong": "bold", ".markdown p code": "code", ".markdown li li": "two",
      ".fence .head span": "python", ".fence pre": "print('<b>')", ".markdown td.right": "2", blockquote: "quoted",
    })) assert.equal(await page.locator(selector).innerText(), text, selector);
    const link = page.locator(".markdown a");
    assert.equal(await link.textContent(), "linkexample.org", "the destination is shown");
    assert.deepEqual(await link.evaluate(({ href, rel, target }) => [href, rel, target]), [
      "https://example.org/page", "noopener noreferrer", "_blank",
    ]);
    await again(page);
    await page.locator(".markdown h3").waitFor();
    mock.scenario.fragment = 7;
    await say(page, "anew"); // while an answer is streamed
    await ended(page);
    await page.waitForFunction(() => document.querySelectorAll(".markdown blockquote").length === 2);
    const [one, other] = await page.locator(".markdown").evaluateAll((all) => all.map((text) => text.innerHTML));
    assert.equal(one, other);
    await page.locator("#markdown").uncheck();
    await drawn(page);
    assert.equal(await shownText(page), ANSWER.join(""));
    await close();
  });

  test("a text streamed in chunks of any size is the same as a complete one", async () => {
    const text = ANSWER.join("") + "1. a\n2. b\n\n   c\n\nx\n---\nlast *open\n* * *\n~~~\nend";
    mock.scenario.tokens = [text];
    const { page, close } = await visit();
    await page.locator("#markdown").check();
    await say(page, "at once");
    await ended(page);
    mock.scenario.tokens = [...text];
    mock.scenario.passMilliseconds = 3;
    await say(page, "in pieces");
    await ended(page);
    const shown = () => page.locator(".markdown").evaluateAll((all) => all.map((text) => text.innerHTML));
    await page.waitForFunction(() => {
      const [one, other] = [...document.querySelectorAll(".markdown")].map((text) => text.textContent.length);
      return one === other;
    });
    const [one, other] = await shown();
    assert.equal(one, other);
    await close();
  });

  test("hostile texts create only Markdown's elements, load nothing and take little time", async () => {
    mock.scenario.tokens = HOSTILE;
    const { page, close } = await visit();
    await page.locator("#markdown").check();
    const started = performance.now();
    await say(page, "hello");
    await ended(page);
    await page.locator(".fence").waitFor();
    assert.ok(performance.now() - started < 10_000);
    assert.equal(await page.title(), "foretoken");
    assert.equal(await page.locator(".markdown :is(script, img, b, iframe, style, svg)").count(), 0);
    assert.deepEqual(await page.locator(".markdown a").evaluateAll((all) => all.map(({ href }) => href)), [
      "http://127.0.0.1:1/i.png",
    ]);
    const names = await page.locator(".markdown *").evaluateAll((all) =>
      [...new Set(all.flatMap((node) => node.getAttributeNames()))].sort());
    assert.deepEqual(names, ["class", "href", "rel", "tabindex", "target", "title", "type"]);
    await close();
  });

  test("code is copied as it is", async () => {
    mock.scenario.tokens = ANSWER;
    const { page, context, close } = await visit();
    await context.grantPermissions(["clipboard-read", "clipboard-write"]);
    await page.locator("#markdown").check();
    await say(page, "hello");
    await ended(page);
    await page.locator(".fence button").click();
    await page.getByText("Copied").waitFor();
    assert.equal(await page.evaluate(() => navigator.clipboard.readText()), "print('<b>')");
    await close();
  });

  for (const colorScheme of ["light", "dark"]) {
    test(`it can be read (${colorScheme})`, async () => {
      mock.scenario.tokens = ANSWER;
      const { page, close } = await visit({ colorScheme });
      await page.locator("#markdown").check();
      await say(page, "hello");
      await ended(page);
      const found = await contrasts(page, [
        ".markdown p", ".markdown a", ".leads", ".markdown p code", ".fence .head span", ".fence pre", ".markdown th",
        "#conversations .open", "#conversations .tool", "#list .told", "#list h2",
      ]);
      for (const [selector, ratio] of found) assert.ok(ratio >= 4.5, `${selector}: ${ratio}`);
      await close();
    });
  }
});

describe("models", () => {
  test("examples depend on the model", async () => {
    for (const [id, chat, words] of [["demo-target", true, /little dog/], ["other", true, /Explain/], ["base", false, /Once/]]) {
      Object.assign(mock.scenario, { id, chat });
      const { page, context } = await visit();
      assert.match(await page.locator(".example").first().innerText(), words);
      await context.close();
    }
  });

  test("a model that is not loaded is loaded when chosen, requests name it, and it is remembered", async () => {
    mock.scenario.others = ["another"];
    const { page, close } = await visit();
    assert.equal(await page.locator("#model").innerText(), "demo");
    assert.deepEqual(await page.locator("#models option").allInnerTexts(), ["demo", "another (not loaded)"]);
    await say(page, "hello");
    await ended(page);
    await page.locator("#models").selectOption("another");
    await page.locator("#send:enabled").waitFor();
    assert.deepEqual(mock.opened, ["another"]);
    assert.equal(await page.locator("#model").innerText(), "another");
    await say(page, "and you?");
    await ended(page);
    assert.deepEqual(mock.requests.map(({ body }) => body.model), ["demo", "another"]);
    assert.equal(mock.requests[1].body.messages.length, 3, "the conversation continues");
    await again(page);
    assert.equal(await page.locator("#model").innerText(), "another");
    mock.scenario.others = ["gone"];
    await again(page);
    mock.scenario.refuse = "model gone: no memory";
    await page.locator("#models").selectOption("gone");
    await page.locator(".problem").getByText("model gone: no memory").waitFor();
    await page.locator("#send:enabled").waitFor();
    assert.equal(await page.locator("#model").innerText(), "demo", "a model that cannot be loaded is not used");
    await close(FAILED_LOAD);
  });

  test("a long name is shown in full on a phone", async () => {
    for (const others of [[], ["another"]]) {
      mock.scenario.id = "Some-Organisation_A-Model-With-A-Name-That-Is-Long-235B-A22B-Instruct-2507.Q4_K_M-00001-of-00003";
      mock.scenario.others = others;
      const { page, context } = await visit({ viewport: { width: 360, height: 640 } });
      const name = page.locator("#model");
      assert.equal((await name.innerText()).replaceAll("\n", ""), mock.scenario.id);
      const parts = await name.evaluate((name) => {
        const range = document.createRange();
        range.selectNodeContents(name);
        return [...range.getClientRects()].map(({ left, right, top, bottom }) => ({ left, right, top, bottom }));
      });
      const { bottom } = await page.locator("#head").evaluate((head) => head.getBoundingClientRect());
      for (const part of parts) assert.ok(part.left >= 0 && part.right <= 360 && part.bottom <= bottom, JSON.stringify(part));
      assert.ok(await page.evaluate(() => document.documentElement.scrollWidth <= innerWidth));
      await context.close();
    }
  });
});

describe("lengths", () => {
  test("without a limit the request has none, and a full context is reported", async () => {
    mock.scenario.finish = "length";
    const { page, close } = await visit();
    await say(page, "hello");
    await ended(page);
    assert.equal("max_tokens" in mock.requests[0].body, false);
    assert.match(await page.locator(".problem").innerText(), /context of 4096 tokens is full/);
    await page.locator("#max-tokens").fill("256");
    await say(page, "and then?");
    await ended(page);
    assert.equal(await page.locator(".problem").count(), 1);
    assert.match(await page.locator("article:last-of-type .foot .told").innerText(), /as long as allowed/);
    await page.locator("#max-tokens").fill("-1");
    Object.assign(mock.scenario, { finish: null, refuse: "messages: expected at most 4095 tokens, found 5000" });
    mock.scenario.more = { code: "context_length_exceeded", n_prompt_tokens: 5000, n_ctx: 4096 };
    await say(page, "too much");
    await ended(page);
    assert.equal("max_tokens" in mock.requests[2].body, false);
    const line = page.locator("article:last-of-type .problem");
    assert.match(await line.innerText(), /context of 4096 tokens: with all that was said it has 5000/);
    await line.getByRole("button", { name: "New conversation" }).click();
    await page.waitForFunction(() => !document.querySelector("article"));
    assert.equal(await page.locator("#box").inputValue(), "too much", "the question is not lost");
    await close(FAILED_LOAD);
  });

  test("a race ends by itself", async () => {
    const { page, close } = await visit();
    await page.locator("#box").fill("a race");
    await page.locator("#race").click();
    await page.locator(".same.yes").waitFor();
    assert.deepEqual(mock.requests.map(({ body }) => body.max_tokens), [512, 512]);
    assert.match(await page.locator(".race").innerText(), /without memory of earlier texts/);
    await close();
  });
});
