"""``stabilityboard doctor``: checks of this machine and its settings, and the graph of the server's stages."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape

from stabilitybackend.base.settings import Settings
from stabilitybackend.cli.options import AsJson, show_json
from stabilitybackend.plugins import Plugins

__all__ = ["doctor"]

_MARKS = {"ok": "[green]ok  [/green]", "note": "[yellow]note[/yellow]", "fail": "[bold red]FAIL[/bold red]"}


def doctor(
    context: typer.Context,
    host: Annotated[str | None, typer.Option(help="As for up.")] = None,
    port: Annotated[int | None, typer.Option(help="As for up.")] = None,
    data_dir: Annotated[Path | None, typer.Option(help="As for up.")] = None,
    redis_url: Annotated[str | None, typer.Option(help="As for up.")] = None,
    wiring: Annotated[
        bool, typer.Option("--wiring", help="Print the stages of the server in their order, and what each needs.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Check this machine and its settings; name each problem and its remedy. Exit code 1 where a part is missing."""
    from stabilitybackend.cli.checkup import examine  # imports Polars and Redis

    settings = Settings.from_env_and_args(os.environ, host=host, port=port, data_dir=data_dir, redis_url=redis_url)
    if wiring:
        typer.echo(_wiring(settings, context.obj))
        return
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


def _wiring(settings: Settings, plugins: Plugins) -> str:
    from stabilitybackend.base.tasks import Watched
    from stabilitybackend.server.app import stages_of  # imports Dash and Polars
    from stabilitybackend.server.stage import graph
    from stabilitybackend.server.stages import Options

    options = Options(settings, settings.redis_url or "", plugins)
    return graph(stages_of(options), [Options, Watched])
