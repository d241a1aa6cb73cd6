// The JavaScript SDK against a running server, named by CALLBOARD_URL.

import assert from "node:assert/strict";
import { randomUUID } from "node:crypto";
import { test as timeless } from "node:test";

import { Client } from "@langchain/langgraph-sdk";

const apiUrl = process.env.CALLBOARD_URL;
const client = new Client({ apiUrl, apiKey: null });

const test = (name, ...rest) => {
  const [options, body] = rest.length === 2 ? rest : [{}, rest[0]];
  timeless(name, { timeout: 60_000, ...options }, body);
};
const say = (content) => ({ messages: [{ role: "user", content }] });
const newThread = async () => (await client.threads.create()).thread_id;
const all = async (parts) => Array.fromAsync?.(parts) ?? collect(parts);

async function collect(parts) {
  const found = [];
  for await (const part of parts) found.push(part);
  return found;
}

const of = (parts, event) => parts.filter((part) => part.event === event).map((part) => part.data);

test("assistants", async () => {
  const [assistant] = await client.assistants.search({ graphId: "chat" });
  assert.equal(assistant.metadata.created_by, "system");
  const schemas = await client.assistants.getSchemas(assistant.assistant_id);
  assert.ok(schemas.input_schema.properties.messages);
  const drawing = await client.assistants.getGraph(assistant.assistant_id, { xray: true });
  assert.ok(drawing.nodes.some((node) => node.id === "speak:say"));

  const made = await client.assistants.create({ graphId: "chat", name: "mine" });
  const changed = await client.assistants.update(made.assistant_id, { metadata: { a: 1 } });
  assert.equal(changed.version, 2);
  const versions = await client.assistants.getVersions(made.assistant_id);
  assert.deepEqual(versions.map((one) => one.version), [2, 1]);
  await client.assistants.setLatest(made.assistant_id, 1);
  assert.equal((await client.assistants.get(made.assistant_id)).version, 1);
  assert.equal(typeof (await client.assistants.count()), "number");
  await client.assistants.delete(made.assistant_id);
  await assert.rejects(client.assistants.get(made.assistant_id), { status: 404 });
});

test("threads", async () => {
  const mark = randomUUID();
  const thread = await client.threads.create({ metadata: { mark } });
  await client.threads.update(thread.thread_id, { metadata: { more: true } });
  const [found] = await client.threads.search({ metadata: { mark } });
  assert.deepEqual(found.metadata, { mark, more: true });
  assert.equal(found.status, "idle");
  assert.equal(await client.threads.count({ metadata: { mark } }), 1);

  await client.runs.wait(thread.thread_id, "chat", { input: say("hello") });
  const state = await client.threads.getState(thread.thread_id);
  assert.deepEqual(state.next, []);
  const history = await client.threads.getHistory(thread.thread_id);
  assert.deepEqual(history.map((one) => one.metadata.step), [2, 1, 0, -1]);
  await client.threads.updateState(thread.thread_id, { values: { answer: "x" }, asNode: "ask" });
  assert.deepEqual((await client.threads.getState(thread.thread_id)).next, ["speak"]);
  const copy = await client.threads.copy(thread.thread_id);
  assert.equal((await client.threads.getState(copy.thread_id)).values.answer, "x");
  await client.threads.delete(thread.thread_id);
  await assert.rejects(client.threads.get(thread.thread_id), { status: 404 });
});

test("a stream of every kind of event", async () => {
  const threadId = await newThread();
  const created = [];
  const parts = await all(
    client.runs.stream(threadId, "chat", {
      input: say("hello"),
      streamMode: ["values", "updates", "messages-tuple", "custom"],
      streamSubgraphs: true,
      onRunCreated: (run) => created.push(run),
    }),
  );
  assert.equal(parts[0].event, "metadata");
  assert.deepEqual(created, [{ run_id: parts[0].data.run_id, thread_id: threadId }]);
  assert.deepEqual(of(parts, "custom"), [{ heard: "hello" }]);
  assert.deepEqual(of(parts, "updates").map((data) => Object.keys(data)[0]), ["listen", "speak"]);
  const inner = parts.find((part) => part.event.startsWith("updates|speak:"));
  assert.deepEqual(Object.keys(inner.data), ["say"]);
  const values = of(parts, "values").at(-1);
  assert.equal(values.messages.at(-1).content, "You said: hello");
  const chunks = parts.filter((part) => part.event.split("|")[0] === "messages");
  assert.equal(chunks.map(({ data: [chunk] }) => chunk.content).join(""), "You said: hello");
  assert.ok(chunks.every(({ data: [chunk] }) => chunk.id === values.messages.at(-1).id));
});

