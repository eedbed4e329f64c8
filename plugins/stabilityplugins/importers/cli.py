"""``stabilityboard import``: uploads runs from spool folders, other trackers' files and our own exports.

Everything goes through the gateway, whose check of the last number makes an import repeatable: stored rows
are not stored again.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any
from urllib.parse import quote

import msgspec
import typer
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

from stabilitybackend.base.api_client import ApiClient, run_path
from stabilitybackend.base.errors import BadRequest, StabilityBoardError
from stabilitybackend.cli.echo import echo, printable
from stabilitybackend.cli.options import ApiKey, AsJson, DataDir, Url, connect, show_json
from stabilitybackend.schema.lineage import Segments

if TYPE_CHECKING:
    from stabilityplugins.importers.base import ImportPlan
    from stabilityplugins.importers.job import ImportResult, Options

__all__ = ["import_paths"]

#: The server has stored the last frame, and may take a moment more to see its segments, seconds.
FOLDED_WITHIN_S = 10.0
#: Between two looks, seconds.
LOOK_S = 0.1

#: Steps in a line.
_MAX_STEPS = 8


def bring_annotations(exported: Mapping[str, Any] | None, run_id: str, url: str, api_key: str | None) -> list[str]:
    """Copy an export's annotations to the imported run, with the same ids, so it may be repeated.

    Args:
        exported: the export's facts of its run, None of other files.

    Returns:
        Lines of the result: their number, or the reason of their absence.
    """
    given = (exported or {}).get("annotations")
    if exported is None or not isinstance(given, list) or not given:
        return []
    try:
        with ApiClient(url, api_key) as client:
            segments = _segments(exported, client, run_id)
            for one in given:
                body = {name: one[name] for name in ("text", "first_step", "last_step", "metric", "author", "created")}
                body["segment"] = segments.get(one.get("segment"), 0)
                path = f"{run_path(run_id)}/annotations/{quote(str(one['annotation_id']), safe='')}"
                client.call("PUT", path, body)
    except (StabilityBoardError, KeyError, TypeError, AttributeError) as error:
        return [f"its {len(given)} annotations are not all on the server: {error}; a key needs the scope command"]
    return [f"{len(given)} annotation{'s' if len(given) != 1 else ''}"]


def _segments(exported: Mapping[str, Any], client: ApiClient, run_id: str) -> dict[Any, int]:
    """Return segment in the file -> segment of the run; an export of the effective timeline leaves some out."""
    from stabilityplugins.importers.lineage import ExportedLineage

    keys, until = ExportedLineage(exported).keys, time.monotonic() + FOLDED_WITHIN_S
    while True:
        known = {one["key"]: one["id"] for one in client.get(f"{run_path(run_id)}/segments")["segments"]}
        if known.keys() >= set(keys.values()) or time.monotonic() > until:
            return {0: 0} | {segment: known[key] for segment, key in keys.items() if key in known}
        time.sleep(LOOK_S)


def inferred_lineage(run_id: str, url: str, api_key: str | None) -> list[str]:
    """Return lines about the inferred lineage of an imported run: its step counting, and its rollbacks."""
    try:
        with ApiClient(url, api_key) as client:
            _wait_until_folded(client, run_id)
            counted = [str(note) for note in client.get(run_path(run_id)).get("log_notes") or ()]
            found = msgspec.convert(client.get(f"{run_path(run_id)}/segments"), Segments, strict=False).inferred()
    except (StabilityBoardError, msgspec.ValidationError):  # a key that may only send
        return []
    if not found:
        return counted
    steps = [
        f"step {one.fork_step:,}" if one.fork_step is not None and one.fork_step >= 0 else "the start"
        for one in found[:_MAX_STEPS]
    ]
    back = ", ".join(steps) + (", ..." if len(found) > _MAX_STEPS else "")
    what = "1 rollback or restart was" if len(found) == 1 else f"{len(found)} rollbacks or restarts were"
    return [
        *counted,
        f"{what} inferred from steps that go back, to {back}; not so? import it again with --no-rollbacks --run-id NEW",
    ]


def _wait_until_folded(client: ApiClient, run_id: str) -> None:
    """Wait until the server has judged the last row: then it reports the run as ended."""
    until = time.monotonic() + FOLDED_WITHIN_S
    while client.get(run_path(run_id)).get("status") not in ("finished", "crashed") and time.monotonic() < until:
        time.sleep(LOOK_S)


_COLUMNS = (TextColumn("{task.description}", markup=False), BarColumn(), DownloadColumn(), TimeRemainingColumn())


def _show_formats(context: typer.Context, asked: bool) -> None:
    if asked:
        from stabilityplugins.importers.formats import formats_of

        for importer in formats_of(context.obj):
            echo(f"{importer.label}: {importer.known}")
        raise typer.Exit


def import_paths(
    context: typer.Context,
    paths: Annotated[list[Path], typer.Argument(metavar="PATH...", help="Files or folders; see --formats.")],
    run_id: Annotated[
        str | None, typer.Option(help="Put everything into one run of this id. (default: a run per file or folder)")
    ] = None,
    name: Annotated[str | None, typer.Option(help="Name of the run. (default: from the file or its path)")] = None,
    project: Annotated[str | None, typer.Option(help="Project of the run.")] = None,
    rename: Annotated[
        list[str] | None, typer.Option(metavar="OLD=NEW", help="Rename a metric; repeat it for several.")
    ] = None,
    keep_names: Annotated[
        bool, typer.Option("--keep-names", help="Do not store train/loss and the like as loss where there is no loss.")
    ] = False,
    step_key: Annotated[str | None, typer.Option(help="Key or column that holds the step.")] = None,
    no_rollbacks: Annotated[
        bool, typer.Option("--no-rollbacks", help="Take steps that go back for no rollback and no restart.")
    ] = False,
    follow: Annotated[
        bool,
        typer.Option("--follow", help="Go on while another job writes the files; Ctrl-C ends the run as finished."),
    ] = False,
    until_quiet: Annotated[
        float | None,
        typer.Option(min=1.0, metavar="SECONDS", help="With --follow: end the run when nothing came for so long."),
    ] = None,
    quiet_after: Annotated[
        float | None,
        typer.Option(
            min=1.0,
            metavar="SECONDS",
            help="With --follow: show the run as quiet after so long. (default: 5 x the longest pause, at least 300)",
        ),
    ] = None,
    formats: Annotated[
        bool, typer.Option("--formats", callback=_show_formats, is_eager=True, help="List the formats, and exit.")
    ] = False,
    as_json: AsJson = False,
    url: Url = None,
    api_key: ApiKey = None,
    data_dir: DataDir = None,
) -> None:
    """Upload runs: offline spools, files of other trackers (--formats lists them), and our exports.

    What the server has already is not sent again. Exits with 1 when something could not be read or sent.
    """
    # Here and not above: the readers load Polars and NumPy, which no other command waits for.
    from stabilityplugins.importers.detect import find_plans
    from stabilityplugins.importers.formats import formats_of
    from stabilityplugins.importers.job import Options
    from stabilityplugins.importers.names import parse_renames

    options = Options(name, project, parse_renames(rename or []), keep_names, step_key, no_rollbacks)
    if not follow and (until_quiet is not None or quiet_after is not None):
        raise BadRequest("--until-quiet and --quiet-after are for --follow", hint="add --follow")
    readers = formats_of(context.obj)
    plans = [] if follow else find_plans(paths, run_id=run_id, formats=readers)
    with connect(url, api_key, data_dir) as client:
        client.get("/healthz")  # an unreachable server is reported immediately, not after a minute of trying
    target, reports = client.url, _Reports(as_json)
    if follow:
        from stabilityplugins.importers.follow import FollowOptions
        from stabilityplugins.importers.following import follow_paths

        stored = partial(_stored_config, url=target, api_key=api_key)
        asked = FollowOptions(options, quiet_after, until_quiet)
        good = follow_paths(paths, run_id, asked, target, api_key, stored, reports.report, readers, as_json)
        reports.close()
        raise typer.Exit(0 if good else 1)
    good = True
    console = Console(stderr=True, soft_wrap=True, highlight=False)
    with Progress(*_COLUMNS, console=console, transient=True) as progress:
        for plan in plans:
            bar = progress.add_task(printable(plan.name), total=plan.size or None)
            try:
                good = _import(plan, options, target, api_key, _Bar(progress, bar), reports) and good
            except (StabilityBoardError, OSError) as error:
                hint = f" ({error.hint})" if isinstance(error, StabilityBoardError) and error.hint else ""
                reports.failed(plan.name, str(error))
                echo(f"{plan.name}: failed: {error}{hint}", err=True)
                for note in [*plan.notes, *map(str, plan.refused)]:
                    echo(f"  note: {note}", err=True)
                good = False
            progress.remove_task(bar)
    reports.close()
    if not good:
        raise typer.Exit(1)


@dataclass(frozen=True, slots=True)
class _Bar:
    progress: Progress
    task: object

    def show(self, done: int, total: int | None = None) -> None:
        more = {} if total is None else {"total": total}
        self.progress.update(self.task, completed=done, **more)  # type: ignore[arg-type]


def _import(plan: ImportPlan, options: Options, url: str, api_key: str | None, bar: _Bar, reports: _Reports) -> bool:
    """Import one run, report the result, and return whether all its rows are on the server."""
    if plan.kind == "spool":
        return _import_spool(plan.paths[0], url, api_key, bar.show, reports)
    from stabilityclient.agent.upload.door import agent_url
    from stabilityplugins.importers.job import ImportJob

    job = ImportJob(plan, options)
    job.sniff()
    config = _stored_config(job.run_id, url, api_key)
    result = asyncio.run(job.send(agent_url(url), api_key, lambda: bar.show(job.reading.bytes_read), config))
    result.reading.notes.extend(bring_annotations(plan.exported, job.run_id, url, api_key))
    if plan.exported is None:
        result.reading.notes.extend(inferred_lineage(job.run_id, url, api_key))
    return reports.report(result, plan.importer.label)


def _stored_config(run_id: str, url: str, api_key: str | None) -> dict[str, Any] | None:
    """Return the run's config at the server, None for a new run or a key that may only send."""
    try:
        with ApiClient(url, api_key) as client:
            config = client.get(run_path(run_id)).get("config")
    except StabilityBoardError:
        return None
    return config if isinstance(config, dict) else None


