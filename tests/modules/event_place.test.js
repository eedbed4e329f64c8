// Band, rule, name and lane mark of one event stand at one place, on every axis.

import assert from "node:assert/strict";
import { test } from "node:test";
import { events } from "../../frontend/stabilityfrontend/assets/chart/health_lane.js";
import { bandNames } from "../../frontend/stabilityfrontend/assets/chart/main_chart.js";
import { beginOf, onSteps, shapes } from "../../frontend/stabilityfrontend/assets/chart/traces.js";
import { kindTable } from "../../frontend/stabilityfrontend/assets/core/kinds.js";

/** A name stands so far inside of its band, pixels. */
const NAME_PX = 4;
const SINCE = 1_700_000_123;
const KIND = { band: true, sign: "H", short: "hang", label: "Hang", about: "process", alarm: true };
Object.assign(kindTable, {
  "": { ...KIND, of_machine: false },
  hang: { ...KIND, name: "hang", of_machine: true },
  spike: { ...KIND, name: "spike", of_machine: false, about: "model" },
});

/** A step takes a second of the clock and a thousand tokens. */
const AXES = {
  step: onSteps,
  time: { clock: true, place: (step) => 1000 * (1_700_000_000 + step), forkAt: () => null },
  tokens: { clock: false, place: (step) => 1000 * step, forkAt: () => null },
};

const incidentOf = (kind) => ({
  incident_id: "i",
  kind,
  severity: "critical",
  state: "open",
  status: "open",
  alarm: true,
  segment: 0,
  onset_step: 40,
  step: 41,
  since: SINCE,
  opened: SINCE,
  updated: SINCE,
  evidence: {},
  title: "An event",
  recovered_step: null,
}); // prettier-ignore

for (const kind of ["hang", "spike"])
  for (const [name, axis] of Object.entries(AXES))
    test(`a ${kind} is at one place on an axis of ${name}`, () => {
      const view = {
        incidents: [incidentOf(kind)],
        forks: [],
        segments: new Map([[0, { id: 0, dead_after: null, last_step: 400 }]]),
        lastStep: 400,
      };
      const page = { id: "r", view: () => view, forkList: [], lastStep: () => 400, now: () => SINCE + 5 };
      const place = beginOf(view.incidents[0], axis, 400);
      const { bands, rules } = shapes(view, { critical: "red" }, true, axis);
      const range = [place - 1000, place + 1_000_000];
      const [label] = bandNames(view, { critical: "red" }, range, 1e6, axis);
      assert.equal(bands[0].rects[0][0], place);
      assert.equal(rules[0].x, place);
      assert.equal(events(page, axis)[0].x, place);
      const scale = 1e6 / (range[1] - range[0]);
      assert.ok(Math.abs(label.x - NAME_PX / scale - place) < 1e-6);
    });

test("on a clock what happened to a machine is at its own time, and a spike where its step is", () => {
  assert.notEqual(beginOf(incidentOf("hang"), AXES.time, 400), beginOf(incidentOf("spike"), AXES.time, 400));
});
