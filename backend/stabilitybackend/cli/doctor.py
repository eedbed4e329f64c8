"""``stabilityboard doctor``: what works here, what does not, and what to do about it."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape

from stabilitybackend.base.settings import Settings
from stabilitybackend.cli.options import AsJson, show_json

__all__ = ["doctor"]

_MARKS = {"ok": "[green]ok  [/green]", "note": "[yellow]note[/yellow]", "fail": "[bold red]FAIL[/bold red]"}


def doctor(
    context: typer.Context,
    host: Annotated[str | None, typer.Option(help="As for up.")] = None,
    port: Annotated[int | None, typer.Option(help="As for up.")] = None,
    data_dir: Annotated[Path | None, typer.Option(help="As for up.")] = None,
    redis_url: Annotated[str | None, typer.Option(help="As for up.")] = None,
    as_json: AsJson = False,
) -> None:
    """Show what works here, what does not, and what to do. Exit code 1 if something needed is missing."""
    from stabilitybackend.cli.checkup import examine  # imports Polars and Redis

    settings = Settings.from_env_and_args(os.environ, host=host, port=port, data_dir=data_dir, redis_url=redis_url)
    console = Console(highlight=False, soft_wrap=True)
    results = examine(
        settings,
        context.obj,
        url=os.environ.get("STABILITY_URL") or None,
        api_key=os.environ.get("STABILITY_API_KEY") or None,
    )
    failed = any(result.state == "fail" for result in results)
    if as_json:
        show_json({"ok": not failed, "checks": results})
        raise typer.Exit(int(failed))
    for result in results:
        console.print(f"{_MARKS[result.state]}  [bold]{result.name}[/bold]: {escape(result.text)}")
        if result.advice:
            console.print(f"        {escape(result.advice)}", style="dim")
    if failed:
        raise typer.Exit(1)
