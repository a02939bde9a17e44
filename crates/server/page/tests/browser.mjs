// Headless Chromium with a monitored page: `close` fails if there were errors on the console, violations of the content
// security policy, or requests to other hosts.

import assert from "node:assert/strict";
import { chromium } from "playwright-core";

export async function launch() {
  const executablePath = process.env.CHROMIUM;
  if (!executablePath) throw new Error("CHROMIUM: expected the path of a browser, found nothing; start ./run");
  return chromium.launch({ executablePath, args: ["--no-sandbox", "--disable-gpu"] });
}

/** Points at something that may be broken across lines: at the middle of its widest part. */
export async function pointAt(locator) {
  await locator.scrollIntoViewIfNeeded();
  const [x, y] = await locator.evaluate((element) => {
    const [widest] = [...element.getClientRects()].sort((a, b) => b.width - a.width);
    return [widest.x + widest.width / 2, widest.y + widest.height / 2];
  });
  await locator.page().mouse.move(x, y);
}

/** Opens the page at `address`; `options` are those of a browser context. */
export async function open(browser, address, options = {}) {
  const context = await browser.newContext({ viewport: { width: 1400, height: 900 }, ...options });
  context.setDefaultTimeout(10_000);
  const page = await context.newPage();
  const errors = [];
  const elsewhere = [];
  page.on("console", (message) => message.type() === "error" && errors.push(message.text()));
  page.on("pageerror", (error) => errors.push(String(error)));
  page.on("request", (request) => {
    const { origin, protocol } = new URL(request.url());
    if (origin !== new URL(address).origin && protocol !== "data:") elsewhere.push(request.url());
  });
  await context.addInitScript(() => {
    document.addEventListener("securitypolicyviolation", (event) => {
      console.error(`content security policy: ${event.violatedDirective} ${event.blockedURI}`);
    });
  });
  await page.goto(address);
  /** `expected`: a pattern of the browser's messages about requests that fail on purpose. */
  const close = async (expected = null) => {
    await context.close();
    assert.deepEqual(errors.filter((error) => !expected?.test(error)), [], "errors on the console");
    assert.deepEqual(elsewhere, [], "requests to other hosts");
  };
  return { page, context, close };
}

/** Types into the box and sends, only with keys. */
export async function say(page, text) {
  await page.locator("#send:enabled").waitFor();
  await page.focus("#box");
  await page.keyboard.type(text);
  await page.keyboard.press("Enter");
}

/** Waits until the last answer has ended, also by an error, and all of it is drawn. */
export async function ended(page) {
  await page.locator("article:last-of-type .foot > *").first().waitFor();
  await page.locator("body:not(.busy)").waitFor();
  await drawn(page);
}

/** Waits until two frames in a row have added no token. */
export async function drawn(page) {
  await page.evaluate(async () => {
    const frame = () => new Promise(requestAnimationFrame);
    const tokens = () => document.getElementsByClassName("t").length;
    for (let before = -1, still = 0; still < 2; before = tokens()) {
      await frame();
      still = tokens() === before ? still + 1 : 0;
    }
  });
}

/** The text of the last answer in the document, without rejected drafts. */
export async function shownText(page) {
  return page.evaluate(() => {
    const copy = [...document.querySelectorAll("article:last-of-type .text")].at(-1).cloneNode(true);
    for (const rejected of copy.querySelectorAll("del")) rejected.remove();
    return copy.textContent;
  });
}

/** The WCAG 2 contrast of each selector's text to its background: `[selector, ratio]`. */
export async function contrasts(page, selectors) {
  return page.evaluate((selectors) => {
    const canvas = new OffscreenCanvas(1, 1).getContext("2d", { willReadFrequently: true });
    const rgba = (colour) => {
      canvas.clearRect(0, 0, 1, 1);
      canvas.fillStyle = colour;
      canvas.fillRect(0, 0, 1, 1);
      return [...canvas.getImageData(0, 0, 1, 1).data];
    };
    const linear = (value) => (value <= 0.04045 ? value / 12.92 : ((value + 0.055) / 1.055) ** 2.4);
    const luminance = ([r, g, b]) =>
      0.2126 * linear(r / 255) + 0.7152 * linear(g / 255) + 0.0722 * linear(b / 255);
    const behind = (element) => {
      for (let at = element; at; at = at.parentElement) {
        const colour = rgba(getComputedStyle(at).backgroundColor);
        if (colour[3] === 255) return colour;
      }
      return [255, 255, 255, 255];
    };
    return selectors.map((selector) => {
      const element = document.querySelector(selector);
      if (!element) return [selector, 0];
      const [one, other] = [rgba(getComputedStyle(element).color), behind(element)].map(luminance);
      return [selector, (Math.max(one, other) + 0.05) / (Math.min(one, other) + 0.05)];
    });
  }, selectors);
}

/** The factor by which time limits are extended on slow machines (FORETOKEN_PATIENCE). */
export const patience = Number(process.env.FORETOKEN_PATIENCE ?? 1);

/**
 * Fails where the first paint takes longer. A first visit, which also starts a process of the browser, is not counted;
 * of those after it the least is, as whatever else the machine does only adds to it. Nothing comes from a cache.
 */
export async function paintsWithin(milliseconds, browser, address) {
  const { page, close } = await open(browser, address);
  await (await page.context().newCDPSession(page)).send("Network.setCacheDisabled", { cacheDisabled: true });
  const times = [];
  for (let visit = 0; visit < 7; visit++) {
    await page.locator("#send:enabled").waitFor();
    await page.waitForTimeout(50); // let the tasks of the previous visit end
    await page.goto(address);
    await page.waitForFunction(() => performance.getEntriesByName("first-contentful-paint").length > 0);
    times.push(await page.evaluate(() => performance.getEntriesByName("first-contentful-paint")[0].startTime));
  }
  await close();
  console.log(`first paint: ${times.map((time) => time.toFixed(0)).join(", ")} ms`);
  assert.ok(Math.min(...times) < milliseconds, `first paint: ${times} ms, expected less than ${milliseconds}`);
}
