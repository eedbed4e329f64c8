import assert from "node:assert/strict";
import { test } from "node:test";
import { differingKeys } from "../../frontend/stabilityfrontend/assets/pages/compare_page.js";
import { configRows, matchingRows } from "../../frontend/stabilityfrontend/assets/run/about.js";
import { joined } from "../../frontend/stabilityfrontend/assets/run/output.js";

test("a config is rows of dotted keys, and each word of a search must be in one", () => {
  const rows = configRows({ lr: 0.1, model: { dim: 8, name: "x" }, betas: [1, 2], empty: {} });
  assert.deepEqual(rows, [
    ["lr", "0.1"],
    ["model.dim", "8"],
    ["model.name", "x"],
    ["betas", "[1,2]"],
    ["empty", "{}"],
  ]);
  assert.deepEqual(matchingRows(rows, "MODEL 8"), [["model.dim", "8"]]);
  assert.equal(matchingRows(rows, " ").length, rows.length);
});

test("only keys that differ between the configs are shown, missing ones too", () => {
  assert.deepEqual(
    differingKeys([
      { a: 1, b: { c: 2 }, d: 0 },
      { a: 1, b: { c: 3 } },
    ]),
    [
      ["b.c", ["2", "3"]],
      ["d", ["0", null]],
    ],
  );
});

test("newer lines follow, each once", () => {
  const [a, b, c] = ["a", "b", "c"].map((id) => ({ id }));
  assert.deepEqual(joined([a, b], [b, c]), [a, b, c]);
});
