// What agents report, asked for while the feed goes on.

import assert from "node:assert/strict";
import { test } from "node:test";
import { Feed } from "../../frontend/stabilityfrontend/assets/run/run_feed.js";

test("an answer about the agents takes back nothing that the feed said since it was asked for", async () => {
  const waiting = [];
  globalThis.fetch = () => new Promise((resolve) => waiting.push((answer) => resolve(Response.json(answer))));
  const turn = () => new Promise((resolve) => setImmediate(resolve));
  let status = "";
  const health = {
    fill: (answer) => (status = answer.status),
    take: (message) => (status = message.status),
  };
  const feed = Object.assign(Object.create(Feed.prototype), { page: { id: "r", health, dirty: () => {} } });

  const both = [feed.fetchHealth(), feed.fetchHealth()];
  await turn();
  waiting.shift()({ status: "running" });
  while (status !== "running" || !waiting.length) await turn();
  feed.apply({ type: "health", status: "behind" });
  waiting.shift()({ status: "running" });
  await Promise.all(both);

  assert.equal(status, "behind");
});
