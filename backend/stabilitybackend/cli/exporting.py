"""``stabilityboard export``: writes a run to a Parquet or JSONL file, or to standard output."""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated, Any, BinaryIO

import httpx
import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from stabilitybackend.base.api_client import ApiClient, run_path
from stabilitybackend.base.errors import WRONG_USE, BadRequest, StabilityBoardError, Unavailable
from stabilitybackend.cli.options import ApiKey, AsJson, DataDir, Url, connect, show_json

__all__ = ["download", "export_run"]

_FORMATS = {".parquet": "parquet", ".jsonl": "jsonl", ".ndjson": "jsonl"}
_VIEWS = ("effective", "all")
#: How often the server is asked how far it is, seconds.
_POLL_S = 0.5
#: Seconds without a byte after which an export is given up: the server may have to read files from far away.
_STALLED_S = 120.0
_COLUMNS = (TextColumn("{task.description}", markup=False), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
_ID_HEADER = "X-Export-Id"


def export_run(
    run_id: Annotated[str, typer.Argument(help="The run, see: stabilityboard runs")],
    to: Annotated[
        str, typer.Option("--to", metavar="FILE", help="FILE.parquet, FILE.jsonl, or - (standard output).")
    ] = "",
    view: Annotated[str, typer.Option(help="all, or effective: without discarded points.")] = "all",
    metric: Annotated[list[str] | None, typer.Option(help="Only this metric; repeat it for several.")] = None,
    file_format: Annotated[
        str | None, typer.Option("--format", help="jsonl or parquet. (default: by the end of FILE; jsonl for -)")
    ] = None,
    as_json: AsJson = False,
    url: Url = None,
    api_key: ApiKey = None,
    data_dir: DataDir = None,
) -> None:
    """Write a run to a file, with its segments and discarded points; stabilityboard import reads it again.

    The file appears under its name when it is complete.
    """
    wanted = _format_of(to, file_format) if to else ""
    if as_json and to == "-":
        raise BadRequest("--json and --to - both want standard output", hint="write to a file", code=WRONG_USE)
    if view not in _VIEWS:
        raise BadRequest(f"--view is {view!r}, expected all or effective", hint="see stabilityboard export --help")
    with connect(url, api_key, data_dir) as client:
        run_id = client.run(run_id)["run_id"]  # its error names the fault of the URL, the key or the run
        if not to:
            raise BadRequest("--to is missing", hint=f"add --to {run_id}.parquet, or .jsonl", code=WRONG_USE)
        with _destination(to) as file, _bar(run_id) as show:
            facts = download(client, f"{run_path(run_id)}/export", wanted, view, metric or [], file, show)
    if as_json:
        show_json({"run_id": run_id, "file": to, "format": wanted, "problems": [], **facts})
        raise typer.Exit(int(bool(facts.get("problems"))))
    rows = facts.get("rows")
    known = "" if rows is None else f"{rows} rows ({facts['points']} points), "
    typer.echo(f"{run_id}: {known}{facts['bytes']} bytes of {wanted} to {to}", err=to == "-")
    if facts.get("problems"):
        typer.echo(f"{run_id}: could not be read on the server:", err=True)
        for problem in facts["problems"]:
            typer.echo(f"  {problem}", err=True)
        raise typer.Exit(1)


def _format_of(to: str, given: str | None) -> str:
    found = given or ("jsonl" if to == "-" else _FORMATS.get(Path(to).suffix.lower()))
    if found not in ("jsonl", "parquet"):
        what = f"--format is {given!r}" if given else f"--to is {to!r}"
        raise BadRequest(f"{what}, expected FILE.parquet or FILE.jsonl", hint="or say --format jsonl or parquet")
    return found


@contextlib.contextmanager
def _destination(to: str) -> Iterator[BinaryIO]:
    """Give a file to write to that takes its name at the end, or none is left."""
    if to == "-":
        try:
            yield sys.stdout.buffer
            sys.stdout.buffer.flush()
        except OSError as error:
            # Python would complain once more when it flushes at its end.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            if isinstance(error, BrokenPipeError):  # ``export - | head``: the reader has left
                raise typer.Exit(1) from None
            raise StabilityBoardError(f"standard output can't be written: {error.strerror}") from error
        return
    final = Path(to).resolve()  # a link stays one
    # A pipe or a device is written into: a file in its place would break it for everybody.
    part = None if _is_special(final) else final.with_name(f".{final.name}.{os.getpid()}.part")
    try:
        file = (part or final).open("wb")
    except OSError as error:
        raise StabilityBoardError(f"{to} can't be written: {error.strerror}", hint="is the folder there?") from error
    try:
        with file:
            yield file
            file.flush()
            if part is not None:
                os.fsync(file.fileno())
        if part is not None:
            part.replace(final)
    except OSError as error:
        raise StabilityBoardError(f"{to} can't be written: {error.strerror}") from error
    finally:
        if part is not None:
            part.unlink(missing_ok=True)


def _is_special(path: Path) -> bool:
    return path.exists() and not path.is_file() and not path.is_dir()


@contextlib.contextmanager
def _bar(run_id: str) -> Iterator[Callable[[int, int], None]]:
    with Progress(*_COLUMNS, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task(f"{run_id}: points", total=None)
        yield lambda done, total: progress.update(task, completed=min(done, total), total=total or None)


def download(
    client: ApiClient,
    place: str,
    wanted: str,
    view: str,
    metrics: list[str],
    file: BinaryIO,
    show: Callable[[int, int], None],
) -> dict[str, Any]:
    """Copy the answer into ``file`` and return its facts: ``rows``, ``points``, ``problems``, ``bytes``.

    Raises:
        Unavailable: the connection broke, so the file is not whole.
        StabilityBoardError: the server refused.
    """
    query: dict[str, Any] = {"format": wanted, "view": view, "metric": metrics}
    size, polled, state = 0, time.monotonic(), ""
    try:
        with client.stream(place, query, _STALLED_S) as answer:
            state = f"{place}/{answer.headers.get(_ID_HEADER, '')}"
            for chunk in answer.iter_raw():
                file.write(chunk)
                size += len(chunk)
                if time.monotonic() - polled > _POLL_S:
                    polled = time.monotonic()
                    facts = _facts(client, state)
                    show(facts.get("points", 0), facts.get("total", 0))
    except httpx.HTTPError as error:
        why = "; ".join(_facts(client, state).get("problems", ()) if state else ()) or str(error)
        raise Unavailable(
            f"the export broke off after {size} bytes ({why or type(error).__name__}); no file is left",
            hint="see the server log and try again",
        ) from error
    facts = _facts(client, state)
    if facts and not facts["done"]:
        raise Unavailable("the server did not finish the export; no file is left", hint="see its log and try again")
    return {**facts, "bytes": size}


def _facts(client: ApiClient, place: str) -> dict[str, Any]:
    try:
        facts: dict[str, Any] = client.get(place)
    except StabilityBoardError:
        return {}  # another process behind the same address answered: it knows nothing of this export
    return facts
