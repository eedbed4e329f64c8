"""``run.should_skip``: the same numbers give the same answers, a rollback is forgotten, and there is an end to it."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import stabilityclient
from stabilityclient.skipping import SkipRule
from stabilityclient.wire import EventBlock, PointsBlock
from support.agent.spooled import frames

Start = Callable[..., stabilityclient.Run]


def usual(step: int) -> tuple[float, float]:
    """Loss and gradient norm of a step of a run that is well, with heavy-tailed noise."""
    dice = random.Random(step)
    return 3.0 - step / 1_000 + dice.gauss(0.0, 0.03), 1.0 + abs(dice.gauss(0.0, 0.1)) ** 0.5


def answers(rule: SkipRule, steps: range, odd: frozenset[int] = frozenset()) -> list[int]:
    """Give the rule a run; return the steps that it leaves out."""
    found = []
    for step in steps:
        loss, norm = usual(step)
        if rule.skips(step, loss + (2.0 if step in odd else 0.0), norm * (9.0 if step in odd else 1.0)):
            found.append(step)
    return found


def test_an_odd_update_is_left_out_and_no_other_one() -> None:
    assert answers(SkipRule(), range(2_000), frozenset({500, 1_700})) == [500, 1_700]


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_what_is_no_number_is_odd(value: float) -> None:
    rule = SkipRule()
    assert answers(rule, range(100)) == []
    assert rule.skips(100, value, 1.0)
    assert rule.skips(101, 2.9, value)


def test_nothing_is_left_out_before_it_is_known_what_is_usual() -> None:
    rule = SkipRule()
    assert not any(rule.skips(step, math.nan if step % 2 else 3.0, None) for step in range(100))


def test_one_more_than_the_limit_ends_it_for_good() -> None:
    rule = SkipRule(most=3, in_steps=1_000)
    odd = frozenset(range(500, 520))
    assert answers(rule, range(4_000), odd) == [500, 501, 502]
    assert "Nothing is skipped any more" in rule.ended
    assert not rule.skips(4_000, math.nan, None)


def test_skips_far_apart_do_not_end_it() -> None:
    rule = SkipRule(most=1, in_steps=300)
    odd = frozenset({500, 1_000, 1_500})
    assert answers(rule, range(2_000), odd) == sorted(odd)
    assert not rule.ended


def test_after_a_rollback_it_judges_as_if_what_was_thrown_away_had_never_been() -> None:
    never, back = SkipRule(), SkipRule()
    answers(never, range(400))
    answers(back, range(400))
    for step in range(400, 480):
        back.skips(step, 9.0, 9.0)  # a level that would be the usual one by now
    odd = frozenset({450})
    assert back._past[-1][0] > 400
    back._skips.clear()
    back.ended = ""
    assert answers(back, range(400, 600), odd) == answers(never, range(400, 600), odd) == [450]


def test_a_rollback_gives_no_new_skips() -> None:
    rule = SkipRule(most=2, in_steps=1_000)
    assert answers(rule, range(300), frozenset({250})) == [250]
    assert answers(rule, range(200, 300), frozenset({250})) == [250]
    assert answers(rule, range(200, 300), frozenset({250})) == []
    assert rule.ended


numbers = st.one_of(st.floats(), st.floats(0.5, 3.0))


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 200), numbers, st.one_of(st.none(), numbers)), max_size=200))
def test_ranks_that_are_given_the_same_answer_the_same(rows: list[tuple[int, float, float | None]]) -> None:
    first, second = SkipRule(), SkipRule()
    assert [first.skips(*row) for row in rows] == [second.skips(*row) for row in rows]


def logged(run: stabilityclient.Run) -> list[PointsBlock | EventBlock]:
    return [block for frame in frames(run.folder) for block in frame.blocks]


def test_each_skip_is_logged_and_the_end_raises_an_alert(start: Start) -> None:
    run = start()
    run.skip_limits(most=2)
    for step in range(200):
        loss, norm = usual(step)
        skipped = run.should_skip(step, 99.0 if step >= 190 else loss, norm)
        assert skipped == (step in (190, 191))
    blocks = logged(run)
    rows = [block for block in blocks if isinstance(block, PointsBlock) and "skipped_updates" in block.names]
    assert sum(len(block.steps) // 8 for block in rows) == 2
    alerts = [block for block in blocks if isinstance(block, EventBlock) and block.type == "alert"]
    assert [one.data["title"] for one in alerts] == ["No update is skipped any more"]


def test_a_rank_that_records_nothing_answers_as_the_others(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    recorded = start()
    monkeypatch.setenv("STABILITY_MODE", "disabled")
    silent = stabilityclient.init(project="p", run_id="r2")
    assert silent.folder is None
    rows = [(step, *usual(step)) for step in range(150)]
    rows[140] = (140, math.nan, 1.0)
    assert [recorded.should_skip(*row) for row in rows] == [silent.should_skip(*row) for row in rows]
    assert silent.should_skip(151, math.nan, 1.0)


class OnDevice:
    """As a tensor of a GPU: to read it would wait."""

    device = "cuda:0"

    def __float__(self) -> float:
        raise AssertionError("it was read")


def test_a_value_on_a_device_is_not_waited_for(start: Start, quiet: None) -> None:
    run = start()
    assert not run.should_skip(1, OnDevice(), 1.0)  # type: ignore[arg-type]
    assert run._guard.swallowed == 1


@pytest.mark.parametrize(
    ("given_now", "says"),
    [({"most": -1}, "most is -1"), ({"in_steps": 0}, "in_steps is 0"), ({"sigmas": math.nan}, "sigmas is nan")],
)
def test_limits_that_make_no_sense_are_refused(start: Start, given_now: dict[str, Any], says: str) -> None:
    run = start()
    with pytest.raises(stabilityclient.RefusedError, match=says):
        run.skip_limits(**given_now)


def test_what_is_no_number_or_step_is_refused_and_skips_nothing(start: Start, quiet: None) -> None:
    run = start()
    assert not run.should_skip(-1, 3.0, 1.0)
    assert not run.should_skip(1, "much", 1.0)  # type: ignore[arg-type]
    assert run._guard.swallowed == 2
