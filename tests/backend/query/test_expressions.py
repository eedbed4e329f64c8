"""An expression of metrics is what its formula says at every step that all of them have; NaN and Infinity stay."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stabilitybackend.base.errors import BadRequest
from stabilitybackend.storage.query.expressions import MAX_DEPTH, MAX_LENGTH, parse
from stabilitybackend.storage.query.query import Answer, select
from stabilitybackend.storage.query.request import SeriesRequest
from support.job_frames import Job
from support.points.naive_store import NaiveRun

NAMES = ("a", "loss/code", "grad-norm", "lm loss")
VALUES = st.one_of(st.floats(-100, 100), st.sampled_from([math.nan, math.inf, -math.inf, 0.0, 1e308]))


def _ask(run: NaiveRun, text: str, newer: Any = None, **wish: Any) -> Answer:
    return select(run.store, run.lineage, SeriesRequest.of([f"expr:{text}"], **wish), newer)


def _quoted(name: str) -> str:
    return f"`{name}`" if set(name) & set("- ") else name


@st.composite
def formulas(draw: st.DrawFn, depth: int = 3) -> tuple[str, Any]:
    """An expression as text, and a function of a row that is its meaning."""
    kind = draw(st.sampled_from(["name", "number"] if depth == 0 else ["name", "sum", "minus", "call", "bracket"]))
    if kind == "name":
        name = draw(st.sampled_from(NAMES))
        return _quoted(name), lambda row: np.float64(row[name])
    if kind == "number":
        number = draw(st.sampled_from([0.0, 1.0, 2.5, 1e3]))
        return str(number), lambda row: np.float64(number)
    text, value = draw(formulas(depth=depth - 1))
    if kind == "minus":
        return f"-({text})", lambda row: -value(row)
    if kind == "bracket":
        return f"({text})", value
    if kind == "call":
        function = draw(st.sampled_from(["abs", "log", "exp", "sqrt"]))
        return f"{function}({text})", lambda row: getattr(np, function)(value(row))
    other, right = draw(formulas(depth=depth - 1))
    sign = draw(st.sampled_from("+-*/"))
    do = {"+": np.add, "-": np.subtract, "*": np.multiply, "/": np.divide}[sign]
    return f"({text}) {sign} ({other})", lambda row: do(value(row), right(row))


@settings(max_examples=150, deadline=None)
@given(formulas(), st.lists(st.fixed_dictionaries(dict.fromkeys(NAMES, VALUES)), min_size=1, max_size=5))
def test_an_expression_is_what_its_formula_is_at_each_row(
    formula: tuple[str, Any], rows: list[dict[str, float]]
) -> None:
    text, meaning = formula
    columns = {name: np.array([row[name] for row in rows]) for name in NAMES}
    with np.errstate(all="ignore"):
        expected = np.array([meaning(row) for row in rows])
    try:
        parsed = parse(text)
    except BadRequest as error:
        assert "no metric in it" in error.message  # noqa: PT017
        return
    np.testing.assert_array_equal(parsed.values(columns), expected)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("1 + 2 * a", 7.0), ("(1 + 2) * a", 9.0), ("2 - 1 - a", -2.0), ("12 / a / 2", 2.0), ("-a", -3.0), ("--a", 3.0),
        ("a/b - a / 4", 49.25), ("min(a, 2, 5)", 2.0), ("max(a, 1e2)", 100.0), ("1.5e1*a", 45.0),
        ('"lm loss" + `a`', 4.0),
        ("abs - a", 4.0), (".5 * a", 1.5), ("`a/b` / a", 50 / 3),
    ],
)  # fmt: skip
def test_operators_bind_and_names_end_as_people_expect(text: str, expected: float) -> None:
    row = {"a": 3.0, "a/b": 50.0, "lm loss": 1.0, "abs": 7.0}
    assert parse(text).values({name: np.array([value]) for name, value in row.items()}).tolist() == [expected]


@pytest.mark.parametrize(
    ("text", "at", "what"),
    [
        ("a +", 4, "the end where a metric"), ("a b", 3, "'b' where an operator"), ("(a", 3, "the end where ')'"),
        ("a ^ 2", 3, "'^' has no meaning"), ("`a", 1, "a quote that does not end"), ("1 + 2", 1, "no metric"),
        ("log(a, b)", 1, "log of 2, expected 1"), ("max(a)", 1, "max of 1, expected 2 to 8"), ("", 1, "the end where"),
        ("a)", 2, "')' where an operator"), ("(" * (MAX_DEPTH + 2) + "a", MAX_DEPTH + 2, "within each other"),
        ("a" * (MAX_LENGTH + 1), MAX_LENGTH + 1, "characters, expected at most"),
        ("+".join("abcdefghi"), 17, "more than 8"),
        ("__import__('os')", 12, '"\'" has no meaning'), ("a + " * 150 + "a", 401, "parts, expected at most"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_said_with_its_place(text: str, at: int, what: str) -> None:
    with pytest.raises(BadRequest) as error:
        parse(text)
    assert (error.value.facts["at"], error.value.status) == (at, 422)
    assert what in error.value.message


def test_a_row_is_there_where_every_metric_has_one_of_the_same_rank_and_segment() -> None:
    job, other, run = Job(), Job(rank=1), NaiveRun()
    run.feed(job.rows(range(1, 7), {"a": [1.0, 2.0, 3.0, 4.0, 5.0, 6.0]}))
    run.feed(job.rows([2, 4, 6], {"b": [10.0, math.nan, 30.0]}))
    run.feed(other.rows([1, 2], {"a": [7.0, 8.0]}))
    (only,) = _ask(run, "b - a", view="all").series
    assert (only.rank, only.steps.tolist()) == (0, [2, 4, 6])
    np.testing.assert_array_equal(only.values, [8.0, math.nan, 24.0])


def test_a_rollback_cuts_an_expression_as_it_cuts_its_metrics() -> None:
    job, run = Job(), NaiveRun()
    run.feed(job.rows(range(1, 101), {"a": [float(s) for s in range(1, 101)], "b": [1.0] * 100}))
    run.feed(job.rolled_back(50, "k"))
    run.feed(job.rows(range(51, 61), {"a": [0.0] * 10, "b": [2.0] * 10}))
    series = _ask(run, "a - b", view="all").series
    assert [(s.segment, s.dead, len(s.steps)) for s in series] == [(0, False, 50), (0, True, 50), (1, False, 10)]
    assert series[2].values.tolist() == [-2.0] * 10


def test_the_spike_of_a_difference_is_in_every_thinned_answer_at_its_step() -> None:
    steps = range(1, 20_001)
    a, b = [float(s % 7) for s in steps], [float(s % 7) for s in steps]
    b[11_233] -= 9.0
    run = NaiveRun([Job().rows(steps, {"a": a, "b": b})])
    for points in (4, 50, 1_000):
        (series,) = _ask(run, "a - b", points=points).series
        assert (float(series.values.max()), int(series.steps[series.values.argmax()])) == (9.0, 11_234)
        assert series.level > 0


def test_an_expression_of_unknown_metrics_names_the_first_of_them_and_its_place() -> None:
    run = NaiveRun([Job().rows([1, 2], {"loss": [1.0, 2.0]})])
    with pytest.raises(BadRequest, match="at character 8: this run has no metric 'loss/2'") as error:
        _ask(run, "loss - loss/2")
    assert "put spaces around /" in error.value.hint


def test_an_expression_can_be_an_x_axis_and_be_smoothed() -> None:
    values = [float(s) for s in range(1, 51)]
    run = NaiveRun([Job().rows(range(1, 51), {"a": values, "b": [2.0] * 50})])
    (series,) = _ask(run, "a * b", x="expr:a / b", smooth=0.5).series
    assert series.xs is not None
    assert series.smoothed is not None
    assert (series.xs.tolist(), len(series.smoothed)) == ([value / 2 for value in values], 50)
