"""``stabilityboard rollback``: orders the job back to a checkpoint; where none is named, to the suggested one.

With ``--segment`` it undoes a rollback: the job goes back to a branch that it had left.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Annotated, Any

import typer

from stabilitybackend.base.api_client import run_path
from stabilitybackend.base.errors import BadRequest, Conflict
from stabilitybackend.cli.options import ApiKey, AsJson, DataDir, Url, check_unasked, connect, show_json
from stabilitybackend.cli.runs import follow, issue
from stabilitybackend.schema.commands import WORDS, CommandRequest
from stabilitybackend.schema.runs import STATUSES

__all__ = ["roll_back"]

#: Shows a line.
Say = Callable[[str], None]
#: Checkpoints that are listed under the suggestion.
_LISTED = 8


def roll_back(
    run_id: Annotated[str, typer.Argument(help="The run, see: stabilityboard runs")],
    to_step: Annotated[
        int | None,
        typer.Option(
            min=0, help="Step of the checkpoint to go back to. (default: what the server suggests, after a question)"
        ),
    ] = None,
    segment: Annotated[
        int | None,
        typer.Option(
            "--segment",
            "--branch",
            min=0,
            help="Undo a rollback: go back to this discarded segment, to its newest checkpoint or --to-step.",
        ),
    ] = None,
    lr_scale: Annotated[
        float | None, typer.Option(help="Factor on what the schedule of that checkpoint gives, above 0 to 10.")
    ] = None,
    seed: Annotated[int | None, typer.Option(min=0, help="New seed of the data order.")] = None,
    skip_batches: Annotated[int | None, typer.Option(min=0, help="Batches to skip after the checkpoint.")] = None,
    skip_range: Annotated[
        tuple[int, int] | None, typer.Option(help="Leave out the batches of these steps instead: FIRST LAST.")
    ] = None,
    reason: Annotated[str, typer.Option(help="Why; kept in the run's history.")] = "",
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Take the suggestion without a question.")] = False,
    accept_inside_incident: Annotated[
        bool, typer.Option("--accept-inside-incident", help="Also to a checkpoint saved inside an open incident.")
    ] = False,
    accept_unverified: Annotated[
        bool,
        typer.Option(
            "--accept-unverified", help="Also to a checkpoint that no rank of the run is known to have written."
        ),
    ] = False,
    wait: Annotated[bool, typer.Option(help="Show the states until the first new point is there.")] = True,
    timeout_s: Annotated[float, typer.Option("--timeout", min=1, help="Seconds to wait.")] = 300.0,
    as_json: AsJson = False,
    url: Url = None,
    api_key: ApiKey = None,
    data_dir: DataDir = None,
) -> None:
    """Roll the running job back to a checkpoint: the suggested one, --to-step, or one of a branch that was left."""
    request = CommandRequest(
        "rollback",
        to_step=to_step,
        branch=segment,
        lr_scale=lr_scale,
        seed=seed,
        skip_batches=skip_batches,
        skip_range=None if skip_range is None else list(skip_range),
        reason=reason,
        accept_inside_incident=accept_inside_incident,
        accept_unverified=accept_unverified,
    )
    if as_json and to_step is None:
        check_unasked(yes)
    with connect(url, api_key, data_dir) as client:
        run = client.run(run_id)
        run_id = run["run_id"]
        if STATUSES[run["status"]].ended:
            raise Conflict(
                f"run {run_id} is over ({run['state']['word']}): there is no job that could go back",
                hint=f"start the job again from a checkpoint; stabilityboard plan {run_id} says from which",
            )
        # With --json the choice is in the command; the words go to standard error.
        say = partial(typer.echo, err=as_json)
        if to_step is None:
            offer = client.get(f"{run_path(run_id)}/rollback")
            if why := offer.get("no_rollback"):
                raise BadRequest(why, hint="with --to-step the order is tried all the same")
            request = (_take_suggestion if segment is None else _take_branch)(request, offer, yes, say)
        command = issue(client, run_id, request, quiet=as_json)
        if wait:
            command = follow(client, command, timeout_s, quiet=as_json)
    if as_json:
        show_json(command)
        raise typer.Exit(0 if not wait or command.state == "done" else 1)
    if not wait:
        return
    if command.state != "done":
        typer.echo(f"the rollback did not happen: {WORDS[command.state]}", err=True)
        raise typer.Exit(1)
    typer.echo(f"done: segment {command.segment} goes on from step {command.first_step}")


def _take_suggestion(request: CommandRequest, offer: Mapping[str, Any], yes: bool, say: Say) -> CommandRequest:
    """Show the server's suggestion, ask, and return the request for it; given options stay.

    Raises:
        BadRequest: there is no checkpoint to suggest.
    """
    for one in offer["checkpoints"][:_LISTED]:
        mark = "-> " if one["step"] == offer["to_step"] else "   "
        notes = [one["where"], _size(one), one["unchecked"], "INSIDE AN OPEN INCIDENT" if one["inside"] else ""]
        say(f"{mark}step {one['step']:>8}  {', '.join(filter(None, notes))}".rstrip())
    for one in offer["withheld"][:_LISTED]:
        say(f"   step {one['step']:>8}  NOT OFFERED: {one['unfit']}")
    if offer["to_step"] is None:
        raise BadRequest(f"no checkpoint is suggested: {offer['text']}", hint="name one with --to-step")
    named = request.skip_batches is not None or request.skip_range is not None
    skip = request.skip_range if named else offer["skip_range"]
    reseeded = secrets.randbelow(1 << 16) if offer["reseed"] else None
    request = replace(
        request,
        to_step=offer["to_step"],
        lr_scale=offer["lr_scale"] if request.lr_scale is None else request.lr_scale,
        skip_batches=request.skip_batches if named or skip is not None else offer["skip_batches"],
        skip_range=skip,
        seed=reseeded if request.seed is None else request.seed,
    )
    say(offer["text"])
    changes = [
        f"LR x {request.lr_scale:g}" if request.lr_scale is not None else "",
        f"seed {request.seed}" if request.seed is not None else "",
        f"skip {request.skip_batches} batches" if request.skip_batches else "",
        f"leave out the batches of steps {skip[0]} to {skip[1]}" if skip is not None else "",
    ]
    what = ", ".join([f"Roll back to step {request.to_step}", *filter(None, changes)])
    if yes:
        say(what)
    else:
        typer.confirm(f"{what}?", abort=True)
    return request


def _take_branch(request: CommandRequest, offer: Mapping[str, Any], yes: bool, say: Say) -> CommandRequest:
    """Show the checkpoints of the branch, ask, and return the request for the newest one.

    Raises:
        BadRequest: the branch has none that can be gone back to.
    """
    branch = next((one for one in offer["branches"] if one["segment"] == request.branch), None)
    if branch is None:
        known = ", ".join(str(one["segment"]) for one in offer["branches"]) or "none"
        raise BadRequest(
            f"segment {request.branch} has no discarded checkpoint that can be gone back to",
            hint=f"segments that have one: {known}",
        )
    for one in branch["checkpoints"][:_LISTED]:
        mark = "-> " if one["step"] == branch["to_step"] else "   "
        say(f"{mark}step {one['step']:>8}  {', '.join(filter(None, [one['where'], _size(one)]))}".rstrip())
    say(branch["text"])
    what = f"Go back to step {branch['to_step']} of the discarded segment {request.branch}"
    if yes:
        say(what)
    else:
        typer.confirm(f"{what}?", abort=True)
    return replace(request, to_step=branch["to_step"])


def _size(one: Mapping[str, Any]) -> str:
    """Return the size of a checkpoint's files in words, "" for none."""
    if one["kind"] is None or one["size_bytes"] is None:
        return ""
    kind = "" if one["kind"] == "unknown" else f" ({one['kind'].replace('_', ' ')})"
    return f"{one['size_bytes'] / 1024**3:.2f} GiB{kind}"
