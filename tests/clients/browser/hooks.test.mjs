// useStream of both generations in Chromium (CHROMIUM), from a page of another origin than the
// server (CALLBOARD_URL).

import assert from "node:assert/strict";
import { once } from "node:events";
import { mkdtemp, rm } from "node:fs/promises";
import { createServer } from "node:http";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { after, before, test } from "node:test";
import { fileURLToPath } from "node:url";

import { Client } from "@langchain/langgraph-sdk";
import { build } from "esbuild";
import { chromium } from "playwright-core";

const apiUrl = process.env.CALLBOARD_URL;
const client = new Client({ apiUrl, apiKey: null });
const FLAGS = [
  "--no-sandbox",
  "--disable-gpu",
  "--disable-quic",
  "--no-first-run",
  "--disable-background-networking",
  "--disable-component-update",
  "--disable-sync",
];

let server, profile, browser, origin;

before(async () => {
  const script = await bundle();
  server = createServer((request, response) => {
    const isScript = request.url === "/page.js";
    response.setHeader("Content-Type", isScript ? "text/javascript" : "text/html; charset=utf-8");
    response.end(isScript ? script : '<body></body><script src="/page.js"></script>');
  }).listen(0, "127.0.0.1");
  await once(server, "listening");
  origin = `http://127.0.0.1:${server.address().port}`;
  profile = await mkdtemp(join(tmpdir(), "chromium-"));
  browser = await chromium.launchPersistentContext(profile, {
    executablePath: process.env.CHROMIUM,
    args: FLAGS,
  });
});

after(async () => {
  await browser?.close();
  server?.close();
  if (profile) await rm(profile, { recursive: true, force: true, maxRetries: 5 });
});

async function bundle() {
  const { outputFiles } = await build({
    entryPoints: [fileURLToPath(new URL("page.jsx", import.meta.url))],
    bundle: true,
    write: false,
    format: "iife",
    jsx: "automatic",
    define: { "process.env.NODE_ENV": '"production"' },
    logLevel: "error",
  });
  return outputFiles[0].text;
}

// A page, with what a person does on it.
class Conversation {
  static async open(hook, query = {}) {
    const page = await browser.newPage();
    page.setDefaultTimeout(60_000);
    const problems = [];
    page.on("console", (line) => line.type() === "error" && problems.push(line.text()));
    page.on("pageerror", (error) => problems.push(String(error)));
    await page.goto(`${origin}/?${new URLSearchParams({ api: apiUrl, hook, ...query })}`);
    return new Conversation(page, problems);
  }

  constructor(page, problems) {
    this.page = page;
    this.problems = problems;
  }

  async press(button, text) {
    if (text !== undefined) await this.page.fill("input", text);
    await this.page.click(`text="${button}"`);
  }

  // Waits until the page shows it.
  async shows(selector, text) {
    await this.page
      .locator(selector, { hasText: new RegExp(`^${text}$`) })
      .first()
      .waitFor({ state: "attached" })
      .catch(async (error) => {
        const body = await this.page.innerText("body");
        throw new Error(`no ${selector} with "${text}" in:\n${body}\n${this.problems}`, {
          cause: error,
        });
      });
  }

  async messages() {
    return this.page.locator("li").allInnerTexts();
  }

  get threadId() {
    return new URL(this.page.url()).searchParams.get("thread");
  }

  async close() {
    await this.page.close();
    const own = this.problems.filter((text) => !text.includes("told to"));
    assert.deepEqual(own, []);
  }
}

/** Of the latest run; undefined before there is one: a hook names a thread that its run will make. */
async function status(threadId) {
  const [run] = await client.runs.list(threadId).catch((error) => {
    if (error.status !== 404) throw error;
    return [];
  });
  return run?.status;
}

async function eventually(check) {
  for (let n = 0; n < 1200; n++) {
    if (await check()) return;
    await new Promise((resolve) => setTimeout(resolve, 50));
  }
  assert.fail(`not in time: ${check}`);
}

for (const hook of ["legacy", "sse", "websocket"]) {
  test(`${hook}: words come one by one, and a reload shows the past`, async () => {
    const page = await Conversation.open(hook);
    await page.press("Send", "tell me something");
    await page.shows("li", "You said: tell me something");
    await page.shows("#status", "idle");
    const shown = await page.page.evaluate(() => window.shown);
    const growing = shown.filter((text) => text && "You said: tell me something".startsWith(text));
    assert.ok(growing.length > 2, `word by word: ${JSON.stringify(shown)}`);
    await page.page.reload();
    await page.shows("li", "You said: tell me something");
    assert.deepEqual(await page.messages(), [
      "tell me something",
      "You said: tell me something",
    ]);
    await page.press("Send", "more");
    await page.shows("li", "You said: more");
    assert.equal((await page.messages()).length, 4);
    await page.close();
  });

  test(`${hook}: a question is asked, also after a reload, and answered`, async () => {
    const page = await Conversation.open(hook);
    await page.press("Send", "ask me");
    await page.shows("#question", "ask me");
    await page.shows("#status", "idle");
    await page.page.reload();
    await page.shows("#question", "ask me");
    await page.press("Answer", "yes");
    await page.shows("li", "You said: yes");
    await page.shows("#status", "idle");
    await page.shows("#question", "");
    await page.close();
  });

  test(`${hook}: stop stops the run, and a reload finds one again`, async () => {
    const page = await Conversation.open(hook);
    await page.press("Send", "wait for me");
    await page.shows("#status", "busy");
    await eventually(async () => page.threadId && (await status(page.threadId)) === "running");
    await page.page.reload();
    await page.shows("#status", "busy");
    if (hook === "legacy") {
      await page.shows("#news", "[1-9][0-9]*");
      await page.press("Stop");
    } else {
      // This hook stops the runs that it has started itself.
      const [run] = await client.runs.list(page.threadId);
      await client.runs.cancel(page.threadId, run.run_id);
    }
    await page.shows("#status", "idle");
    await eventually(async () => (await status(page.threadId)) === "interrupted");
    await page.press("Send", "wait again");
    await page.shows("#status", "busy");
    await eventually(async () => (await status(page.threadId)) === "running");
    await page.press("Stop");
    await page.shows("#status", "idle");
    await eventually(async () => (await status(page.threadId)) === "interrupted");
    await page.close();
  });

  test(`${hook}: a failure is shown`, async () => {
    const page = await Conversation.open(hook);
    await page.press("Send", "fail");
    await page.shows("#error", ".*told to.*");
    await page.shows("#status", "idle");
    await page.close();
  });
}
