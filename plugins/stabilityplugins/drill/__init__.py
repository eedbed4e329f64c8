"""``stabilityboard drill``: whether a job that is stopped and resumed trains on as if nothing had happened."""

from __future__ import annotations

import typer

from stabilitybackend.hooks import hook


@hook
def commands_of_the_program(cli: typer.Typer) -> None:
    from stabilityplugins.drill.cli import drill

    cli.command("drill")(drill)
