"""What the browser makes of points and lineage: the laws of the store, of thinning and of the words."""

from __future__ import annotations

import math
import random
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from playwright.sync_api import Page

LIMITS = {"entry_points": 400, "live_metrics": 50}


def segment(id_: int, parent: int | None, fork: int | None, dead_after: int | None, **more: Any) -> dict[str, Any]:
    """Build a segment as the API sends it."""
    return {
        "id": id_,
        "parent": parent,
        "fork_step": fork,
        "dead_after": dead_after,
        "on_head_path": True,
        "cause": "command" if parent is not None else "start",
        "first_step": None,
        "last_step": None,
        "changes": {},
    } | more


def block(segment_id: int, steps: list[int], values: list[Any], rank: int = 0) -> dict[str, Any]:
    """Build a block of live points of ``loss``."""
    times = [float(step) for step in steps]
    return {
        "segment": segment_id,
        "rank": rank,
        "node": "n",
        "steps": steps,
        "times": times,
        "values": {"loss": values},
    }


#: Runs JavaScript with a store that holds what the test says; returns what the code returns.
STORE = """([limits, head, segments, blocks, code]) => {
  const S = window.stability;
  const store = new S.SeriesStore(limits);
  store.want("loss");
  if (segments) store.setSegments(head, segments);
  for (const block of blocks) store.append(block);
  const lines = store.effective("loss").map((line) => ({
    rank: line.rank,
    steps: line.pieces.flatMap((piece) => piece.steps.slice(piece.from, piece.to)),
    values: line.pieces.flatMap((piece) => piece.values.slice(piece.from, piece.to)).map(String),
  }));
  const dead = store.dead("loss").map((one) => ({ segment: one.segment, steps: one.steps.slice(one.from, one.to) }));
  return { lines, dead, extra: new Function("store", "S", code)(store, S) };
}"""


def store(page: Page, head: int, segments: list[Any] | None, blocks: list[Any], code: str = "") -> Any:
    """Fill a store and return its lines, its dead stretches and what ``code`` returns."""
    return page.evaluate(STORE, [LIMITS, head, segments, blocks, code])


def test_a_rollback_moves_points_from_the_line_to_the_ghost(scripts: Page) -> None:
    segments = [segment(0, None, None, 3), segment(1, 0, 3, None)]
    found = store(scripts, 1, segments, [block(0, [1, 2, 3, 4, 5], [1, 1, 1, 9, 9]), block(1, [4, 5, 6], [2, 2, 2])])
    assert found["lines"] == [{"rank": 0, "steps": [1, 2, 3, 4, 5, 6], "values": ["1", "1", "1", "2", "2", "2"]}]
    assert found["dead"] == [{"segment": 0, "steps": [4, 5]}]


def test_a_nested_rollback_leaves_a_segment_without_any_point_on_the_line(scripts: Page) -> None:
    segments = [segment(0, None, None, 2), segment(1, 0, 4, -1, on_head_path=False), segment(2, 0, 2, None)]
    blocks = [block(0, [1, 2, 3, 4], [1, 1, 1, 1]), block(1, [5, 6], [5, 5]), block(2, [3, 4], [3, 3])]
    found = store(scripts, 2, segments, blocks)
    assert found["lines"][0]["steps"] == [1, 2, 3, 4]
    assert found["lines"][0]["values"] == ["1", "1", "3", "3"]
    assert found["dead"] == [{"segment": 0, "steps": [3, 4]}, {"segment": 1, "steps": [5, 6]}]


@pytest.mark.parametrize("seed", range(5))
def test_the_line_has_each_step_once_in_order_whatever_comes_first(scripts: Page, seed: int) -> None:
    rng = random.Random(seed)
    segments, blocks, last, begin = [segment(0, None, None, None)], [], 0, 1
    for id_ in range(4):
        last = begin + rng.randint(5, 40)
        blocks += [block(id_, [step], [id_], rank) for step in range(begin, last + 1) for rank in (0, 1)]
        if id_ < 3:
            fork = rng.randint(0, last)
            for older in segments:
                if older["dead_after"] is None or older["dead_after"] > fork:
                    older["dead_after"] = fork
            segments.append(segment(id_ + 1, id_, fork, None))
            begin = fork + 1
    rng.shuffle(blocks)
    found = store(scripts, 3, segments, blocks + rng.sample(blocks, 20))
    for line in found["lines"]:
        assert line["steps"] == list(range(1, last + 1))
    assert [line["rank"] for line in found["lines"]] == [0, 1]


def test_points_that_come_before_the_news_of_their_fork_do_not_double_a_step(scripts: Page) -> None:
    found = store(
        scripts, 0, [segment(0, None, None, None)], [block(0, [1, 2, 3, 4], [1] * 4), block(1, [3, 4], [2] * 2)]
    )
    assert found["lines"][0]["steps"] == [1, 2, 3, 4]
    assert found["lines"][0]["values"] == ["1", "1", "2", "2"]


