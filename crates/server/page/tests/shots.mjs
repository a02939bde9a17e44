// Pictures of the page, to look at: empty, in the middle of a text with a token pointed at, a race at its end, a
// failure, a form that is none; wide and narrow, light and dark. `./run shots FOLDER`.

import { join } from "node:path";
import { ended, launch, open, pointAt, say } from "./browser.mjs";
import { Mock } from "./mock.mjs";

const [folder] = process.argv.slice(2);
const mock = await new Mock().start();
const browser = await launch();
for (const [width, height] of [[1400, 900], [390, 844]]) {
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
    await context.close();
  }
}
await browser.close();
await mock.stop();
