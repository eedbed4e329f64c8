"""``stabilityboard plan``, ``restart``, ``dump``, ``task``: a launcher's questions, and orders for a hung job."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer

from stabilitybackend.base.api_client import ApiClient, run_path
from stabilitybackend.base.errors import StabilityBoardError, Unavailable
from stabilitybackend.cli.options import ApiKey, AsJson, DataDir, Url, connect, show_json
from stabilitybackend.cli.runs import follow, issue
from stabilitybackend.schema.commands import WORDS, AgentCommand, Command, CommandRequest, Restart

__all__ = ["dump", "plan", "restart", "task"]

#: Seconds between two questions while ``plan --wait`` waits.
_ASK_S = 1.0
#: Seconds to wait for stacks, and for a task's answer.
_DUMP_WITHIN_S = 60.0
_TASK_WITHIN_S = 90.0
#: Nothing is wrong, or nothing is decided yet: the two actions that ``--wait`` waits past.
_UNDECIDED = ("none", "wait")

RunId = Annotated[str, typer.Argument(help="The run, see: stabilityboard runs")]
Reason = Annotated[str, typer.Option(help="Why; kept in the run's history.")]
Wait = Annotated[bool, typer.Option(help="Show the states until it is done.")]


def plan(
    run_id: RunId,
    as_json: Annotated[bool, typer.Option("--json", help="Print the whole plan as JSON.")] = False,
    output: Annotated[Path | None, typer.Option(help="Write the plan there too, for STABILITY_PLAN.")] = None,
    wait_s: Annotated[
        float, typer.Option("--wait", min=0, help="Seconds to wait for a decision, and for a server that is away.")
    ] = 0.0,
    url: Url = None,
    api_key: ApiKey = None,
    data_dir: DataDir = None,
) -> None:
    """Print what a launcher should do next.

    Exit codes: 0 nothing, 40 restart the job, 41 restart it without the named nodes, 42 a human has to look,
    1 no answer from the server.
    """
    with connect(url, api_key, data_dir) as client:
        run_id = client.run(run_id)["run_id"]
        found = _decided(client, run_path(run_id), time.monotonic() + wait_s)
    text = json.dumps(found, indent=1)
    if output is not None:
        try:
            part = output.with_name(f"{output.name}.{os.getpid()}.tmp")  # several nodes may write at the same time
            part.write_text(text + "\n")
            part.replace(output)
        except OSError as error:
            raise StabilityBoardError(
                f"{output} can't be written: {error.strerror or error}", hint="name a file that all nodes see"
            ) from error
    if as_json:
        typer.echo(text)
    else:
        typer.echo(f"{found['action']}: {found['text']}")
        _warn(found.get("warning"))
        for suspect in found["suspects"]:
            gpu = f", GPU {suspect['gpu']}" if suspect.get("gpu") else ""
            typer.echo(f"  suspect: rank {suspect['rank']} on {suspect.get('node') or 'an unknown node'}{gpu}")
    raise typer.Exit(int(found["exit_code"]))


def _show(command: Command, waited: bool) -> NoReturn:
    """Print a command as JSON, and leave: with 1 after a wait in vain."""
    show_json(command)
    raise typer.Exit(0 if not waited or command.state == "done" else 1)


def _warn(warning: str | None) -> None:
    """Print the warning against the checkpoint of a plan, where there is one."""
    if warning:
        typer.echo(f"  warning: {warning}")


def _decided(client: ApiClient, place: str, deadline: float) -> dict[str, Any]:
    """Return the plan once there is something to do, the run is finished, or time is up."""
    while True:
        try:
            found: dict[str, Any] = client.get(f"{place}/plan")
            if found["action"] not in _UNDECIDED or client.get(place)["status"] in ("finished", "offline"):
                return found
        except Unavailable:
            if time.monotonic() >= deadline:
                raise
        else:
            if time.monotonic() >= deadline:
                return found
        time.sleep(_ASK_S)


def restart(
    run_id: RunId,
    to_step: Annotated[
        int | None, typer.Option(min=0, help="Step of the checkpoint to start from. (default: the plan's)")
    ] = None,
    exclude: Annotated[list[str] | None, typer.Option(help="Node to start without; repeat it for more.")] = None,
    keep: Annotated[
        list[str] | None, typer.Option(help="Node to use although the plan excludes it; repeat it.")
    ] = None,
    skip_batches: Annotated[int | None, typer.Option(min=0, help="Batches to skip after the checkpoint.")] = None,
    skip_range: Annotated[
        tuple[int, int] | None, typer.Option(help="Leave out the batches of these steps instead: FIRST LAST.")
    ] = None,
    lr_scale: Annotated[
        float | None, typer.Option(help="Factor on what the schedule of that checkpoint gives, above 0 to 10.")
    ] = None,
    seed: Annotated[int | None, typer.Option(min=0, help="New seed of the data order.")] = None,
    grace_s: Annotated[
        float | None, typer.Option("--grace", min=0, max=300, help="Seconds from SIGTERM to SIGKILL. (default: 10)")
    ] = None,
    accept_inside_incident: Annotated[
        bool, typer.Option("--accept-inside-incident", help="Also from a checkpoint saved inside an open incident.")
    ] = False,
    accept_unverified: Annotated[
        bool,
        typer.Option(
            "--accept-unverified", help="Also from a checkpoint that no rank of the run is known to have written."
        ),
    ] = False,
    reason: Reason = "",
    wait: Wait = True,
    as_json: AsJson = False,
    timeout_s: Annotated[
        float, typer.Option("--timeout", min=1, help="Seconds to wait for the first new row.")
    ] = 600.0,
    url: Url = None,
    api_key: ApiKey = None,
    data_dir: DataDir = None,
) -> None:
    """End all ranks of a running job; its launcher starts it again from the plan on each node's disk."""
    request = CommandRequest(
        "restart",
        to_step=to_step,
        exclude_nodes=exclude or None,
        keep_nodes=keep or None,
        skip_batches=skip_batches,
        skip_range=None if skip_range is None else list(skip_range),
        lr_scale=lr_scale,
        seed=seed,
        grace_s=grace_s,
        reason=reason,
        accept_inside_incident=accept_inside_incident,
        accept_unverified=accept_unverified,
    )
    with connect(url, api_key, data_dir) as client:
        run_id = client.run(run_id)["run_id"]
        command = issue(client, run_id, request, quiet=as_json)
        if isinstance(command, Restart) and not as_json:
            _warn(command.plan.warning)
        if wait:
            command = follow(client, command, timeout_s, quiet=as_json)
    if as_json:
        _show(command, wait)
    if command.state == "done":
        typer.echo(f"done: the job goes on from step {command.first_step}")
    elif wait:
        typer.echo(f"the job is not back: {WORDS[command.state]}", err=True)
        raise typer.Exit(1)


