"""Names of files, runs and metrics are other people's: a terminal shows them and obeys nothing in them."""

from __future__ import annotations

import io

import pytest
from rich.console import Console
from rich.text import Text

from stabilitybackend.base.errors import BadRequest
from stabilitybackend.cli import app
from stabilitybackend.cli.echo import echo
from stabilitybackend.cli.tables import Column, print_table

#: Sets the title of a terminal, clears the screen, turns the direction of a line.
HOSTILE = "run\x1b]0;owned\x07\x1b[2J\u202egnp.txt"
SHOWN = "run\ufffd]0;owned\ufffd\ufffd[2J\ufffdgnp.txt"


def test_a_line_keeps_its_breaks_and_loses_what_a_terminal_obeys(capsys: pytest.CaptureFixture[str]) -> None:
    echo(f"{HOSTILE}\n\tloss")
    assert capsys.readouterr().out == f"{SHOWN}\n\tloss\n"


def test_an_error_names_a_file_as_a_terminal_can_show_it(capsys: pytest.CaptureFixture[str]) -> None:
    app._say(BadRequest(f"{HOSTILE} is empty", hint=HOSTILE), False)
    assert capsys.readouterr().err.split() == ["error:", SHOWN, "is", "empty", "hint:", SHOWN]


@pytest.mark.parametrize("cell", [HOSTILE, "loss"])
def test_a_cell_of_a_table_holds_nothing_that_a_terminal_obeys(cell: str) -> None:
    shown = io.StringIO()
    print_table([Column("run")], [[cell], [Text("ok")]], Console(file=shown))
    assert "\x1b" not in shown.getvalue()
    assert "\u202e" not in shown.getvalue()
