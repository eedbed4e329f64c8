"""The panel of rollback costs as a function of the API's answers."""

from __future__ import annotations

from typing import Any

import pytest

from stabilityfrontend.parts import plain
from stabilityfrontend.rollback_cost_panel import changes, rollback_costs
from stabilityfrontend.viewer import Theme

COST = {
    "segment": 2, "fork_step": 150, "last_dead_step": 200, "cause": "command", "reason": "spike", "issuer": "alice",
    "changes": {"lr_scale": 0.5, "skip_batches": 40}, "applied": {"lr_scale": 0.5}, "created": 1000.0,
    "steps_lost": 50, "wall_lost_s": 12.0, "downtime_s": None, "gpu_hours_lost": 0.004, "batches_skipped": None,
    "incidents": ["i-1"], "undone": False, "notes": ["the clock was set back"],
}  # fmt: skip
TOTALS = {
    "goodput": 0.5, "ettr": None, "effective_s": 30.0, "wall_s": 60.0, "startup_s": 0.0, "steps_lost": 50,
    "wall_lost_s": 12.0, "downtime_s": 0.0, "gpus": 8, "gpus_from": "world_size", "gpu_hours_lost": 12.3,
    "batches_skipped": 0,
}  # fmt: skip


SAVING = {
    "saves": 4, "interval_s": 600.0, "save_s": 12.0, "share": 0.02, "mtbi_s": 21_600.0, "interruptions": 4,
    "interruptions_of": "run", "best_s": 720.0, "cost": 0.034, "best_cost": 0.033,
}  # fmt: skip


class Answers:
    """An API of one run."""

    def __init__(
        self, *costs: dict[str, Any], saving: dict[str, Any] | None = None, totals: dict[str, Any] = TOTALS
    ) -> None:
        self.answers = {
            "/runs/{run}/rollback_costs": {"rollbacks": list(costs), "totals": totals, "saving": saving},
            "/runs/{run}/segments": {"segments": [{"id": 1, "label": "R1"}, {"id": 2, "label": "R2"}]},
            "/runs/{run}/incidents": {"incidents": [{"incident_id": "i-1", "title": "Loss spike"}]},
        }

    def get(self, path: str, **given: Any) -> Any:
        return self.answers[path]


def shown(*costs: dict[str, Any], **more: Any) -> Any:
    return plain(rollback_costs("r", Answers(*costs, **more)), Theme("dark"))  # type: ignore[arg-type]


def test_a_row_says_what_was_discarded_ordered_and_done_and_leads_to_its_steps() -> None:
    text = str(shown(COST | {"segment": 1}, COST))
    order = [text.index(label) for label in ("'R2'", "'R1'")]
    assert order == sorted(order), "newest first"
    for words in ("?from=120&to=230", "200 → ", "LR × 0.5, skip 40 batches", "The clock was set back.", "< 0.01",
                  "Loss spike", "/runs/r/incidents/i-1", "alice: spike", "2 rollbacks", "50.0 %",
                  "one GPU a rank: 8"):  # fmt: skip
        assert words in text, words


def test_a_log_without_times_has_steps_and_no_durations() -> None:
    untimed = {"wall_s": 0.0, "effective_s": 0.0, "wall_lost_s": 0.0, "goodput": None, "gpu_hours_lost": 0.0}
    text = str(shown(COST | {"wall_lost_s": 0.0, "gpu_hours_lost": 0.0}, totals=TOTALS | untimed))
    assert text.count("the log has no times") == 4
    assert "0 ms of" not in text
    assert "data-unix" not in text, "an invented moment is not shown"


def test_a_job_without_a_gpu_loses_no_gpu_hours() -> None:
    text = str(shown(COST | {"gpu_hours_lost": 0.0}, totals=TOTALS | {"gpus": 0, "gpus_from": "agents"}))
    tile = text[text.index("GPU-hours lost") :][:400]
    assert "'–'" in tile
    assert "no GPU is seen" in tile


def test_what_was_taken_back_is_listed_and_not_counted() -> None:
    text = str(shown(COST | {"undone": True}))
    assert "taken back" in text
    assert "Goodput" not in text


def test_without_a_rollback_it_says_what_will_be_here() -> None:
    assert "No rollback so far" in str(shown())


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        (
            {},
            [
                "2.0 %",
                "12 s every 10 min 00 s",
                "12 min 00 s",
                "from 4 interruptions of this run: 3.3 % lost, now 3.4 %",
            ],
        ),
        ({"interruptions_of": "all", "interruptions": 1}, ["from 1 interruption of all runs"]),
        ({"best_s": None, "mtbi_s": None, "best_cost": None, "cost": None}, ["no interruption so far"]),
        (
            {"save_s": None, "share": None, "best_s": None},
            ["the time of a save is not known", "no save was in a phase"],
        ),
    ],
)
def test_saving_says_what_it_costs_and_what_would_be_best_also_without_a_rollback(
    changed: dict[str, Any], words: list[str]
) -> None:
    for costs in ((), (COST,)):
        text = str(shown(*costs, saving=SAVING | changed))
        assert [each for each in words if each not in text] == []


@pytest.mark.parametrize(
    ("given", "ordered", "words"),
    [
        ({"lr_scale": 0.5, "seed": 7, "skip_batches": 40}, False, "LR × 0.5, seed 7, 40 batches skipped"),
        ({"skip_batches": 1, "seed": None}, True, "skip 1 batch"),
        ({"data": {"a": 1}}, False, 'data {"a": 1}'),
        (None, False, ""),
    ],
)
def test_changes_are_said_as_in_the_charts(given: dict[str, Any] | None, ordered: bool, words: str) -> None:
    assert changes(given, ordered=ordered) == words
