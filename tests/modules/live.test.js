// The one WebSocket of a page: what it does until it hears what it asked for.

import assert from "node:assert/strict";
import { mock, test } from "node:test";

const sockets = [];

class FakeSocket {
  static OPEN = 1;
  constructor() {
    this.readyState = FakeSocket.OPEN;
    this.sent = [];
    sockets.push(this);
  }
  send(text) {
    this.sent.push(JSON.parse(text));
  }
  close() {}
  hear(message) {
    this.onmessage({ data: JSON.stringify(message) });
  }
}

const quiet = { addEventListener() {}, removeEventListener() {}, hidden: false };
Object.assign(globalThis, {
  WebSocket: FakeSocket,
  document: quiet,
  window: quiet,
  location: { protocol: "http:", host: "board", pathname: "/", search: "" },
});
const { Live } = await import("../../frontend/stabilityfrontend/assets/core/live.js");
const settled = () => new Promise((resolve) => setImmediate(resolve));

test("a run whose worker does not answer yet is asked for again on the same socket, until it does", async () => {
  mock.timers.enable({ apis: ["setTimeout", "setInterval"] });
  const states = [];
  const live = new Live(
    "run-1",
    () => {},
    (state) => states.push(state),
    null,
  );
  await settled();
  const [socket] = sockets;
  await socket.onopen();
  assert.equal(socket.sent.length, 1);
  for (const asked of [2, 3]) {
    socket.hear({ type: "error", error: { code: "loading", message: "the worker does not answer", hint: "" } });
    mock.timers.tick(10);
    assert.equal(socket.sent.length, asked - 1);
    mock.timers.tick(2000);
    assert.equal(socket.sent.length, asked);
  }
  socket.hear({ type: "hello", cursor: "1-0", server_time: 1, storing: null });
  mock.timers.tick(60000);
  assert.equal(socket.sent.length, 3);
  assert.equal(states.at(-1), "live");
  live.close();
  mock.timers.reset();
});
