"""Reads the files of other trackers and our own exports, and sends them through the gateway. Prose:
README.md."""

from __future__ import annotations

import typer

from stabilitybackend.hooks import hook


@hook
def commands_of_the_program(cli: typer.Typer) -> None:
    from stabilityplugins.importers.cli import import_paths

    cli.command("import")(import_paths)