class _Reports:
    """Reports of the runs: immediate lines, or one JSON document at the end where that is wanted."""

    def __init__(self, as_json: bool) -> None:
        self._as_json = as_json
        self._runs: list[dict[str, Any]] = []

    def note(self, facts: dict[str, Any], words: str) -> None:
        self._runs.append(facts)
        echo(words, err=self._as_json)

    def failed(self, name: str, why: str) -> None:
        self._runs.append({"name": name, "failed": why})

    def report(self, result: ImportResult, kind: str) -> bool:
        """Report the result of an importer's run; return whether all its rows could be read."""
        reading = result.reading
        self._runs.append({
            "run_id": result.run_id, "format": kind, "rows": result.rows, "points": result.values,
            "already": result.already, "renames": result.renames, "notes": list(reading.notes),
            "unreadable": reading.count,
        })  # fmt: skip
        return _report(result, kind, err=self._as_json)

    def close(self) -> None:
        """Print the JSON document, where it is wanted."""
        if self._as_json:
            show_json({"runs": self._runs})


def _report(result: ImportResult, kind: str, *, err: bool) -> bool:
    echo(
        f"{result.run_id}: {result.rows} rows ({result.values} points) of {kind} sent, {result.already} rows were "
        "there already",
        err=err,
    )
    for theirs, ours in result.renames.items():
        echo(f"  {theirs} is stored as {ours}", err=err)
    for note in result.reading.notes:
        echo(f"  note: {note}", err=err)
    reading = result.reading
    if not reading.count:
        return True
    echo(f"{result.run_id}: {reading.count} could not be read:", err=True)
    for line in reading.lines():
        echo(f"  {line}", err=True)
    return False


def _import_spool(
    folder: Path, url: str, api_key: str | None, progress: Callable[[int, int], None], reports: _Reports
) -> bool:
    # Only here: the backend knows no other part of the client than its wire schema.
    from stabilityclient.agent.upload.importer import upload
    from stabilityclient.errors import StabilityError

    try:
        report = asyncio.run(upload(folder, url, api_key, progress))
    except StabilityError as error:
        reports.failed(str(folder), str(error))
        echo(f"{folder}: failed: {error}", err=True)
        return False
    had = report.records - report.sent
    text = f"{report.run_id}: {report.sent} records sent, {had} were there already"
    facts = {"run_id": report.run_id, "format": "spool", "records": report.sent, "already": had}
    text += f", {report.damaged} damaged in the spool" if report.damaged else ""
    reports.note(facts | {"damaged": report.damaged}, text)
    return True
