"""``stabilityboard demo``: a server, a real training job that goes wrong, and its rollback."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import typer

from stabilitybackend.hooks import hook

#: Of a command that parses its arguments itself.
_OWN_ARGUMENTS = {"allow_extra_args": True, "ignore_unknown_options": True, "help_option_names": []}


@hook
def commands_of_the_program(cli: typer.Typer) -> None:
    cli.command("demo", context_settings=_OWN_ARGUMENTS)(demo)


def demo(context: typer.Context) -> None:
    """Run the demo: a real training job that spikes, and is rolled back. Options: stabilityboard demo --help."""
    from stabilityplugins.demo.stage import main  # torch only where it is asked for

    raise typer.Exit(main(context.args) or 0)


@hook
def checks() -> list[Callable[..., Any]]:
    from stabilityplugins.demo import checkup

    return [checkup.demo]