def dump(
    run_id: RunId,
    reason: Reason = "",
    wait: Wait = True,
    as_json: AsJson = False,
    url: Url = None,
    api_key: ApiKey = None,
    data_dir: DataDir = None,
) -> None:
    """Collect the stacks of all ranks; the run's page shows them."""
    request = CommandRequest("dump_stacks", reason=reason)
    with connect(url, api_key, data_dir) as client:
        run_id = client.run(run_id)["run_id"]
        command = issue(client, run_id, request, quiet=as_json)
        if wait:
            command = follow(client, command, _DUMP_WITHIN_S, quiet=as_json)
    if as_json:
        _show(command, wait)
    if command.state == "done":
        typer.echo(f"stacks: {client.url}{run_path(run_id)}/stacks/{command.command_id}")
    elif wait:
        typer.echo(f"no stacks: {WORDS[command.state]}", err=True)
        raise typer.Exit(1)


def task(
    run_id: RunId,
    name: Annotated[str, typer.Argument(help="The task, as a plug-in of the agents registered it.")],
    reason: Reason = "",
    wait: Wait = True,
    as_json: AsJson = False,
    url: Url = None,
    api_key: ApiKey = None,
    data_dir: DataDir = None,
) -> None:
    """Run a task of your own on every node of a job (docs/extending.md)."""
    request = CommandRequest("task", task=name, reason=reason)
    with connect(url, api_key, data_dir) as client:
        run_id = client.run(run_id)["run_id"]
        command = issue(client, run_id, request, quiet=as_json)
        if wait:
            command = follow(client, command, _TASK_WITHIN_S, quiet=as_json)
    if as_json:
        _show(command, wait)
    assert isinstance(command, AgentCommand)
    for node, answer in sorted(command.nodes.items()):
        typer.echo(f"{node}: {answer.state}: {answer.detail}")
    if wait and command.state != "done":
        typer.echo(f"not done: {WORDS[command.state]}", err=True)
        raise typer.Exit(1)
