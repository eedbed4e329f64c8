// Incidents that a browser notification is about.

import assert from "node:assert/strict";
import test from "node:test";

import { isNews, isWorse } from "../../frontend/stabilityfrontend/assets/navigation/notify.js";

const incident = { incident_id: "i", state: "open", severity: "warning", opened: 1000, alarm: true };

test("an incident that has just opened is news, one of an hour ago is none", () => {
  assert.ok(isNews(incident, 1010));
  assert.ok(!isNews(incident, 4600));
});

test("an incident of an earlier notification is news once more when it becomes critical", () => {
  const critical = { ...incident, severity: "critical" };
  assert.ok(isWorse(critical, "warning"));
  assert.ok(!isWorse(critical, "critical"));
  assert.ok(!isWorse(incident, "info"));
  assert.ok(!isWorse({ ...critical, state: "recovered" }, "warning"));
});

test("an incident that opened unseen and is critical now is no second notification", () => {
  assert.ok(!isWorse({ ...incident, severity: "critical" }, undefined));
});
