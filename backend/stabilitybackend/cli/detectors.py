"""``stabilityboard detectors``: what watches a run, how it is set, and setting it. Asks the running server."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Column, Table

from stabilitybackend.api_client import run_path
from stabilitybackend.cli.options import ApiKey, DataDir, Url, connect
from stabilitybackend.errors import BadRequest

__all__ = ["detectors"]


def detectors(
    run_id: Annotated[str | None, typer.Argument(help="One run. (default: the detectors and their defaults)")] = None,
    sets: Annotated[
        list[str] | None, typer.Option("--set", help="DETECTOR.PARAMETER=NUMBER, added to the settings; repeat it.")
    ] = None,
    reset: Annotated[bool, typer.Option("--reset", help="Undo all settings, before any --set.")] = False,
    url: Url = None,
    api_key: ApiKey = None,
    data_dir: DataDir = None,
) -> None:
    """Show the detectors and settings of a run, or change them from now on: --set spike.sensitivity=0.5 is quieter."""
    from stabilitybackend.backtest.settings import parse_settings  # loads NumPy, which no other command waits for

    wished = parse_settings(sets or [])
    if run_id is None and (wished or reset):
        raise BadRequest("--set and --reset need a run", hint="stabilityboard detectors RUN_ID --set ...")
    with connect(url, api_key, data_dir) as client:
        listed = client.get("/api/v1/detectors")["detectors"]
        if run_id is None:
            _show(listed, {})
            return
        place = f"{run_path(run_id)}/detectors"
        shown = client.get(place)
        if wished or reset:
            together = {} if reset else shown["settings"]
            for name, values in wished.items():
                together[name] = {**together.get(name, {}), **values}
            shown = client.call("PUT", place, {"settings": together})
    _show(listed, shown["settings"])
    for change in shown["changes"][:1]:
        typer.echo(f"last changed by {change['who']}; it holds for what came after that")


def _show(listed: Sequence[Mapping[str, Any]], settings: Mapping[str, Mapping[str, float]]) -> None:
    table = Table(
        Column("detector", no_wrap=True), "finds", Column("parameter", no_wrap=True), Column("value", justify="right"),
        Column("default", justify="right"), Column("range", no_wrap=True), "unit",
    )  # fmt: skip
    for detector in listed:
        name, title = escape(detector["name"]), escape(detector["title"])
        for parameter in detector["parameters"]:
            value = settings.get(detector["name"], {}).get(parameter["name"], parameter["default"])
            style = "bold yellow" if value != parameter["default"] else "default"
            table.add_row(
                name, title, escape(parameter["name"]), f"[{style}]{value:g}[/]", f"{parameter['default']:g}",
                f"{parameter['low']:g} to {parameter['high']:g}", escape(parameter["unit"]),
            )  # fmt: skip
            name = title = ""
    Console().print(table)
