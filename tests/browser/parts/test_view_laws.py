"""Lineage and storage as the page draws them, without a server."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from playwright.sync_api import Page


#: A page with a lineage of so many rollbacks, each ten steps before the end of the one before.
LINEAGE = """(count) => {
  const S = window.stability;
  document.body.append(...["lineage", "lineage-note", "lineage-all"].map((id) => S.h("div", { id })));
  const segments = new Map();
  for (let id = 0; id <= count; id += 1) {
    segments.set(id, {
      id, parent: id ? id - 1 : null, fork_step: id ? 90 * id : null, dead_after: id < count ? 90 * id + 90 : null,
      on_head_path: true, cause: id ? "command" : "start", first_step: 90 * id + 1, last_step: 90 * id + 100,
      reason: "", changes: {}, label: id ? `R${id}` : "", kept: 90, discarded: id < count ? 10 : 0,
    });
  }
  const lost = { steps_lost: 10, last_dead_step: 100 };
  const forks = S.forks(segments, new Map([...segments.keys()].map((id) => [id, lost])));
  const view = { incidents: [], segments, forks, lastStep: 90 * count + 100 };
  const page = {
    ready: true, allSegments: false, run: null, view: () => view, store: { head: count }, lastStep: () => view.lastStep,
    checkpointList: () => [],
    dirty: () => S.drawLineage(page), undo() {},
  };
  S.drawLineage(page);
  const names = () => [...document.querySelectorAll("#lineage .segment:not(.discarded) b")];
  const shown = names().map((one) => one.textContent.split(" ")[0]);
  const more = document.querySelector("button.segment-more");
  const older = more ? more.textContent : null;
  if (more) more.click();
  const flags = S.flagGroups(forks, 0.1).map((group) => group.label);
  const lines = S.shapes(view, { accent: "#00f" }, true).rules.filter((one) => one.height === 1).length;
  return { shown, older, all: names().length, flags, lines };
}"""


def test_of_fifty_rollbacks_the_newest_are_shown_and_how_many_there_are(scripts: Page) -> None:
    found = scripts.evaluate(LINEAGE, 50)
    assert found["shown"] == ["R47", "R48", "R49", "R50"]
    assert found["older"] == "47 older segments · 460 steps discarded"
    assert found["all"] == 51
    assert len(found["flags"]) < 25
    assert found["lines"] == 6


def test_a_short_lineage_is_shown_whole(scripts: Page) -> None:
    found = scripts.evaluate(LINEAGE, 4)
    assert found["shown"] == ["Start", "R1", "R2", "R3", "R4"]
    assert (found["older"], found["all"], found["lines"]) == (None, 5, 4)


#: Draws the storage line of a page for an answer of /storage and what queries could not read.
STORAGE = """([answer, problems]) => {
  const S = window.stability;
  const missing = ["storage", "storage-note"].filter((id) => !S.byId(id));
  document.body.append(...missing.map((id) => S.h("div", { id, hidden: true })));
  const line = new S.StorageLine({});
  line.answer = answer;
  line.fetch = () => line.draw();
  line.draw();
  line.addProblems(problems);
  const note = S.byId("storage-note");
  return { line: S.byId("storage").textContent, note: note.hidden ? null : note.textContent };
}"""
PART = "archive/r/1.points.parquet is damaged: truncated"


def test_an_archive_that_is_behind_or_damaged_is_said_and_one_that_is_well_is_not(scripts: Page) -> None:
    def storage(state: str, problem: str | None) -> dict[str, object]:
        hot = {"bytes": 2**20, "limit_bytes": 2**25, "frames": 7, "values": 70}
        cold = {"parts": 2, "rows": 5000, "bytes": 2**21, "location": "x"}
        return {"hot": hot, "cold": cold, "state": state, "problem": problem}

    well = scripts.evaluate(STORAGE, [storage("ok", None), []])
    assert well == {"line": "In Redis 1 MiB of 32 MiBarchive 2 parts, 2 MiB, 5,000 pointsup to date", "note": None}
    behind = scripts.evaluate(STORAGE, [storage("behind", "disk full"), []])
    assert behind["note"].startswith("The archive is behind: Disk full.")
    damaged = scripts.evaluate(STORAGE, [storage("ok", None), [PART, PART]])
    assert damaged["note"].count("truncated") == 1
    loading = scripts.evaluate(STORAGE, [storage("loading", "older points come"), ["older points come", PART]])
    assert loading["note"].startswith("Older points come. Part of the history can't be read")
    assert loading["note"].count("lder points come") == 1
    both = scripts.evaluate(STORAGE, [storage("failed", PART), [PART]])
    assert both["note"].count("truncated") == 1
