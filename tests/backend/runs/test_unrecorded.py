"""A run that lacks rows says so for ever: the counts of its processes, added up, and the reasons in words."""

from __future__ import annotations

from typing import Any

from stabilitybackend.lineage.changes import LineageEvent
from stabilitybackend.lineage.consumer import Effects
from stabilitybackend.runs.unrecorded import UnrecordedRows
from stabilityclient.wire import SourceInfo


def _event(kind: str, data: dict[str, Any], node: str = "gpu-1") -> LineageEvent:
    return LineageEvent(SourceInfo("a1-1", node=node), 0, kind, 1.0, None, data)


def _counts(source: str, **counts: Any) -> dict[str, Any]:
    return {"source": source, "rank": 0, **counts}


def test_the_newest_counts_of_each_process_are_added_up() -> None:
    rows = UnrecordedRows()
    full = {"why": "the disk of the spool was full"}

    rows.event(_event("unrecorded", _counts("r0-1-1", dropped=7, stored=10, **full)), Effects())
    rows.event(_event("unrecorded", _counts("r0-1-1", dropped=14_000, stored=5_000, **full)), Effects())
    rows.event(_event("unrecorded", _counts("r1-1-2", dropped=760, stored=240, **full)), Effects())

    assert rows.view().text == ("14,760 of 20,000 records were dropped on node gpu-1: the disk of the spool was full.")


def test_refusals_losses_and_forked_children_are_sentences_too() -> None:
    rows = UnrecordedRows()

    rows.event(_event("refused", {"text": "log(): metric 'loss' is 'abc' (str), expected one number"}), Effects())
    rows.event(_event("unrecorded", _counts("r0-1-1", refused=8, forked=True)), Effects())
    rows.event(_event("lost", {"records": 2, "reason": "checksum is wrong"}), Effects())

    assert rows.view().text == (
        "2 spooled records were damaged or deleted before the agent could send them. "
        "8 values were refused; the first: log(): metric 'loss' is 'abc' (str), expected one number. "
        "A process that was forked after init() logged: its rows are not recorded."
    )


def test_a_run_that_has_everything_says_nothing() -> None:
    assert UnrecordedRows().view().text == ""