test("a wait, and a failure", async () => {
  const values = await client.runs.wait(null, "chat", { input: say("hello") });
  assert.equal(values.messages.at(-1).content, "You said: hello");
  await assert.rejects(client.runs.wait(null, "chat", { input: say("fail") }), /told to/);
  const parts = await all(client.runs.stream(null, "chat", { input: say("fail") }));
  assert.deepEqual(of(parts, "error"), [{ error: "ValueError", message: "told to" }]);
});

test("a join, and joins of streams with a past", async () => {
  const threadId = await newThread();
  const run = await client.runs.create(threadId, "chat", {
    input: say("hello"),
    streamMode: ["updates", "custom"],
    streamResumable: true,
  });
  const values = await client.runs.join(threadId, run.run_id);
  assert.equal(values.messages.at(-1).content, "You said: hello");
  const parts = await all(client.runs.joinStream(threadId, run.run_id, { lastEventId: "-1" }));
  assert.deepEqual(parts.map((part) => part.event), ["metadata", "custom", "updates", "updates"]);
  const rest = await all(
    client.runs.joinStream(threadId, run.run_id, { lastEventId: parts[1].id }),
  );
  assert.deepEqual(rest, parts.slice(2));
});

test("a stream whose connection is cut goes on by itself", async () => {
  const threadId = await newThread();
  const asked = [];
  const cut = async (url, init) => {
    const answer = await fetch(url, init);
    asked.push(`${init.method ?? "GET"} ${new URL(url).pathname}`);
    const isFirst = init.method === "POST" && String(url).endsWith("/runs/stream");
    return isFirst ? withoutItsEnd(answer) : answer;
  };
  const shaky = new Client({ apiUrl, apiKey: null, callerOptions: { fetch: cut } });
  const parts = await all(
    shaky.runs.stream(threadId, "chat", {
      input: say("hello"),
      streamMode: ["updates", "custom"],
      streamResumable: true,
    }),
  );
  assert.deepEqual(parts.map((part) => part.event), ["metadata", "custom", "updates", "updates"]);
  const runId = parts[0].data.run_id;
  assert.ok(asked.includes(`GET /threads/${threadId}/runs/${runId}/stream`), asked.join("\n"));
});

// Lets two events through, then breaks the connection.
function withoutItsEnd(answer) {
  let seen = "";
  const broken = new TransformStream({
    transform(chunk, controller) {
      seen += new TextDecoder().decode(chunk);
      const frames = seen.split(/\r?\n\r?\n/);
      controller.enqueue(chunk);
      if (frames.length > 2) controller.terminate();
    },
  });
  return new Response(answer.body.pipeThrough(broken), answer);
}

test("a cancel", async () => {
  const threadId = await newThread();
  const stream = client.runs.stream(threadId, "chat", { input: say("wait"), streamMode: "custom" });
  const first = (await stream.next()).value;
  while (!("waited" in (await stream.next()).value.data));
  const runId = first.data.run_id;
  await assert.rejects(
    client.runs.create(threadId, "chat", { input: say("x"), multitaskStrategy: "reject" }),
    { status: 409 },
  );
  await client.runs.cancel(threadId, runId, true);
  assert.equal((await client.runs.get(threadId, runId)).status, "interrupted");
  await all(stream);
  assert.equal((await client.runs.list(threadId)).length, 1);
});

test("a client that leaves a stream stops its run if it says so", async () => {
  const threadId = await newThread();
  const controller = new AbortController();
  const stream = client.runs.stream(threadId, "chat", {
    input: say("wait"),
    streamMode: "custom",
    onDisconnect: "cancel",
    signal: controller.signal,
  });
  const runId = (await stream.next()).value.data.run_id;
  while (!("waited" in (await stream.next()).value.data));
  controller.abort();
  await all(stream).catch(() => {});
  await client.runs.join(threadId, runId);
  assert.equal((await client.runs.get(threadId, runId)).status, "interrupted");
});

test("a question and its answer", async () => {
  const threadId = await newThread();
  const parts = await all(
    client.runs.stream(threadId, "chat", { input: say("ask"), streamMode: ["updates", "values"] }),
  );
  const [asked] = of(parts, "updates").at(-1).__interrupt__;
  assert.deepEqual(asked.value, { question: "ask" });
  assert.deepEqual(of(parts, "values").at(-1).__interrupt__, [asked]);
  const thread = await client.threads.get(threadId);
  assert.equal(thread.status, "interrupted");
  assert.deepEqual(Object.values(thread.interrupts), [[{ id: asked.id, value: asked.value }]]);
  const values = await client.runs.wait(threadId, "chat", { command: { resume: "yes" } });
  assert.equal(values.messages.at(-1).content, "You said: yes");
});

