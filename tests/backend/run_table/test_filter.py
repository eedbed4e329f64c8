"""The language of the filter over the list of runs: each text is a filter or is refused, and says where it breaks."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stabilitybackend.base.errors import BadRequest
from stabilitybackend.run_table.rows import TableRun
from stabilitybackend.run_table.table import MAX_CHARS, Filter, parse
from stabilitybackend.runs.shown_state import stated
from stabilitybackend.schema.runs import Run, WorstIncident

NOW = 100_000.0


def row(run_id: str, **facts: Any) -> TableRun:
    usual = {"run_id": run_id, "project": "llm", "name": run_id, "config": {}, "created": 0.0, "updated": 0.0}
    run = Run(**usual | facts)
    return TableRun(stated(run), None)


WORST = WorstIncident("i1", "hang", "critical", "Hang since step 7")
ROWS = [
    row(
        "big", name="70B long run", config={"lr": 3e-4, "optimizer": {"name": "AdamW"}, "bf16": True}, status="running",
        last_step=1_500, latest={"loss": 1.9, "lr": 1e-5}, loss_metric="loss", logged=NOW - 60,
    ),
    row(
        "ill", project="vlm", config={"lr": 6e-4, "data": "web, code"}, status="stalled", last_step=10,
        open_incidents=1, worst_incident=WORST, latest={"loss": "NaN", "my metric": 5.0},
        loss_metric="loss", logged=NOW - 9_000,
    ),
    row("old", project="", config={"optimizer": {"name": "lion"}}, status="crashed", latest={"lr": 2.0}),
    row("done", project="LLM", config={"lr": "auto"}, status="finished", last_step=2_000_000),
]  # fmt: skip


def found(text: str) -> list[str]:
    return [one.run.run_id for one in Filter(text).of(ROWS, NOW)]


@pytest.mark.parametrize(
    ("text", "runs"),
    [
        ("", ["big", "ill", "old", "done"]),
        ("70b", ["big"]),
        ("-70b", ["ill", "old", "done"]),
        ('"long run"', ["big"]),
        ("state:sick", ["ill"]),
        ("state:sick,crashed", ["ill", "old"]),
        ("-state:sick", ["big", "old", "done"]),
        ("state:well", ["big"]),
        ("state:over", ["done"]),
        ("state:critical", ["ill"]),
        ("state:training,finished", ["big", "done"]),
        ("project:llm", ["big", "done"]),
        ("project!=llm", ["ill", "old"]),
        ("-project:llm", ["ill", "old"]),
        ("project:none", ["old"]),
        ("project:*", ["big", "ill", "done"]),
        ("project:*l*m", ["big", "ill", "done"]),
        ("name:LONG", ["big"]),
        ("step>1000", ["big", "done"]),
        ("step>=1.5k step<2M", ["big"]),
        ("step=10", ["ill"]),
        ("step:10,1500", ["big", "ill"]),
        ("loss<2", ["big"]),
        ("loss:nan", ["ill"]),
        ("-loss:none", ["big", "ill"]),
        # The config's where the run has it there, else the newest value of the metric.
        ("lr>3e-4", ["ill", "old"]),
        ("config.lr>1e-4", ["big", "ill"]),
        ("metric.lr<1", ["big"]),
        ("lr:auto", ["done"]),
        ("optimizer.name:adam*", ["big"]),
        ("bf16:true", ["big"]),
        ('data:"web, code"', ["ill"]),
        ('"my metric">4', ["ill"]),
        ("progress<2h", ["big"]),
        ("progress>1h", ["ill"]),
        ("incidents>0", ["ill"]),
        ("nothing.has.it:3", []),
        ("-nothing.has.it:3", ["big", "ill", "old", "done"]),
        ("state:sick project:vlm lr>3e-4", ["ill"]),
    ],
)
def test_a_filter_lets_through_the_runs_that_it_says(text: str, runs: list[str]) -> None:
    assert found(text) == runs


@pytest.mark.parametrize(
    ("text", "where", "possible"),
    [
        ('loss>"2', "at character 6", 'close it with "'),
        ("loss>", "at its end", "loss:none"),
        ("loss> 2", "at character 6", "write one behind"),
        (">2", "at character 1", "write a key before it"),
        ("step>abc", "at character 1", "e.g. step>3e-4"),
        ("loss<2 age<soon", "at character 8", "age<2h"),
        ("state:ill", "there is no state 'ill'", "sick, crashed, well, empty, over, critical"),
        ("state>2", "a state is no number", "state: and one of"),
        ("step:many", "'many' is no number", "step>1000"),
        ("name>7", "name is text", "write name:7"),
        ("step>1,2", "compares with one number", "step>1"),
    ],
)
def test_a_filter_that_is_none_says_where_it_breaks_and_what_is_possible(text: str, where: str, possible: str) -> None:
    with pytest.raises(BadRequest) as refused:
        Filter(text)
    assert (refused.value.code, refused.value.status) == ("bad_filter", 422)
    assert repr(text) in refused.value.message
    assert where in refused.value.message
    assert possible in refused.value.hint


def test_a_filter_longer_than_an_address_is_refused() -> None:
    with pytest.raises(BadRequest, match="at most 2000"):
        parse("x" * (MAX_CHARS + 1))


_PIECES = st.sampled_from(
    ["state", "sick", "lr", "step", "age", "config.", "metric.", ":", ">", "<=", "!=", "=", ",", '"', "\\", "-", "*",
     " ", "1e999", "nan", "2h", "none", "%", "\u202e", "<b>", "\n"]
)  # fmt: skip


@given(st.one_of(st.text(max_size=60), st.lists(_PIECES, max_size=14).map("".join)))
def test_every_text_is_a_filter_or_is_refused(text: str) -> None:
    try:
        kept, hint = found(text), "-"
    except BadRequest as refused:
        kept, hint = [], refused.hint
    assert hint
    assert set(kept) <= {"big", "ill", "old", "done"}


@given(st.text(max_size=30).filter(bool))
def test_any_name_can_be_looked_for_in_quotes(name: str) -> None:
    run = row("r", name=name, config={"key": name})
    written = '"' + name.replace("\\", "\\\\").replace('"', '\\"') + '"'
    assert Filter(f"name:{written}").of([run], NOW) == [run]
    assert Filter(f"config.key:{written}").of([run], NOW) == [run]


@given(st.floats(allow_infinity=False, allow_nan=False))
def test_a_number_is_found_by_how_it_is_written(value: float) -> None:
    run = row("r", config={"x": value})
    assert Filter(f"x:{value!r}").of([run], NOW) == [run]
    assert math.isfinite(value)
