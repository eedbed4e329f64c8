// Which proposals the run page shows, and what it says of them.

import assert from "node:assert/strict";
import { test } from "node:test";
import { shownProposals, timeLeft, whyNot } from "../../frontend/stabilityfrontend/assets/run/proposals.js";

const proposal = (id, given = {}) => ({
  proposal_id: id,
  state: "proposed",
  proposed: 0,
  expires: 900,
  decided: null,
  proposer: "assistant",
  ...given,
});

test("those that wait come first, those that are over stay two minutes", () => {
  const all = [
    proposal("declined", { state: "declined", decided: 100 }),
    proposal("waits"),
    proposal("older", { state: "superseded", decided: null }),
  ];
  const ids = (now) => shownProposals(all, now).map((one) => one.proposal_id);
  assert.deepEqual(ids(110), ["waits", "declined"]);
  assert.deepEqual(ids(221), ["waits"]);
});

test("one whose time is over says so, without the server's word", () => {
  assert.equal(shownProposals([proposal("late")], 901)[0].state, "expired");
  assert.equal(timeLeft(proposal("p"), 0), "15 min left");
  assert.equal(timeLeft(proposal("p"), 870), "less than a minute left");
});

test("who proposed it is asked to leave it to another person", () => {
  assert.match(whyNot(proposal("p"), { name: "assistant", by: "key" }), /another person/);
  assert.equal(whyNot(proposal("p"), { name: "anna", by: "session" }), "");
  assert.equal(whyNot(proposal("p"), { name: "assistant", by: "local" }), "");
});
