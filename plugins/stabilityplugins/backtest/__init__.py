"""Judges runs of the past with the code that judges live ones. Prose: README.md."""

from __future__ import annotations

import typer

from stabilitybackend.hooks import hook


@hook
def commands_of_the_program(cli: typer.Typer) -> None:
    from stabilityplugins.backtest.cli import backtest_command

    cli.command("backtest")(backtest_command)