def test_nan_both_infinities_and_missing_stay_four_facts(scripts: Page) -> None:
    values = [1.5, "NaN", "Infinity", "-Infinity", None]
    found = store(scripts, 0, [segment(0, None, None, None)], [block(0, [1, 2, 3, 4, 5], values)])
    assert found["lines"][0]["steps"] == [1, 2, 3, 4]
    assert found["lines"][0]["values"] == ["1.5", "NaN", "Infinity", "-Infinity"]


def test_memory_is_bounded_and_keeps_the_extremes_and_what_is_not_a_number(scripts: Page) -> None:
    steps = list(range(1, 5001))
    values: list[Any] = [math.sin(step) for step in steps]
    values[1234], values[2000], values[3000] = 50.0, "NaN", -50.0
    found = store(
        scripts, 0, [segment(0, None, None, None)], [block(0, [s], [v]) for s, v in zip(steps, values, strict=True)]
    )
    (line,) = found["lines"]
    assert len(line["steps"]) <= LIMITS["entry_points"]
    kept = dict(zip(line["steps"], line["values"], strict=True))
    assert (kept[1235], kept[2001], kept[3001]) == ("50", "NaN", "-50")
    assert line["steps"] == sorted(kept)
    assert line["steps"][-50:] == steps[-50:]


def test_a_fetched_history_and_live_points_of_the_same_steps_are_one(scripts: Page) -> None:
    fetch = """
      const part = (dead, steps, values) => ({ metric: "loss", segment: 0, rank: 0, node: "n", dead, steps, values });
      store.fill(["loss"], [part(true, [3, 4], ["NaN", 8]), part(false, [1, 2], [1, 2])], 100);
      const [entry] = store.metrics.get("loss").entries.values();
      return [entry.steps, entry.values.map(String)];
    """
    found = store(scripts, 0, [segment(0, None, None, None)], [block(0, [4, 5], [7, 9])], fetch)
    assert found["extra"] == [[1, 2, 3, 4, 5], ["1", "2", "NaN", "8", "9"]]


def test_low_steps_that_nothing_followed_are_a_ghost_and_no_part_of_the_line(scripts: Page) -> None:
    fetch = """
      const part = (dead, steps) => ({ metric: "loss", segment: 0, rank: 0, node: "n", dead, steps, values: steps });
      store.fill(["loss"], [part(false, [1, 2, 3, 4, 5]), part(true, [2, 3])], 100);
      const [line] = store.effective("loss");
      return [line.pieces.map((one) => one.steps), store.dead("loss").map((one) => one.steps)];
    """
    assert store(scripts, 0, [segment(0, None, None, None)], [], fetch)["extra"] == [[[1, 2, 3, 4, 5]], [[2, 3]]]


def test_metrics_that_nobody_looks_at_are_forgotten_first(scripts: Page) -> None:
    code = """
      store.pin(["loss"]);
      for (let index = 0; index < 200; index += 1) store.want(`m${index}`);
      return [store.metrics.size, store.metrics.has("loss"), store.metrics.has("m199"), store.metrics.has("m0")];
    """
    assert store(scripts, 0, None, [], code)["extra"] == [LIMITS["live_metrics"], True, True, False]


def test_thinning_keeps_the_ends_and_each_buckets_extremes(scripts: Page) -> None:
    values = [math.sin(step / 50) for step in range(10_000)]
    values[4321] = 7.0
    x, y = scripts.evaluate(
        """(values) => {
          const steps = values.map((_, index) => index);
          const [x, y] = [[], []];
          window.stability.thinInto(steps, values, 0, values.length, 200, x, y);
          return [x, y];
        }""",
        values,
    )
    assert len(x) <= 200
    assert (x[0], x[-1]) == (0, 9999)
    assert dict(zip(x, y, strict=True))[4321] == 7.0
    assert min(y) == min(values)
    assert x == sorted(set(x))


def test_two_ghosts_are_never_joined(scripts: Page) -> None:
    xy = scripts.evaluate(
        """() => window.stability.ghostXY([
          { steps: [4, 5, 6], values: [9, 9, 9], from: 0, to: 3 },
          { steps: [5, 6], values: [8, NaN], from: 0, to: 2 },
        ], null, 100)"""
    )
    assert xy == {"x": [4, 5, 6, 5, 5, 6], "y": [9, 9, 9, None, 8, None]}


