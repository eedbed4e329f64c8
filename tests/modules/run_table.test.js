// What the table of runs shows, as pure functions: its address, its orders, its lines, its curve.

import assert from "node:assert/strict";
import { test } from "node:test";
import { isNumeric, short } from "../../frontend/stabilityfrontend/assets/runs/run_cells.js";
import {
  DEFAULT_COLUMNS,
  keptState,
  lineMap,
  nextSort,
  quoted,
  readState,
  sortedBy,
  tablePath,
  termAt,
  toggled,
  viewState,
  written,
} from "../../frontend/stabilityfrontend/assets/runs/table_state.js";

test("an address gives the state that wrote it", () => {
  const state = {
    q: 'lr>3e-4 "two words"',
    sort: ["project", "-config.a/b"],
    group: "config.optimizer.name",
    columns: ["step", "metric.x/y"],
    open: new Set(["adamw"]),
  };
  const query = new URLSearchParams();
  for (const [key, value] of Object.entries(written(state)))
    for (const one of [value].flat()) if (one !== null) query.append(key, one);
  assert.deepEqual(readState(`?${query}`), state);
  assert.deepEqual(readState(""), { q: "", sort: [], group: "", columns: DEFAULT_COLUMNS, open: new Set() });
});

test("a saved view gives a state whatever was put there", () => {
  const state = { ...readState("?q=a&sort=-loss&group=state"), open: new Set(["x"]) };
  assert.deepEqual(viewState(JSON.parse(JSON.stringify(keptState(state)))), state);
  for (const odd of [null, 3, { q: 7, sort: "x", columns: [null, {}], open: { a: 1 } }])
    assert.deepEqual(viewState(odd), readState(""));
});

test("the server is asked for the cells of columns that not every run has", () => {
  const state = readState("?q=%20state:sick%20&sort=-loss&col=step&col=config.lr");
  assert.equal(
    tablePath(state, 200, "abc"),
    "/run_table?q=state%3Asick&sort=-loss&column=config.lr&offset=200&limit=100&order=abc",
  );
});

test("a head sorts, turns round, and gives the order back; with Shift behind the others", () => {
  assert.deepEqual(nextSort([], "loss", "number", false), ["-loss"]);
  assert.deepEqual(nextSort(["-loss"], "loss", "number", false), ["loss"]);
  assert.deepEqual(nextSort(["loss"], "loss", "number", false), []);
  assert.deepEqual(nextSort(["project"], "name", "text", true), ["project", "name"]);
  assert.deepEqual(nextSort(["project", "name"], "project", "text", true), ["-project", "name"]);
  assert.deepEqual(sortedBy(["project", "-name"], "name"), { way: "descending", place: 2 });
  assert.deepEqual(sortedBy([], "name"), { way: "none", place: 0 });
});

test("each row of an open group has one line, and each line is a head or a row", () => {
  const groups = [
    { label: "a", first: 0, count: 3 },
    { label: "b", first: 3, count: 2 },
    { label: "", first: 5, count: 4 },
  ];
  for (const open of [[], ["b"], ["a", ""], ["*"]]) {
    const map = lineMap(groups, new Set(open), 9);
    const lines = Array.from({ length: map.count }, (_, index) => map.at(index));
    const shown = groups.filter((one) => open.includes("*") || open.includes(one.label));
    const rows = shown.flatMap((one) => Array.from({ length: one.count }, (_, at) => one.first + at));
    assert.deepEqual(
      lines.filter((line) => line.group).map((line) => line.group),
      groups,
    );
    assert.deepEqual(
      lines.filter((line) => !line.group).map((line) => line.row),
      rows,
    );
    for (const row of rows) assert.equal(map.at(map.of(row)).row, row);
  }
  assert.equal(lineMap([], new Set(), 7).count, 7);
});

test("the term under the caret is found, also within quotes", () => {
  const text = 'a name:"two words" lr>3';
  assert.equal(termAt(text, 12).text, 'name:"two words"');
  assert.equal(termAt(text, 0).text, "a");
  assert.equal(termAt(text, text.length).text, "lr>3");
  assert.equal(termAt("", 0).text, "");
});

test("what needs quotes gets them", () => {
  assert.equal(quoted("adamw"), "adamw");
  assert.equal(quoted("web, code"), '"web, code"');
  assert.equal(quoted('a"b'), '"a\\"b"');
  assert.equal(quoted("-x"), '"-x"');
});

test("a count over the table is put into the filter and taken out again", () => {
  assert.equal(toggled("project:llm", "state:sick"), "project:llm state:sick");
  assert.equal(toggled("state:sick project:llm", "state:sick"), "project:llm");
});

test("large counts have four signs or so", () => {
  assert.deepEqual([0, 12, 1234, 5.6e6, 7.12e11, 3e12].map(short), ["0", "12", "1.23 k", "5.6 M", "712 B", "3 T"]);
  assert.deepEqual(["count", "text"].map(isNumeric), [true, false]);
});
