"""Runs the program ``stabilityboard`` in the test's own process."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest
import typer.main

from stabilitybackend.cli import app as cli
from stabilitybackend.plugins import Plugins

__all__ = ["Program", "keep_programs", "program_in"]


@cache
def keep_programs() -> None:
    """Make the tree of all commands once for the same plug-ins, as in a process that runs one command."""
    make, whole = cli.program, cache(lambda modules: make(Plugins(modules)))
    cli.program = lambda plugins: whole(plugins.modules)
    typer.main.get_command = cache(typer.main.get_command)


keep_programs()

#: Takes arguments; gives exit code, standard output, standard error.
Program = Callable[..., tuple[int, str, str]]


def program_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capture: pytest.CaptureFixture[str]) -> Program:
    """Return the program with an environment of its own, its data folder in ``tmp_path``."""
    for name in [name for name in os.environ if name.startswith("STABILITY_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("STABILITY_DATA_DIR", str(tmp_path / "data"))
    monkeypatch.setenv("COLUMNS", "200")

    def call(*arguments: str | Path) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["stabilityboard", *map(str, arguments)])
        with pytest.raises(SystemExit) as left:
            cli.main()
        shown = capture.readouterr()
        return int(left.value.code or 0), shown.out, shown.err

    return call
