"""The demo's verdict on a lineage: it finds every way in which a stitched curve can be wrong."""

from __future__ import annotations

from typing import Any

from stabilitybackend.schema.commands import CommandFence, RankState, Rollback
from stabilityplugins.demo.check import check_lineage, healthy_after, ranks_that_acted

_SEGMENTS = [
    {"id": 0, "fork_step": None, "dead_after": 5},
    {"id": 1, "fork_step": 5, "dead_after": None},
]


def entry(segment: int, steps: list[int], dead: bool = False) -> dict[str, Any]:
    return {"segment": segment, "steps": steps, "values": [2.0] * len(steps), "dead": dead}


def check(effective: list[dict[str, Any]], everything: list[dict[str, Any]]) -> dict[str, int]:
    return check_lineage(effective, everything, _SEGMENTS, last_step=9)


_GOOD_EFFECTIVE = [entry(0, [1, 2, 3, 4, 5]), entry(1, [6, 7, 8, 9])]
_GOOD_ALL = [entry(0, [1, 2, 3, 4, 5]), entry(0, [6, 7, 8], dead=True), entry(1, [6, 7, 8, 9])]
_GOOD = {"effective_points": 9, "dead_points": 3, "missing": 0, "duplicates": 0, "misplaced": 0}


def test_a_right_lineage_has_nothing_to_complain_about() -> None:
    assert check(_GOOD_EFFECTIVE, _GOOD_ALL) == _GOOD


def test_a_lost_step_is_missing() -> None:
    effective = [entry(0, [1, 2, 4, 5]), entry(1, [6, 7, 8, 9])]

    assert check(effective, _GOOD_ALL)["missing"] == 1


def test_a_hole_in_the_dead_branch_is_missing() -> None:
    everything = [entry(0, [1, 2, 3, 4, 5]), entry(0, [6, 8], dead=True), entry(1, [6, 7, 8, 9])]

    assert check(_GOOD_EFFECTIVE, everything)["missing"] == 1


def test_a_dead_point_in_the_effective_curve_is_a_duplicate() -> None:
    effective = [entry(0, [1, 2, 3, 4, 5, 6]), entry(1, [6, 7, 8, 9])]

    assert check(effective, _GOOD_ALL)["duplicates"] == 1


def test_a_point_stored_twice_is_a_duplicate() -> None:
    everything = [*_GOOD_ALL, entry(1, [9])]

    assert check(_GOOD_EFFECTIVE, everything)["duplicates"] == 1


def test_a_point_below_its_segments_fork_is_misplaced() -> None:
    everything = [entry(0, [1, 2, 3, 4, 5]), entry(0, [6, 7, 8], dead=True), entry(1, [5, 6, 7, 8, 9])]

    assert check(_GOOD_EFFECTIVE, everything)["misplaced"] == 1


def test_a_point_called_dead_on_the_effective_path_is_misplaced() -> None:
    everything = [entry(0, [1, 2, 3, 4]), entry(0, [5, 6, 7, 8], dead=True), entry(1, [6, 7, 8, 9])]

    assert check(_GOOD_EFFECTIVE, everything)["misplaced"] == 1


def test_a_loss_that_stays_high_or_is_not_a_number_is_not_healthy() -> None:
    steps = list(range(1, 101))
    low, high, broken = [2.0] * 100, [2.0] * 80 + [2.6] * 20, [2.0] * 80 + ["NaN"] * 20

    verdicts = [
        healthy_after([{"steps": steps, "values": values}], onset_step=80, steps=20)["healthy"]
        for values in (low, high, broken)
    ]

    assert verdicts == [True, False, False]


def test_only_ranks_that_acted_count() -> None:
    ranks = {
        rank: RankState(state, 8, 1.0, "") for rank, state in {"0": "acted", "1": "rejected", "10": "done"}.items()
    }
    command = Rollback(
        command_id="c-1", run_id="run", reason="", issuer="ada", issued=1.0, expires=601.0, fence=CommandFence(0, ""),
        world_size=3, ranks=ranks,
    )  # fmt: skip

    assert ranks_that_acted(command) == {"0": 8, "10": 8}
