"""``stabilityboard commands``, ``approve`` and ``decline``: orders, proposals, and decisions on them."""

from __future__ import annotations

import time
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from stabilitybackend.base.api_client import ApiClient, run_path
from stabilitybackend.base.errors import NotFound
from stabilitybackend.cli.options import ApiKey, AsJson, DataDir, Url, connect, show_json

__all__ = ["approve", "decline", "list_commands"]

ProposalId = Annotated[str, typer.Argument(help="The proposal, see: stabilityboard commands RUN")]


def list_commands(
    run_id: Annotated[str, typer.Argument(help="The run, see: stabilityboard runs")],
    as_json: AsJson = False,
    url: Url = None,
    api_key: ApiKey = None,
    data_dir: DataDir = None,
) -> None:
    """Show what waits for a person's approval, and the run's commands, newest first."""
    with connect(url, api_key, data_dir) as client:
        run_id = client.run(run_id)["run_id"]
        proposals = client.get(f"{run_path(run_id)}/proposals")["proposals"]
        commands = client.get(f"{run_path(run_id)}/commands")["commands"]
    if as_json:
        show_json({"proposals": proposals, "commands": commands})
        return
    if not proposals and not commands:
        typer.echo(f"nothing was ordered or proposed for {run_id}")
        return
    table = Table("id", "when", "by", "state", "what")
    for one in proposals:
        by = f"{one['proposer']}{' (program)' if one['by_program'] else ''}"
        state = one["state"]
        if state == "proposed":
            state = f"[yellow]proposed[/], {max(0.0, one['expires'] - time.time()) / 60:.0f} min left"
        elif one["decided_by"]:
            state = f"{state} by {escape(one['decided_by'])}"
        what = ". ".join(filter(None, (one["what"], one["order"].get("reason"), one["detail"])))
        table.add_row(one["proposal_id"], _when(one["proposed"]), escape(by), state, escape(what))
    for one in commands:
        table.add_row(
            one["command_id"], _when(one["issued"]), escape(one["issuer"]), one["progress"]["word"],
            escape(one["progress"]["line"]),
        )  # fmt: skip
    Console().print(table)


def approve(
    proposal_id: ProposalId,
    as_json: AsJson = False,
    url: Url = None,
    api_key: ApiKey = None,
    data_dir: DataDir = None,
) -> None:
    """Approve what somebody or an assistant proposed: the command is sent to the job."""
    with connect(url, api_key, data_dir) as client:
        done = client.call("POST", f"{_place(client, proposal_id)}/approve")
    if as_json:
        show_json(done)
    else:
        typer.echo(f"{done['what']}: sent as command {done['command_id']}")


def decline(
    proposal_id: ProposalId,
    reason: Annotated[str, typer.Option(help="Why not; kept with the proposal.")] = "",
    as_json: AsJson = False,
    url: Url = None,
    api_key: ApiKey = None,
    data_dir: DataDir = None,
) -> None:
    """Decline what somebody or an assistant proposed: nothing is sent."""
    with connect(url, api_key, data_dir) as client:
        done = client.call("POST", f"{_place(client, proposal_id)}/decline", {"reason": reason})
    if as_json:
        show_json(done)
    else:
        typer.echo(f"{done['what']}: declined, nothing is sent")


def _place(client: ApiClient, proposal_id: str) -> str:
    """Return where a waiting proposal is in the API. Raises NotFound where none has this id."""
    waiting: list[dict[str, Any]] = client.get("/api/v1/proposals")["proposals"]
    run_id = next((one["run_id"] for one in waiting if one["proposal_id"] == proposal_id), None)
    if run_id is None:
        known = ", ".join(one["proposal_id"] for one in waiting[:8]) or "none"
        raise NotFound(
            f"no proposal {proposal_id!r} waits for approval; it may be decided on or expired", hint=f"waiting: {known}"
        )
    return f"{run_path(run_id)}/proposals/{proposal_id}"


def _when(seconds: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M", time.localtime(seconds))
