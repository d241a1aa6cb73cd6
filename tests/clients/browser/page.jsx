// A conversation with the graph "chat", by the hook that the address names (?hook=).
//
// The thread's id is kept in the address, so that a reload goes on with it.

import { useStream as useLegacyStream } from "@langchain/langgraph-sdk/react";
import { useStream } from "@langchain/react";
import { useEffect, useState } from "react";
import { createRoot } from "react-dom/client";

const address = new URLSearchParams(location.search);
const apiUrl = address.get("api");
const threadId = address.get("thread");

function onThreadId(id) {
  address.set("thread", id);
  history.replaceState(null, "", `?${address}`);
}

function Legacy() {
  const [news, setNews] = useState([]);
  const stream = useLegacyStream({
    apiUrl,
    assistantId: "chat",
    threadId,
    onThreadId,
    reconnectOnMount: true,
    fetchStateHistory: true,
    onCustomEvent: (data) => setNews((before) => [...before, data]),
  });
  const options = { streamResumable: true, streamSubgraphs: true };
  return (
    <Conversation
      messages={stream.messages.map((message) => message.content)}
      isLoading={stream.isLoading}
      question={stream.interrupt?.value}
      error={stream.error}
      news={news.length}
      submit={(text) => stream.submit({ messages: [{ type: "human", content: text }] }, options)}
      answer={(text) => stream.submit(null, { ...options, command: { resume: text } })}
      stop={() => stream.stop()}
    />
  );
}

function Current({ transport }) {
  const stream = useStream({ apiUrl, assistantId: "chat", threadId, onThreadId, transport });
  return (
    <Conversation
      messages={stream.messages.map((message) => message.text)}
      isLoading={stream.isLoading}
      question={stream.interrupt?.value}
      error={stream.error}
      submit={(text) => stream.submit({ messages: [{ type: "human", content: text }] })}
      answer={(text) => stream.respond(text, { interruptId: stream.interrupt.id })}
      stop={() => stream.stop()}
    />
  );
}

// Every text that the last message was shown with.
window.shown = [];

function Conversation({ messages, isLoading, question, error, news, submit, answer, stop }) {
  const [text, setText] = useState("");
  const last = messages.at(-1);
  useEffect(() => {
    if (window.shown.at(-1) !== last) window.shown.push(last);
  }, [last]);
  return (
    <main>
      <ol>{messages.map((message, index) => <li key={index}>{message}</li>)}</ol>
      <p id="status">{isLoading ? "busy" : "idle"}</p>
      <p id="news">{news}</p>
      <p id="question">{question?.question}</p>
      <p id="error">{error && String(error)}</p>
      <input value={text} onChange={(event) => setText(event.target.value)} />
      <button onClick={() => submit(text)}>Send</button>
      <button onClick={() => answer(text)}>Answer</button>
      <button onClick={stop}>Stop</button>
    </main>
  );
}

const hooks = {
  legacy: <Legacy />,
  sse: <Current transport="sse" />,
  websocket: <Current transport="websocket" />,
};
createRoot(document.body).render(hooks[address.get("hook")]);