test("several runs at once, and bulk", async () => {
  const runs = await client.runs.createBatch([
    { assistantId: "chat", input: say("one") },
    { assistantId: "chat", input: say("two") },
  ]);
  assert.equal(runs.length, 2);
  const threadId = await newThread();
  const far = await client.runs.create(threadId, "chat", { input: say("x"), afterSeconds: 3600 });
  assert.equal((await client.runs.get(threadId, far.run_id)).status, "pending");
  await client.runs.cancelMany({ threadId, runIds: [far.run_id] });
  assert.equal((await client.runs.get(threadId, far.run_id)).status, "interrupted");
  await client.runs.delete(threadId, far.run_id);
  await assert.rejects(client.runs.get(threadId, far.run_id), { status: 404 });
});

test("crons", async () => {
  const mark = randomUUID();
  const payload = { schedule: "0 0 1 1 *", input: say("new year"), metadata: { mark } };
  const cron = await client.crons.create("chat", payload);
  assert.ok(cron.next_run_date);
  const threadId = await newThread();
  const bound = await client.crons.createForThread(threadId, "chat", payload);
  const found = await client.crons.search({ threadId });
  assert.deepEqual(found.map((one) => one.cron_id), [bound.cron_id]);
  assert.equal(typeof (await client.crons.count()), "number");
  const wrong = client.crons.create("chat", { schedule: "never" });
  await assert.rejects(wrong, { status: 422 });
  for (const { cron_id } of [cron, bound]) await client.crons.delete(cron_id);
  assert.deepEqual(await client.crons.search({ threadId }), []);
});

test("the store", async () => {
  const namespace = ["js", randomUUID()];
  await client.store.putItem(namespace, "a", { n: 1 });
  assert.deepEqual((await client.store.getItem(namespace, "a")).value, { n: 1 });
  const found = await client.store.searchItems(namespace, { filter: { n: 1 } });
  assert.deepEqual(found.items.map((item) => item.key), ["a"]);
  const { namespaces } = await client.store.listNamespaces({ prefix: namespace });
  assert.deepEqual(namespaces, [namespace]);
  await client.store.deleteItem(namespace, "a");
  assert.equal(await client.store.getItem(namespace, "a"), null);
});

test("the stream of a thread over its runs", async () => {
  const threadId = await newThread();
  const controller = new AbortController();
  const events = client.threads.joinStream(threadId, {
    streamMode: "run_modes",
    signal: controller.signal,
  });
  const news = events.next();
  const stream = client.runs.create(threadId, "chat", { input: say("a"), streamMode: "custom" });
  const run = await stream;
  const seen = [(await news).value];
  while (!seen.some((part) => part.event === "custom")) seen.push((await events.next()).value);
  assert.equal(seen.find((part) => part.event === "metadata").data.run_id, run.run_id);
  controller.abort();
  await all(events).catch(() => {});
});

for (const transport of ["sse", "websocket"]) {
  test(`the thread protocol over ${transport}`, { skip: noSocket(transport) }, async () => {
    const thread = client.threads.stream({ assistantId: "chat", transport });
    const spoken = (async () => {
      for await (const message of thread.messages) {
        const deltas = await all(message.text);
        const text = deltas.join("");
        if (text.startsWith("You said")) return { text, deltas };
      }
    })();
    await thread.run.start({ input: say("hello") });
    const { text, deltas } = await spoken;
    assert.equal(text, "You said: hello");
    assert.ok(deltas.length > 2, "word by word");
    const output = await thread.output;
    assert.equal(output.messages.at(-1).content[0].text, "You said: hello");
    await thread.close();
  });

  test(`a question in the thread protocol over ${transport}`, {
    skip: noSocket(transport),
  }, async () => {
    const thread = client.threads.stream({ assistantId: "chat", transport });
    await thread.run.start({ input: say("ask") });
    await thread.output;
    assert.equal(thread.interrupted, true);
    const [asked] = thread.interrupts;
    assert.deepEqual(asked.payload, { question: "ask" });
    await thread.input.respond({
      namespace: asked.namespace,
      interrupt_id: asked.interruptId,
      response: "yes",
    });
    const [run] = await client.runs.list(thread.threadId);
    const values = await client.runs.join(thread.threadId, run.run_id);
    assert.equal(values.messages.at(-1).content[0].text, "You said: yes");
    await thread.close();
  });
}

// Node has had a WebSocket of its own since version 22.
function noSocket(transport) {
  return transport === "websocket" && typeof WebSocket === "undefined" && "no WebSocket here";
}
