"""``stabilityboard detectors``: the detectors of a run, their settings, and changes. Asks the running server."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Column, Table

from stabilitybackend.base.api_client import run_path
from stabilitybackend.base.errors import WRONG_USE, BadRequest
from stabilitybackend.cli.options import ApiKey, AsJson, DataDir, Url, connect, show_json

__all__ = ["SETTINGS_HINT", "detector_table", "detectors", "parse_settings"]

SETTINGS_HINT = "stabilityboard backtest --list shows every detector, its parameters and their ranges"


def detectors(
    run_id: Annotated[str | None, typer.Argument(help="One run. (default: the detectors and their defaults)")] = None,
    sets: Annotated[
        list[str] | None, typer.Option("--set", help="DETECTOR.PARAMETER=NUMBER, added to the settings; repeat it.")
    ] = None,
    reset: Annotated[bool, typer.Option("--reset", help="Undo all settings, before any --set.")] = False,
    as_json: AsJson = False,
    url: Url = None,
    api_key: ApiKey = None,
    data_dir: DataDir = None,
) -> None:
    """Show the detectors and settings of a run, or change them from now on: --set curve.sensitivity=0.5 is quieter."""
    wished = parse_settings(sets or [])
    if run_id is None and (wished or reset):
        raise BadRequest("--set and --reset need a run", hint="stabilityboard detectors RUN_ID --set ...")
    with connect(url, api_key, data_dir) as client:
        listed = client.get("/api/v1/detectors")["detectors"]
        if run_id is None and as_json:
            show_json({"detectors": listed})
            return
        if run_id is None:
            Console().print(detector_table(listed, {}))
            return
        run_id = client.run(run_id)["run_id"]
        place = f"{run_path(run_id)}/detectors"
        shown = client.get(place)
        if wished or reset:
            together = {} if reset else shown["settings"]
            for name, values in wished.items():
                together[name] = {**together.get(name, {}), **values}
            shown = client.call("PUT", place, {"settings": together})
    if as_json:
        show_json(shown)
        return
    Console().print(detector_table(listed, shown["settings"]))
    for change in shown["changes"][:1]:
        holds = "holds for what came after that" if change["position"] else "waits: no worker follows the run"
        typer.echo(f"last changed by {change['who']}; it {holds}")


def parse_settings(texts: Iterable[str]) -> dict[str, dict[str, float]]:
    """Return ``detector.parameter=value`` texts as settings; of two that name the same the last one counts.

    Raises:
        BadRequest: a text has another form, a name is unknown (the message lists the valid ones) or a value is out of
            its range.
    """
    # Here and not above: they load NumPy, which no other command waits for.
    from stabilitybackend.judging.detectors.engine.base import DetectorSettingError
    from stabilitybackend.judging.detectors.registry import check_settings

    settings: dict[str, dict[str, float]] = {}
    for text in texts:
        place, equals, value = text.partition("=")
        detector, dot, parameter = place.strip().partition(".")
        try:
            number = float(value)
        except ValueError:
            equals = ""
        if not equals or not dot:
            raise BadRequest(
                f"--set is {text!r}, expected detector.parameter=number", hint=SETTINGS_HINT, code=WRONG_USE
            )
        settings.setdefault(detector, {})[parameter] = number
    try:
        return check_settings(settings)
    except DetectorSettingError as error:
        raise BadRequest(f"--set: {error}".strip(), hint=SETTINGS_HINT, code=WRONG_USE) from error


def detector_table(listed: Sequence[Mapping[str, Any]], settings: Mapping[str, Mapping[str, float]]) -> Table:
    """Return the detectors with their settings, and the values that differ from the default."""
    table = Table(Column("set", no_wrap=True), Column("value", justify="right"), "range", "what it does")
    for detector in listed:
        name, kinds = escape(detector["name"]), ", ".join(detector["kinds"])
        table.add_section()
        table.add_row(f"[bold]{name}[/bold]", "", "", f"[bold]{escape(detector['title'])}[/bold] ({kinds})")
        for known in detector["parameters"]:
            default = known["default"]
            value = settings.get(detector["name"], {}).get(known["name"], default)
            table.add_row(
                f"  {name}.{escape(known['name'])}",
                f"{value:g}" if value == default else f"[bold yellow]{value:g}[/] (default {default:g})",
                f"{known['low']:g} to {known['high']:g} {escape(known['unit'])}".rstrip(),
                escape(known["text"]),
            )
    return table
