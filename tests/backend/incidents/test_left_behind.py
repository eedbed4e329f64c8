"""Incidents that a rollback leaves behind: their words, and that one trouble met again and again is one train."""

from __future__ import annotations

import pytest

from stabilitybackend.judging.detectors.engine.base import Finding
from stabilitybackend.judging.incidents.incidents import IncidentBook
from stabilitybackend.judging.incidents.rollback_target import UsableOf
from stabilitybackend.schema.incidents import RolledBack


def seen(
    book: IncidentBook, *, kind: str = "spike", text: str = "It rose.", segment: int = 0, time: float = 1.0
) -> None:
    finding = Finding("spike", "spike:loss:200", kind, "open", "warning", "At step 200", text, 200, 201, 201, "loss")
    book.apply(finding, segment=segment, time=time, checkpoints=UsableOf([]))


@pytest.mark.parametrize(
    ("kind", "text", "past"),
    [
        (
            "spike",
            "The loss rose from 2.1 to 5. It is still high; it is not known yet.",
            "The loss rose from 2.1 to 5.",
        ),
        (
            "nonfinite",
            "The loss has not been finite since step 9 (NaN). Go back.",
            "The loss was not finite from step 9",
        ),
        ("level_shift", "The loss went from 2 to 3 at step 9 and stays there.", "The loss went from 2 to 3 at step 9."),
    ],
)
def test_what_was_discarded_while_it_was_open_is_told_in_the_past(kind: str, text: str, past: str) -> None:
    book = IncidentBook("run")
    seen(book, kind=kind, text=text)
    (gone,) = book.rolled_back({0: 100}, 5.0, RolledBack(100, 1, "spike"), 100)
    assert gone.text.startswith(past)
    assert not any(word in gone.text for word in ("still", "stays", "not known yet", "has not been"))
    assert gone.text.endswith("The run went back to step 100; this happened on the branch that was left.")


def test_a_job_that_goes_back_into_the_same_spike_twelve_times_is_one_train() -> None:
    book = IncidentBook("run")
    for restart in range(12):
        seen(book, segment=restart, time=10.0 * restart)
        book.rolled_back({restart: 100}, 10.0 * restart + 1, RolledBack(100, restart + 1), 100)
    found = book.all()[::-1]
    assert [one.nth for one in found] == list(range(1, 13))
    assert {one.train for one in found} == {found[0].incident_id}
