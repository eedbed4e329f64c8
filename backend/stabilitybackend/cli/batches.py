"""``stabilityboard batches``: orders the samples of the batches that a job keeps, and prints the worst of them."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from stabilitybackend.base.api_client import run_path
from stabilitybackend.base.errors import Conflict
from stabilitybackend.cli.echo import printable
from stabilitybackend.cli.options import ApiKey, DataDir, Url, connect
from stabilitybackend.cli.runs import follow, issue
from stabilitybackend.schema.batches import BatchSample, BatchSamples
from stabilitybackend.schema.commands import CommandRequest

__all__ = ["show_batches"]

#: The order expires after 120 s, and is judged a little later.
_WITHIN_S = 130.0
#: Characters of a text in the table; --json has all that was sent.
_TEXT_CHARS = 240


def show_batches(
    run_id: Annotated[str, typer.Argument(help="The run, see: stabilityboard runs")],
    incident: Annotated[str | None, typer.Option(help="Id of the incident that it is about.")] = None,
    step: Annotated[int | None, typer.Option(min=0, help="Look at the batch of this step first.")] = None,
    limit: Annotated[int, typer.Option(min=1, help="Samples that are printed.")] = 16,
    json: Annotated[bool, typer.Option("--json", help="Print all that was answered, as JSON.")] = False,
    reason: Annotated[str, typer.Option(help="Why; kept in the run's history.")] = "",
    url: Url = None,
    api_key: ApiKey = None,
    data_dir: DataDir = None,
) -> None:
    """Show the worst samples of the newest batches of a job that keeps them (run.keep_batches)."""
    request = CommandRequest("show_batches", incident_id=incident, step=step, reason=reason)
    with connect(url, api_key, data_dir) as client:
        run_id = client.run(run_id)["run_id"]
        command = issue(client, run_id, request, quiet=json)
        command = follow(client, command, _WITHIN_S, quiet=json)
        if command.state != "done":
            if json:
                raise Conflict(f"no batches: {command.history[-1].detail}", code=f"command_{command.state}")
            typer.echo(f"no batches: {command.history[-1].detail}", err=True)
            raise typer.Exit(1)
        found: dict[str, Any] = client.get(f"{run_path(run_id)}/batch_samples/{command.command_id}")
    if json:
        typer.echo(msgspec.json.encode(found).decode())
    else:
        _print(msgspec.convert(found, BatchSamples), limit)


def _print(found: BatchSamples, limit: int) -> None:
    table = Table("step", "rank", "loss", "repeated", "data set", "sample", "content")
    for sample in found.samples[:limit]:
        repeated = "" if sample.repeated is None else f"{sample.repeated:.0%}"
        loss = f"{sample.loss:.4g}" if isinstance(sample.loss, float | int) else sample.loss or ""
        table.add_row(
            f"{sample.step}{' (discarded)' if sample.discarded else ''}", str(sample.rank), loss, repeated,
            escape(sample.dataset or ""), escape(sample.id or ""), escape(_content(sample)),
        )  # fmt: skip
    Console().print(table)
    left = len(found.samples) - limit
    more = f", {left} more with --limit {len(found.samples)}" if left > 0 else ""
    answered = f"{len(found.ranks)} {'rank' if len(found.ranks) == 1 else 'ranks'}"
    typer.echo(f"the rings held steps {found.first} to {found.last}, {answered} answered{more}")
    for rank, why in found.failed.items():
        typer.echo(f"rank {rank}: {why}", err=True)


def _content(sample: BatchSample) -> str:
    if sample.text is None:
        return " x ".join(map(str, sample.shape or ()))
    text = printable("".join(" " if one.isspace() else one for one in sample.text))
    return text if len(text) <= _TEXT_CHARS else f"{text[:_TEXT_CHARS]} ..."
