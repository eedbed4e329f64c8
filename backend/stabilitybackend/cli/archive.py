"""``stabilityboard archive``: where runs are stored, merging files, deleting runs. Asks the running server.

But for ``adopt``, which is for a server that refuses to start.
"""

from __future__ import annotations

import asyncio
import os
import time
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import urlencode

import typer
from rich.text import Text

from stabilitybackend.base.api_client import ApiClient, run_path
from stabilitybackend.base.settings import Settings
from stabilitybackend.cli.options import ApiKey, AsJson, DataDir, Url, check_unasked, connect, show_json
from stabilitybackend.cli.own_redis import own_redis
from stabilitybackend.cli.tables import Column, print_table

__all__ = ["app"]

app = typer.Typer(
    help="Where runs are stored: sizes, merging files, deleting runs.", no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"]},
)  # fmt: skip

_STATE_STYLE = {"ok": "green", "loading": "cyan", "archiving": "cyan", "behind": "yellow", "failed": "red"}
_MIB = 1024.0 * 1024.0
_STORAGE = (
    Column("run", 0, "id"), Column("state"), Column("in Redis", 2), Column("limit", 6), Column("in files", 1),
    Column("parts", 5), Column("values in files", 4), Column("location", 7),
)  # fmt: skip
_RETAINED = (
    Column("run", 0, "id"), Column("project", 3, "short"), Column("name", 2, "short"), Column("status"),
    Column("last report"),
)  # fmt: skip

_Run = Annotated[str, typer.Argument(help="The run, see: stabilityboard runs")]
_Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]


@app.command()
def status(
    run_id: Annotated[str | None, typer.Argument(help="One run. (default: the newest 500)")] = None,
    as_json: AsJson = False,
    url: Url = None,
    api_key: ApiKey = None,
    data_dir: DataDir = None,
) -> None:
    """Show how much of each run is in Redis and how much in files."""
    with connect(url, api_key, data_dir) as client:
        ids = [client.run(run_id)["run_id"]] if run_id is not None else [run["run_id"] for run in client.runs(500)[0]]
        found = [(run, client.get(f"{run_path(run)}/storage")) for run in ids]
    if as_json:
        show_json({"runs": [{"run_id": run, **facts} for run, facts in found]})
        raise typer.Exit(int(any(facts["problem"] for _, facts in found)))
    if not found:
        typer.echo(f"no runs yet at {client.url}")
        return
    print_table(_STORAGE, [
        [
            run, Text(str(facts["state"]), _STATE_STYLE.get(str(facts["state"]), "")), _size(facts["hot"]["bytes"]),
            _size(facts["hot"]["limit_bytes"]), _size(facts["cold"]["bytes"]), str(facts["cold"]["parts"]),
            f"{facts['cold']['rows']:,}", str(facts["cold"]["location"]),
        ]
        for run, facts in found
    ])  # fmt: skip
    problems = [(run, facts["problem"]) for run, facts in found if facts["problem"] and facts["state"] != "loading"]
    for run, problem in problems:
        typer.echo(f"{run}: {problem}", err=True)
    if problems:
        raise typer.Exit(1)


@app.command()
def compact(
    run_id: _Run, as_json: AsJson = False, url: Url = None, api_key: ApiKey = None, data_dir: DataDir = None
) -> None:
    """Merge the small files of a run; one that is over is moved out of Redis first."""
    with connect(url, api_key, data_dir) as client:
        run_id = client.run(run_id)["run_id"]
        before = client.get(f"{run_path(run_id)}/storage")["cold"]
        facts = client.call("POST", f"{run_path(run_id)}/compact", timeout_s=None)
    if as_json:
        show_json({"run_id": run_id, "before": before, **facts})
        return
    cold = facts["cold"]
    typer.echo(
        f"{run_id}: {before['parts']} parts of {_size(before['bytes'])} are {cold['parts']} of {_size(cold['bytes'])}"
    )


