"""The panel of a run's data as a function of the API's answer."""

from __future__ import annotations

from typing import Any

from stabilityfrontend.data_panel import data
from stabilityfrontend.parts import plain
from stabilityfrontend.viewer import Theme

FOUND: dict[str, Any] = {
    "steps": 1_200, "last": 1_199, "repeated": 300, "partial": 0, "of": "ids", "parts": 2, "samples": 56,
    "notes": ["Since step 900 a batch has 28 samples, before 56."],
    "repeats": [
        {"what": "samples", "onset": 900, "newest": 950, "ended": None, "earlier_step": 3, "offset_steps": None,
         "steps": None, "samples": None, "tokens": None, "share": 0.484, "since": "the resume at step 900",
         "dataset": "web"},
        {"what": "again", "onset": 300, "newest": 599, "ended": 600, "earlier_step": 0, "offset_steps": 300,
         "steps": 300, "samples": 16_800, "tokens": 34_406_400, "share": None, "since": "the resume at step 300",
         "dataset": ""},
    ],
    "datasets": [{"name": "", "seen": 64_000, "distinct": 48_000, "once": 0.665, "twice": 0.335, "more": 0.0,
                  "never": None, "one_in": 4, "error": 0.0046}],
    "new_samples": [{"first": 0, "last": 599, "new": 1.0}, {"first": 600, "last": 1_199, "new": 0.25}],
    "overlap": None,
    "other_runs": [],
}  # fmt: skip


class Answers:
    """An API of one run."""

    def __init__(self, found: dict[str, Any]) -> None:
        self.found = found

    def get(self, path: str, **given: Any) -> Any:
        return self.found


def shown(**changes: Any) -> str:
    return str(plain(data("r", Answers(FOUND | changes)), Theme("dark")))  # type: ignore[arg-type]


def test_it_says_what_came_again_how_much_and_since_when() -> None:
    text = shown()

    for words in ("1,200 steps with ids", "The batches of 300 steps had come before", "Since step 900 a batch has 28",
                  "Known samples", "48 %", "in another order", "so far to 950", "300 steps back", "34,406,400 tokens",
                  "the resume at step 300", "≈ 64,000", "34 %", "1 of 4", "± 0.46 %", "25 % of the samples are new",
                  "?from=880&to=970"):  # fmt: skip
        assert words in text, words


def test_without_ids_it_says_how_to_get_them() -> None:
    assert "run.data(step, ids=...)" in shown(steps=0)


def test_without_repeats_or_samples_there_is_one_sentence() -> None:
    text = shown(repeats=[], repeated=0, datasets=[], new_samples=[], notes=[])

    assert "No batch came twice" in text
    assert "data-repeats" not in text


def test_a_run_that_had_the_data_before_is_named_with_a_link_that_lays_both_over_each_other() -> None:
    other = {"first": 501, "other_run": "base-1", "other_name": "base", "other_step": 1, "by": "loss", "r": 0.93,
             "learned": False, "incident_id": "i-1"}  # fmt: skip
    same = other | {"first": 1, "by": "ids", "r": 1.0}

    for text in (shown(other_runs=[other]), shown(other_runs=[other], steps=0)):
        assert "from its step 1 on, in its order (by the losses alone, r = 0.93)" in text
        assert "/compare?run=r&amp;run=base-1&amp;shift=0&amp;shift=500" in text or (
            "/compare?run=r&run=base-1&shift=0&shift=500" in text
        )
    assert "at the same steps, in its order (their batch ids are equal)" in shown(other_runs=[same])
    assert "which its weights have learned" in shown(other_runs=[other | {"learned": True}])
