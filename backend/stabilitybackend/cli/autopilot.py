"""``stabilityboard autopilot``: turns the autopilot of a run on with a policy, or off, and shows its actions."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Column, Table

from stabilitybackend.base.api_client import run_path
from stabilitybackend.base.errors import WRONG_USE, BadRequest
from stabilitybackend.cli.options import ApiKey, DataDir, Url, connect

__all__ = ["autopilot", "policy_text"]

#: Entries that are listed.
_LISTED = 20


def autopilot(
    run_id: Annotated[str, typer.Argument(help="The run, see: stabilityboard runs")],
    policy: Annotated[Path | None, typer.Option(metavar="FILE", help="Turn it on with this policy (YAML).")] = None,
    off: Annotated[bool, typer.Option("--off", help="Turn it off at once.")] = False,
    show: Annotated[bool, typer.Option("--show", help="Show it. (what it does with no other option)")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the server's answer as JSON.")] = False,
    url: Url = None,
    api_key: ApiKey = None,
    data_dir: DataDir = None,
) -> None:
    """Let a run roll back by itself, within a policy: --policy FILE turns it on, --off ends it, --show says all."""
    if (policy is not None) + off + show > 1:
        raise BadRequest("--policy, --off and --show given, expected one of them", code=WRONG_USE)
    text = None if policy is None else policy_text(policy)
    with connect(url, api_key, data_dir) as client:
        place = f"{run_path(client.run(run_id)['run_id'])}/autopilot"
        if text is not None:
            answer = client.call("PUT", place, {"policy": text, "file": str(policy)[-200:]})
        else:
            answer = client.call("DELETE", place) if off else client.get(place)
    if as_json:
        import json

        typer.echo(json.dumps(answer, indent=2))
        return
    _print(answer)


def policy_text(path: Path) -> str:
    """Return the text of a policy's file, which is looked at here first.

    Raises:
        BadRequest: it can't be read, or is no policy.
    """
    from stabilitybackend.acting.autopilot.policy import read_policy

    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise BadRequest(f"{path} can't be read: {error}", hint="give a YAML file", code=WRONG_USE) from error
    read_policy(text, str(path))
    return text


def _print(answer: Mapping[str, Any]) -> None:
    by = f", set by {answer['set_by']}" if answer["set_by"] else ""
    typer.echo(f"autopilot: {answer['mode']}{by}")
    typer.echo(answer["text"])
    if answer["policy"]:
        typer.echo("\n" + answer["policy"].rstrip())
    if not answer["entries"]:
        return
    table = Table(Column("step", justify="right"), "what", "about", Column("why", ratio=1))
    for one in answer["entries"][:_LISTED]:
        table.add_row(str(one["step"]), _what(one), f"{one['kind']} of step {one['onset_step']}", escape(one["text"]))
    Console().print(table)


def _what(entry: Mapping[str, Any]) -> str:
    if entry["action"] == "gave_up":
        return "would have asked people" if entry["dry_run"] else "asked people"
    done = "would have rolled back to" if entry["dry_run"] else "rollback to"
    state = f" ({entry['command']})" if entry["command"] else ""
    return f"{done} {entry['to_step']}{state}"