def test_a_dead_spike_does_not_set_the_scale_and_a_live_one_does(scripts: Page) -> None:
    calm = [2 + 0.05 * math.sin(step) for step in range(500)]
    code = "([line, ghosts]) => window.stability.robustRange(line, ghosts)"
    low, high = scripts.evaluate(code, [calm, [100.0] * 30])
    assert 1.9 < low < 2
    assert 2.05 <= high < 2.2
    _, live = scripts.evaluate(code, [calm + [30.0] * 5, []])
    assert live == 30.0


ORDER = {"to_step": 150, "lr_scale": None, "seed": None, "skip_batches": None}
GHOST = ". Discarded points stay visible as a ghost."


@pytest.mark.parametrize(
    ("order", "facts", "expected"),
    [
        (
            {"seed": 7, "skip_batches": 40, "lr_scale": 0.5},
            {"size": 2, "lastStep": 213, "stepSeconds": 0.2},
            "Both ranks stop at the next common step boundary, load checkpoint 150, discard steps 151–213 and those "
            "trained until then (63 steps so far, about 13 s of work), reseed with 7, skip 40 batches and go on with "
            "the LR × 0.5",
        ),
        (
            {},
            {"size": 1, "lastStep": 150, "stepSeconds": None},
            "The rank stops at the next common step boundary, loads checkpoint 150",
        ),
        (
            {"skip_batches": 1},
            {"size": 1024, "lastStep": 151, "stepSeconds": None},
            "All 1,024 ranks stop at the next common step boundary, load checkpoint 150, discard step 151 and those "
            "trained until then (1 step so far) and skip 1 batch",
        ),
    ],
)
def test_the_sentence_says_what_will_happen(scripts: Page, order: Any, facts: Any, expected: str) -> None:
    said = scripts.evaluate(
        "([order, facts]) => window.stability.rollbackSentence(order, facts)", [ORDER | order, facts]
    )
    assert said == expected + GHOST


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (1.23456, "1.235"),
        (0, "0"),
        (41234.5, "41,235"),
        (-0.5, "−0.5"),
        (1.2e-7, "1.20e−7"),
        (2.5e7, "25.00 M"),
        (None, "–"),
    ],
)
def test_a_value_is_written_with_four_digits(scripts: Page, value: float | None, expected: str) -> None:
    assert scripts.evaluate("(value) => window.stability.formatValue(value)", value) == expected


def test_plotly_gets_names_as_text(scripts: Page) -> None:
    said = scripts.evaluate("(text) => window.stability.plotlyText(text)", "<a href='javascript:x'>%{x}</a> & co")
    assert said == "&lt;a href='javascript:x'&gt;%&#123;x}&lt;/a&gt; &amp; co"


def test_forty_incidents_cost_as_many_shapes_as_they_have_looks(scripts: Page) -> None:
    merged = scripts.evaluate(
        """() => {
          const S = window.stability;
          const incident = (index) => ({
            severity: index % 2 ? "critical" : "warning", state: "resolved", segment: 0,
            onset_step: 10 * index, step: 10 * index + 1, recovered_step: 10 * index + 5,
          });
          const incidents = Array.from({ length: 40 }, (_, index) => incident(index));
          const forks = [{ step: 7 }, { step: 9 }];
          const view = { incidents, forks, segments: new Map(), lastStep: 400 };
          return S.mergeShapes(S.shapes(view, { critical: "#f00", warning: "#fa0", accent: "#00f" }, true));
        }"""
    )
    assert [shape["type"] for shape in merged] == ["path"] * 3
    assert sorted(shape["path"].count("M") for shape in merged) == [2, 20, 20]
    assert merged[0]["path"].startswith("M0,0L5,0L5,1L0,1Z")


@pytest.mark.parametrize(
    ("axis", "expected"),
    [
        ([0, 0.00032], ["0", "1e−4", "2e−4", "3e−4"]),
        ([0, 0.0011], ["0", "0.0002", "0.0004", "0.0006", "0.0008", "0.0010"]),
        ([1.95, 2.31], ["2.0", "2.1", "2.2", "2.3"]),
        ([36_000, 44_500], ["36k", "38k", "40k", "42k", "44k"]),
        ([-1, 1], ["−1.0", "−0.5", "0", "0.5", "1.0"]),
    ],
)
def test_the_ticks_of_an_axis_are_round_and_alike(scripts: Page, axis: list[float], expected: list[str]) -> None:
    words = scripts.evaluate("(range) => window.stability.valueTicks(range, 4).map((tick) => tick.words)", axis)
    assert words == expected


@pytest.mark.parametrize(("value", "words"), [(1e-3, ["0.0008", "0.0010", "0.0012"]), (12.5, ["10", "12", "14"])])
def test_a_constant_has_ticks_that_fit_beside_it(scripts: Page, value: float, words: list[str]) -> None:
    drawn = "([value]) => stability.valueTicks(stability.axisRange([value, value], false), 3).map((tick) => tick.words)"
    assert scripts.evaluate(drawn, [value]) == words
