// What a tab says while another one is looked at, and of what a browser notifies.

import assert from "node:assert/strict";
import test from "node:test";
import { ago, formatAge, inUtc, sinceClock } from "../../frontend/stabilityfrontend/assets/core/format.js";
import { tabIcon, tabTitle } from "../../frontend/stabilityfrontend/assets/navigation/attention.js";
import { isNews, notice } from "../../frontend/stabilityfrontend/assets/navigation/notify.js";

const NOW = Date.now() / 1000;
const hang = { word: "Hang", since: NOW - 60, tone: "critical", shape: "octagon" };

test("the title has the number of open incidents, the run, and the worst one with its time", () => {
  assert.equal(tabTitle({ name: "7b", open: 2, worst: hang }), `(2) 7b · Hang since ${sinceClock(NOW - 60)}`);
});

test("where nothing is open the title says what the run does", () => {
  assert.equal(tabTitle({ name: "7b", rest: "training" }), "7b · training");
});

test("the title of a page of all runs names the run of the worst incident", () => {
  const title = tabTitle({ name: "Stabilityboard", open: 3, worst: { ...hang, where: "7b" } });
  assert.equal(title, `(3) Stabilityboard · Hang in 7b since ${sinceClock(NOW - 60)}`);
});

test("a tab whose server is away says so and claims nothing", () => {
  const title = tabTitle({ name: "7b", open: 2, worst: hang, stale: NOW - 60 });
  assert.equal(title, `(?) 7b · no answer since ${sinceClock(NOW - 60)}`);
  assert.match(decodeURIComponent(tabIcon({ open: 2, tone: "critical", shape: "octagon", stale: true }) || ""), />\?</);
});

test("a time of another day has its day", () => {
  const noon = new Date(2026, 10, 12, 12, 0).getTime() / 1000;
  assert.equal(sinceClock(noon, noon + 3600), "12:00");
  assert.equal(sinceClock(noon, noon + 86400), "12 Nov, 12:00");
});

test("the icon has the count in the colour and the shape of the worst, and the product's mark without one", () => {
  const icon = (open, tone, shape) => decodeURIComponent(tabIcon({ open, tone, shape }) || "");
  assert.equal(tabIcon({ open: 0, tone: "calm", shape: "ring" }), null);
  assert.match(icon(3, "critical", "octagon"), />3</);
  assert.match(icon(30, "critical", "octagon"), />9\+</);
  const pictures = [icon(1, "critical", "octagon"), icon(1, "warning", "triangle"), icon(1, "info", "disc")];
  const paths = pictures.map((one) => /path d='([^']+)'/.exec(one)?.[1]);
  assert.equal(new Set(paths).size, 3);
});

const opened = { state: "open", alarm: true, opened: 1000, train: "", incident_id: "i", label: "Hang" };

test("news is an alarm that has just opened and that nobody has acknowledged", () => {
  assert.ok(isNews(opened, 1001));
  assert.ok(isNews({ ...opened, train: "i" }, 1001));
  for (const other of [
    { state: "resolved" },
    { alarm: false },
    { acknowledged_by: "ada" },
    { train: "first" },
    { opened: 1 },
  ])
    assert.ok(!isNews({ ...opened, ...other }, 1001), JSON.stringify(other));
});

test("a notification names kind and run, and two of one incident are one", () => {
  const { title, options } = notice({ ...opened, run_name: "7b", title: "The job hangs", severity: "critical" });
  assert.deepEqual([title, options], ["Hang · 7b", { body: "The job hangs", tag: "i", requireInteraction: true }]);
});

test("a clock that is ahead is named instead of a negative age, and a few seconds are none", () => {
  assert.deepEqual(
    [-3, -300, 3, 300].map((age) => ago(age)),
    ["just now", "clock 5 min ahead", "3 s ago", "5 min ago"],
  );
  assert.equal(formatAge(-7200), "clock 2 h ahead");
});

test("a moment has its time in UTC, and what is none has nothing", () => {
  assert.equal(inUtc(0), "1970-01-01 00:00:00 UTC");
  assert.deepEqual([null, undefined, Number.NaN, 1e300].map(inUtc), ["", "", "", ""]);
});
