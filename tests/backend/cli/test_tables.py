"""A table of the program fits the terminal without an empty column or a word in pieces; a pipe gets it whole."""

from __future__ import annotations

import io

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.cells import cell_len
from rich.console import Console

from stabilitybackend.cli.runs import _COLUMNS as RUNS
from stabilitybackend.cli.tables import SHORT, Column, print_table

LONG = "llama-70b-stage-2-restart-after-the-node-failure-2026-11-20-16-41-07-seed-1234567890"
ROW = [LONG, "training", "123456", "2.345", "3", "12 min ago", "a name that goes on and on and on", "vision", "8", "2"]
_TEXT = st.text(st.characters(codec="ascii", categories=["L", "N"]), min_size=1, max_size=90)


def printed(columns: tuple[Column, ...], rows: list[list[str]], width: int, *, terminal: bool) -> list[str]:
    file = io.StringIO()
    console = Console(file=file, width=width, force_terminal=terminal, color_system=None, highlight=False)
    print_table(columns, rows, console)
    return file.getvalue().splitlines()


def columns_of(line: str) -> list[str]:
    return [cell.strip() for cell in line.strip("│┃").replace("┃", "│").split("│")]


@pytest.mark.parametrize("width", [40, 80, 100, 120, 200])
def test_no_column_of_the_runs_is_empty_and_none_is_wrapped_at_any_width(width: int) -> None:
    lines = printed(RUNS, [ROW, ["r2", *ROW[1:]]], width, terminal=True)
    table = [line for line in lines if line[:1] in "│┃"]
    assert len(table) == 3  # the head and a line a run
    assert all(all(columns_of(line)) for line in table)
    assert all(cell_len(line) <= width for line in lines if not line.startswith("no room"))
    assert columns_of(table[0])[:2] == ["run", "state"]


def test_a_long_id_is_shortened_before_step_and_loss_are_left_out() -> None:
    lines = printed(RUNS, [ROW], 80, terminal=True)
    assert columns_of(next(line for line in lines if line.startswith("┃")))[:4] == ["run", "state", "step", "loss"]


def test_an_id_is_whole_where_the_terminal_has_room_for_it_and_what_is_left_out_is_named() -> None:
    lines = printed(RUNS, [ROW], 180, terminal=True)
    assert any(LONG in line for line in lines)
    assert lines[-1].startswith("no room for ") or "no room for" in "".join(lines[-2:])
    narrow = "".join(printed(RUNS, [ROW], 60, terminal=True))
    assert f"{LONG[:10]}" in narrow
    assert LONG[-10:] in narrow


def test_a_pipe_gets_every_column_whole_on_one_line_a_run() -> None:
    lines = printed(RUNS, [ROW], 80, terminal=False)
    [line] = [line for line in lines if LONG in line]
    assert columns_of(line) == ROW


def test_a_sentence_wraps_between_words_and_nothing_else_does() -> None:
    columns = (
        Column("when"),
        Column("who", 0, "short"),
        Column("key", 5),
        Column("what"),
        Column("more", 3, "sentence"),
    )
    sentence = "the policy was changed from careful to bold because nobody watches at night"
    row = ["2026-11-20 16:41:07", "ann@example.org", "0123abcd", "command.rollback", sentence]
    lines = [line for line in printed(columns, [row], 100, terminal=True) if line.startswith("│")]
    words = " ".join(columns_of(line)[-1] for line in lines).split()
    assert words == sentence.split()
    assert columns_of(lines[0])[:2] == row[:2]


@settings(max_examples=60, deadline=None)
@given(
    rows=st.lists(st.lists(_TEXT, min_size=4, max_size=4), min_size=1, max_size=5),
    width=st.integers(4 * (SHORT + 3) + 1, 200),
)
def test_a_table_is_never_wider_than_its_terminal(rows: list[list[str]], width: int) -> None:
    columns = (Column("a"), Column("b", 1), Column("c", 2, "short"), Column("d", 0, "short"))
    for line in printed(columns, rows, width, terminal=True):
        assert cell_len(line) <= width
