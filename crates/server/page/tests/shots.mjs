// Screenshots of the page for inspection: empty, during an answer with a token selected, a finished race, an error, an
// invalid form of the answer, Markdown beside the list of conversations; wide and narrow, light and dark.
// `./run shots FOLDER`.

import { join } from "node:path";
import { ended, launch, open, pointAt, say } from "./browser.mjs";
import { Mock } from "./mock.mjs";

const MARKDOWN = [
  "## A used bicycle\n\nLook at **wear** first, then at `the frame number`; see [a guide](https://example.org/guide).\n\n",
  "1. Chain and sprockets\n   - a ruler tells how far the chain is stretched\n2. Brakes\n\n> Ride it before you pay.\n\n",
  "```python\ndef is_palindrome(word: str) -> bool:\n    return word == word[::-1]  # a long line that scrolls by itself\n```\n\n",
  "| part | price | how long it lasts |\n|---|--:|:-:|\n| chain | 20 | 3000 km |\n| brake pads | 8 | 5000 km |\n",
];
const [folder] = process.argv.slice(2);
const mock = await new Mock().start();
mock.scenario.id = "Qwen3-30B-A3B-Instruct-2507-UD-Q4_K_XL-00001-of-00002";
mock.scenario.others = ["SmolLM2-135M-Instruct"];
const browser = await launch();
for (const [width, height] of [[1280, 900], [360, 740]]) {
  for (const colorScheme of ["light", "dark"]) {
    mock.scenario.passMilliseconds = 10;
    mock.scenario.breakAfter = null;
    const { page, context } = await open(browser, mock.address, { viewport: { width, height }, colorScheme });
    const shot = (name) => page.screenshot({ path: join(folder, `${name}-${width}-${colorScheme}.png`) });
    await page.locator("#send:enabled").waitFor();
    await shot("1-empty");
    await page.evaluate(() => document.querySelector("#rejected").click());
    await say(page, "once upon a time, there was a little dog");
    await page.waitForTimeout(800);
    await pointAt(page.locator("span.t.o1 >> nth=5"));
    await shot("2-stream");
    await ended(page);
    await page.evaluate(() => document.querySelector("#rejected").click());
    await page.locator("#box").fill("what is the best way to learn a language?");
    await page.locator("#race").click();
    await page.locator(".same.yes").waitFor();
    await page.waitForTimeout(200);
    await shot("3-race");
    await page.locator("[name=form][value=schema]").evaluate((radio) => radio.click());
    await page.locator("#schema").evaluate((area) => {
      area.value = '{"type": ';
      area.dispatchEvent(new Event("input"));
    });
    if (width < 500) await page.locator("#panel-button").click();
    await page.locator("#form-problem").scrollIntoViewIfNeeded();
    await shot("6-form");
    if (width < 500) await page.locator("#panel-button").click();
    await page.locator("[name=form][value=none]").evaluate((radio) => radio.click());
    mock.scenario.breakAfter = 60;
    await page.locator("#box").fill("");
    await say(page, "and then?");
    await ended(page);
    await page.waitForTimeout(200);
    await shot("4-error");
    if (width < 500) await page.locator("#panel-button").click();
    else await page.keyboard.press("Escape").then(() => page.locator("#keys-button").click());
    await shot(width < 500 ? "5-settings" : "5-keys");
    if (width < 500) await page.locator("#panel-button").click();
    else await page.keyboard.press("Escape");
    Object.assign(mock.scenario, { breakAfter: null, tokens: MARKDOWN });
    await page.locator("#new").click();
    await page.locator("#box").fill("");
    await page.locator("#markdown").evaluate((box) => box.click());
    await say(page, "What should I look for when I buy a used bicycle?");
    await ended(page);
    await page.locator("#log").evaluate((log) => (log.scrollTop = 0));
    await shot("7-markdown");
    if (width < 500) await page.locator("#list-button").click();
    await shot("8-list");
    mock.scenario.tokens = null;
    await context.close();
  }
}
await browser.close();
await mock.stop();
