"""The gallery has a curve and words for each pattern, and says what the board said."""

from __future__ import annotations

from typing import Any

import pytest

from stabilitybackend.schema.kinds import KINDS
from stabilityfrontend.gallery.page import curves
from stabilityfrontend.gallery.patterns import GROUPS, PATTERNS, Pattern, similar

CURVES = curves()
#: Patterns in which nothing is wrong.
WELL = [one for one in PATTERNS if one.group == "well"]
#: What a person calls it, who knows what was broken, where the board can only see the effect.
SEEN_AS = {"sdc": "spike"}


def test_every_pattern_has_its_curve_and_no_curve_is_left_over() -> None:
    assert list(CURVES) == [one.id for one in PATTERNS]


@pytest.mark.parametrize("pattern", PATTERNS, ids=lambda one: one.id)
def test_a_pattern_has_all_its_words_and_stands_under_a_heading(pattern: Pattern) -> None:
    words = (pattern.title, pattern.look, pattern.why, pattern.remedy, pattern.board, pattern.source)
    assert all(words)
    assert pattern.group in GROUPS


def test_nothing_was_found_where_nothing_is_wrong() -> None:
    assert [one.id for one in WELL if CURVES[one.id]["found"]] == []


@pytest.mark.parametrize("pattern", [one for one in PATTERNS if one.kinds], ids=lambda one: one.id)
def test_the_board_found_in_the_curve_what_its_words_say(pattern: Pattern) -> None:
    found = CURVES[pattern.id]["found"]
    wanted = {SEEN_AS.get(pattern.id, pattern.kinds[0])}
    assert wanted <= {one["kind"] for one in found}
    assert not pattern.recovery or pattern.recovery in {one["recovery"] for one in found}
    assert not pattern.dataset or any(one["dataset"] for one in found)


def test_incidents_are_linked_by_kinds_that_there_are_and_a_data_set_goes_first() -> None:
    table = similar()
    assert {kind for one in PATTERNS for kind in one.kinds} <= set(KINDS)
    assert [one["dataset"] for one in table] == sorted((one["dataset"] for one in table), reverse=True)


@pytest.mark.parametrize("name", CURVES)
def test_a_curve_is_a_few_hundred_points_in_order_with_its_seed(name: str) -> None:
    curve: dict[str, Any] = CURVES[name]
    lines = [line for row in curve["rows"] for line in row]
    assert 101 <= curve["seed"] <= 1000, "a seed of runs that everybody has seen"
    assert lines
    for line in lines:
        assert line["steps"] == sorted(set(line["steps"]))
        assert len(line["steps"]) == len(line["values"]) <= 420 + 2
