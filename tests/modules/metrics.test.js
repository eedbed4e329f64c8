// All metrics as charts: sections, search, order, cells of the strip, and what is kept of a layout.

import assert from "node:assert/strict";
import { test } from "node:test";
import {
  addressOf,
  emptyLayout,
  layoutIn,
  missingOf,
  readLayout,
} from "../../frontend/stabilityfrontend/assets/metrics/layout.js";
import {
  chunksOf,
  inOrder,
  movedTo,
  prefixOf,
  searchOf,
  sectionsOf,
} from "../../frontend/stabilityfrontend/assets/metrics/metric_tree.js";
import { cellsOf } from "../../frontend/stabilityfrontend/assets/run/kpis.js";

test("a section is what stands before the first slash", () => {
  const names = ["loss", "loss/web", "lm loss", "/a", "a/", "loss/a/b", "gpu/0/power_w"];
  assert.deepEqual(names.map(prefixOf), ["", "loss/", "", "", "", "loss/", "gpu/"]);
});

test("sections stand by name, GPUs last, and what shares its prefix with nobody has none", () => {
  const names = ["gpu/0/w", "gpu/1/w", "b/2", "b/10", "b/1", "a/x", "a/y", "alone/x", "loss"];
  assert.deepEqual(sectionsOf(names), [
    ["", ["alone/x", "loss"]],
    ["a/", ["a/x", "a/y"]],
    ["b/", ["b/1", "b/2", "b/10"]],
    ["gpu/", ["gpu/0/w", "gpu/1/w"]],
  ]);
});

test("ten thousand prefixes are no ten thousand sections, and no metric is lost", () => {
  const names = Array.from({ length: 10000 }, (_, index) => `p${index >> 1}/m${index}`);
  const found = sectionsOf(names);
  assert.ok(found.length <= 121);
  assert.equal(
    found.reduce((sum, [, there]) => sum + there.length, 0),
    10000,
  );
});

test("what was moved stays where it was put, and new metrics come behind", () => {
  assert.deepEqual(inOrder(["a", "b", "c", "d"], ["c", "gone", "a"]), ["c", "a", "b", "d"]);
  assert.deepEqual(movedTo(["a", "b", "c"], "a", 1), ["b", "a", "c"]);
  assert.deepEqual(movedTo(["a", "b", "c"], "a", "c"), ["b", "c", "a"]);
  assert.deepEqual(movedTo(["a", "b", "c"], "c", 1), ["a", "b", "c"]);
});

test("a search is words, a pattern or an expression; a bad pattern says so", () => {
  const fits = (typed, names) => names.filter(searchOf(typed).fits);
  assert.deepEqual(fits("loss WEB", ["loss/web", "web", "loss/code"]), ["loss/web"]);
  assert.deepEqual(fits("/^loss.(web|code)$/", ["loss/web", "xloss/web", "loss/code"]), ["loss/web", "loss/code"]);
  assert.deepEqual(fits("/LOSS/i", ["loss", "lr"]), ["loss"]);
  assert.deepEqual(fits("/a/g", ["a", "a", "a"]), ["a", "a", "a"]);
  assert.match(searchOf("/[/").error, /^Not a regular expression/);
  assert.deepEqual([searchOf("= a - b").kind, searchOf("= a - b").text], ["expression", "a - b"]);
  assert.equal(searchOf("/").error, "");
});

test("chunks hold every metric once", () => {
  const names = Array.from({ length: 29 }, (_, index) => String(index));
  assert.deepEqual(
    chunksOf(names).map((one) => one.length),
    [12, 12, 5],
  );
  assert.deepEqual(chunksOf(names).flat(), names);
});

const chosen = (count) =>
  Array.from({ length: count }, (_, index) => ({ id: `m${index}`, metric: `m${index}`, unit: "", median: false }));
for (const [what, metrics, facts, ids] of [
  ["a run of one metric", 1, { point: true }, ["m0", "incidents", "rollbacks", "ranks"]],
  ["nothing yet", 0, {}, ["incidents", "rollbacks", "ranks"]],
  ["readings alone", 0, { point: true }, ["incidents", "rollbacks", "ranks", "last"]],
  ["four metrics", 4, { point: true }, ["m0", "m1", "m2", "m3", "incidents"]],
  [
    "a fork and checkpoints",
    8,
    { point: true, checkpoints: 2, forks: 1 },
    ["m0", "m1", "m2", "m3", "m4", "checkpoint", "incidents", "rollbacks"],
  ],
]) {
  test(`the strip has no empty cell and at most eight: ${what}`, () => {
    const given = { checkpoints: 0, forks: 0, ranks: 1, point: false, ...facts };
    assert.deepEqual(
      cellsOf(chosen(metrics), given).map((one) => one.id),
      ids,
    );
  });
}

test("an address gives back what of a layout is in it", () => {
  const layout = {
    ...emptyLayout(),
    pins: ["loss/web", "expr:`a b` - c"],
    sizes: { loss: "L" },
    open: { "loss/": true, "": false },
    options: { loss: { log: true } },
    find: "/a+/",
  };
  const query = new URLSearchParams();
  for (const [key, value] of Object.entries(addressOf(layout)))
    for (const one of Array.isArray(value) ? value : [value]) if (one !== null) query.append(key, one);
  assert.deepEqual(layoutIn(`?${query}`), layout);
  assert.equal(layoutIn("?view=all&smooth=0.9"), null);
});

test("an address stays short, however much was changed", () => {
  const sizes = Object.fromEntries(Array.from({ length: 300 }, (_, index) => [`metric/${index}`, "S"]));
  assert.equal(addressOf({ ...emptyLayout(), sizes }).charts, null);
});

test("of a layout that somebody kept only what is one is taken", () => {
  const bad = [null, 7, [], { pins: "x", sizes: { a: "XXL" }, open: { a: 1 }, order: { a: "b" }, find: 3 }];
  for (const one of bad) assert.deepEqual(readLayout(one), emptyLayout());
  assert.deepEqual(readLayout(JSON.parse('{"sizes": {"__proto__": "S", "a": "S"}}')).sizes, { a: "S" });
  assert.deepEqual(layoutIn("?charts={bad&chart=a")?.pins, ["a"]);
});

test("a layout says which of its metrics a run has not", () => {
  const layout = { ...emptyLayout(), pins: ["gone", "there", "expr:gone - there", "loss/*"] };
  assert.deepEqual(missingOf(layout, new Set(["there"])), ["gone"]);
});
