"""``stabilityboard rollback``: orders the job back to a checkpoint; where none is named, to the suggested one."""

from __future__ import annotations

import secrets
import time
import uuid
from collections.abc import Mapping
from typing import Annotated, Any

import typer

from stabilitybackend.cli.options import ApiKey, DataDir, Url
from stabilitybackend.cli.runs import follow, open_client
from stabilitybackend.errors import BadRequest

__all__ = ["register"]

#: Checkpoints that are listed under the suggestion.
_LISTED = 8


def register(app: typer.Typer) -> None:
    """Add the command to ``app``."""
    app.command("rollback")(roll_back)


def roll_back(
    run_id: Annotated[str, typer.Argument(help="The run, see: stabilityboard runs")],
    to_step: Annotated[
        int | None,
        typer.Option(
            min=0, help="Step of the checkpoint to go back to. (default: what the server suggests, after a question)"
        ),
    ] = None,
    lr_scale: Annotated[float | None, typer.Option(help="Multiply the learning rate by this, above 0 to 10.")] = None,
    seed: Annotated[int | None, typer.Option(min=0, help="New seed of the data order.")] = None,
    skip_batches: Annotated[int | None, typer.Option(min=0, help="Batches to skip after the checkpoint.")] = None,
    reason: Annotated[str, typer.Option(help="Why; kept in the run's history.")] = "",
    yes: Annotated[
        bool, typer.Option("--yes", "-y", help="Order what the server suggests without a question.")
    ] = False,
    accept_inside_incident: Annotated[
        bool, typer.Option("--accept-inside-incident", help="Also to a checkpoint saved inside an open incident.")
    ] = False,
    wait: Annotated[bool, typer.Option(help="Show the states until the first new point is there.")] = True,
    timeout_s: Annotated[float, typer.Option("--timeout", min=1, help="Seconds to wait.")] = 300.0,
    url: Url = None,
    api_key: ApiKey = None,
    data_dir: DataDir = None,
) -> None:
    """Order the running job to go back to a checkpoint: the suggested one, or the one that is named."""
    order: dict[str, Any] = {
        "kind": "rollback",
        "to_step": to_step,
        "lr_scale": lr_scale,
        "seed": seed,
        "skip_batches": skip_batches,
        "reason": reason,
        "idempotency_key": uuid.uuid4().hex,
    }
    if accept_inside_incident:
        order["accept_inside_incident"] = True
    with open_client(url, api_key, data_dir) as client:
        if to_step is None:
            _take_suggestion(order, client.get(f"/api/v1/runs/{run_id}/rollback"), yes)
        place = f"/api/v1/runs/{run_id}/commands"
        command = client.post(place, order)
        typer.echo(f"command {command['command_id']}: {command['state']}")
        if not wait:
            return
        command = follow(client, f"{place}/{command['command_id']}", command, time.monotonic() + timeout_s)
    if command["state"] == "done":
        typer.echo(f"done: segment {command['segment']} goes on from step {command['first_step']}")
        return
    typer.echo(f"the rollback did not happen: {command['state']}", err=True)
    raise typer.Exit(1)


def _take_suggestion(order: dict[str, Any], offer: Mapping[str, Any], yes: bool) -> None:
    """Show what the server suggests, ask, and put it into the order; what was given stays.

    Raises:
        BadRequest: there is no checkpoint to suggest.
    """
    for one in offer["checkpoints"][:_LISTED]:
        mark = "-> " if one["step"] == offer["to_step"] else "   "
        words = [one["where"], "INSIDE AN OPEN INCIDENT" if one["inside"] else ""]
        typer.echo(f"{mark}step {one['step']:>8}  {', '.join(filter(None, words))}".rstrip())
    if offer["to_step"] is None:
        raise BadRequest(f"no checkpoint is suggested: {offer['text']}", hint="name one with --to-step")
    order["to_step"] = offer["to_step"]
    for name in ("lr_scale", "skip_batches"):
        order[name] = offer[name] if order[name] is None else order[name]
    if offer["reseed"] and order["seed"] is None:
        order["seed"] = secrets.randbelow(1 << 16)
    typer.echo(offer["text"])
    changes = [
        f"LR x {order['lr_scale']:g}" if order["lr_scale"] is not None else "",
        f"seed {order['seed']}" if order["seed"] is not None else "",
        f"skip {order['skip_batches']} batches" if order["skip_batches"] else "",
    ]
    what = ", ".join([f"Roll back to step {order['to_step']}", *filter(None, changes)])
    if yes:
        typer.echo(what)
    else:
        typer.confirm(f"{what}?", abort=True)
