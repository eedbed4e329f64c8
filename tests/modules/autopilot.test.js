// What the panel of the autopilot says of an entry, and of what it does now.

import assert from "node:assert/strict";
import test from "node:test";
import { chip, done } from "../../frontend/stabilityfrontend/assets/run/autopilot.js";

const entry = {
  action: "roll_back",
  dry_run: false,
  to_step: 12000,
  skip_range: null,
  skip_batches: null,
  lr_scale: null,
  seed: null,
};

test("an entry says what was done, and a dry run what would have been", () => {
  assert.equal(done(entry), "Rolled back to 12,000");
  const all = { ...entry, dry_run: true, skip_range: [12001, 12060], lr_scale: 0.5, seed: 7 };
  assert.equal(done(all), "Would have rolled back to 12,000, left out batches of 12,001 to 12,060, LR x 0.5, new seed");
  assert.equal(done({ ...entry, action: "gave_up", to_step: null }), "Asked people");
});

test("the chip names the phase where there is more to say than that it is on", () => {
  assert.equal(chip({ mode: "on", phase: "idle" }), "on");
  assert.equal(chip({ mode: "dry run", phase: "waits" }), "dry run · waits");
  assert.equal(chip({ mode: "off", phase: "off" }), "off");
});