@app.command()
def delete(
    run_id: _Run,
    force: Annotated[
        bool, typer.Option(help="Also while its job is live; an agent that goes on creates it again.")
    ] = False,
    yes: _Yes = False,
    as_json: AsJson = False,
    url: Url = None,
    api_key: ApiKey = None,
    data_dir: DataDir = None,
) -> None:
    """Delete a run: points, files, incidents, commands."""
    if as_json:
        check_unasked(yes)
    with connect(url, api_key, data_dir) as client:
        run = client.run(run_id)
        run_id = run["run_id"]
        if not yes:
            points = run["effective_points"] + run["dead_points"]
            what = f"{run_id} ({run['name']}, {run['status']}, {points:,} points of its loss)"
            typer.confirm(f"Delete {what} for good?", abort=True, err=True)
        gone = client.call("DELETE", f"{run_path(run_id)}?{urlencode({'force': str(force).lower()})}", timeout_s=None)
    if as_json:
        show_json(gone)
        return
    typer.echo(f"{run_id}: deleted")


@app.command()
def retain(
    days: Annotated[float, typer.Option(min=1, help="Delete runs that have not reported for so many days.")],
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only show what would go.")] = False,
    yes: _Yes = False,
    as_json: AsJson = False,
    url: Url = None,
    api_key: ApiKey = None,
    data_dir: DataDir = None,
) -> None:
    """Delete the runs that ended some days ago. With STABILITY_RETENTION_DAYS the server does it by itself."""
    if as_json:
        check_unasked(yes or dry_run)
        with connect(url, api_key, data_dir) as client:
            found = _retain(client, days, dry_run=dry_run)
        show_json({"days": days, "dry_run": dry_run, "runs": found})
        raise typer.Exit(int(not dry_run and not all(run["deleted"] for run in found)))
    with connect(url, api_key, data_dir) as client:
        found = _retain(client, days, dry_run=True)
        if not found:
            typer.echo(f"no run ended more than {days:g} days ago")
            return
        if dry_run or not yes:
            _show(found)
        if dry_run:
            return
        if not yes:
            typer.confirm(f"Delete these {len(found)} runs for good?", abort=True, err=True)
        found = _retain(client, days, dry_run=False)
    kept = [run for run in found if not run["deleted"]]
    typer.echo(f"{len(found) - len(kept)} runs deleted")
    for run in kept:
        typer.echo(f"{run['run_id']}: not deleted: {run['problem']}", err=True)
    if kept:
        raise typer.Exit(1)


@app.command()
def adopt(
    yes: _Yes = False,
    as_json: AsJson = False,
    data_dir: Annotated[Path | None, typer.Option(help="As for up.")] = None,
    redis_url: Annotated[str | None, typer.Option(help="As for up.")] = None,
    archive_url: Annotated[str | None, typer.Option(help="As for up.")] = None,
) -> None:
    """Let an empty Redis go on in the archive of an installation whose Redis was lost.

    Old files stay as they are and are not listed: only a backup of the lost Redis knows them.
    """
    if as_json:
        check_unasked(yes)
    settings = Settings.from_env_and_args(os.environ, data_dir=data_dir, redis_url=redis_url, archive_url=archive_url)
    if not yes:
        question = f"Is the Redis of the archive {settings.archive} lost for good, and no other server uses it?"
        typer.confirm(question, abort=True, err=True)
    with own_redis(settings) as url:
        found = asyncio.run(_adopt(settings, url))
    if as_json:
        show_json({"archive": settings.archive, "installation": found})
        return
    typer.echo(f"the archive {settings.archive} is taken up: installation {found}")


async def _adopt(settings: Settings, url: str) -> str:
    from stabilitybackend.runs.archiving.installation import Installation
    from stabilitybackend.storage.redis_link import check_server, make_redis

    redis = make_redis(url)
    try:
        await check_server(redis, url)
        return await Installation.of(settings).adopt(redis)
    finally:
        await redis.aclose()


def _retain(client: ApiClient, days: float, *, dry_run: bool) -> list[dict[str, Any]]:
    query = urlencode({"days": days, "dry_run": str(dry_run).lower()})
    runs: list[dict[str, Any]] = client.call("POST", f"/api/v1/retention?{query}", timeout_s=None)["runs"]
    return runs


def _show(runs: list[dict[str, Any]]) -> None:
    print_table(_RETAINED, [
        [
            *(str(run[name]) for name in ("run_id", "project", "name", "status")),
            time.strftime("%Y-%m-%d %H:%M", time.localtime(run["updated"])),
        ]
        for run in runs
    ])  # fmt: skip


def _size(size: float) -> str:
    return f"{size / _MIB:.1f} MiB"
