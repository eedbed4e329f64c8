"""``stabilityboard backtest``: judges logs and stored runs with the code that judges live runs."""

from __future__ import annotations

import contextlib
import gc
import multiprocessing
import os
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from stabilitybackend.base.api_client import run_path
from stabilitybackend.base.errors import WRONG_USE, BadRequest, StabilityBoardError, Unavailable
from stabilitybackend.cli.detectors import SETTINGS_HINT, parse_settings
from stabilitybackend.cli.options import ApiKey, DataDir, Url, connect
from stabilitybackend.plugins import load

if TYPE_CHECKING:
    from stabilityplugins.backtest.judged import Filter, Judged
    from stabilityplugins.backtest.sources import Log
    from stabilityplugins.importers.base import Importer

__all__ = ["backtest_command"]

#: Suffixes of a path that is meant as a file, also where there is none.
_FILE_SUFFIXES = (".jsonl", ".gz", ".ndjson", ".json", ".csv", ".tsv", ".parquet", ".wandb", ".log", ".txt")


def backtest_command(
    context: typer.Context,
    paths: Annotated[
        list[str] | None, typer.Argument(metavar="FILE...", help="Logs, folders of logs, exports, ids of stored runs.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object per incident and line.")] = False,
    plot: Annotated[
        Path | None, typer.Option(metavar="FILE.html", help="Draw the curves with the incidents into a page.")
    ] = None,
    sets: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="DETECTOR.PARAMETER=NUMBER", help="Try a setting; repeat it for several."),
    ] = None,
    only: Annotated[
        list[str] | None, typer.Option(metavar="NAME[,..]", help="Show only incidents of these detectors or kinds.")
    ] = None,
    severity: Annotated[str, typer.Option(help="Lowest severity to show: info, warning or critical.")] = "info",
    listed: Annotated[bool, typer.Option("--list", help="List the detectors and their parameters, and exit.")] = False,
    step_key: Annotated[str | None, typer.Option(help="Key or column that holds the step. (default: step)")] = None,
    rename: Annotated[
        list[str] | None,
        typer.Option(metavar="OLD=NEW", help="Judge a metric under another name, e.g. step_loss=loss; repeat it."),
    ] = None,
    autopilot: Annotated[
        Path | None, typer.Option(metavar="POLICY", help="Say what the autopilot would have done with this policy.")
    ] = None,
    gpus: Annotated[int, typer.Option(min=1, help="With --autopilot: GPUs of the job.")] = 1,
    checkpoint_every: Annotated[
        int, typer.Option(min=1, help="With --autopilot: steps between two checkpoints, where a log has none.")
    ] = 250,
    reaction_min: Annotated[
        float, typer.Option(min=0, help="With --autopilot: minutes that a person needs, to compare with.")
    ] = 10.0,
    jobs: Annotated[int, typer.Option(min=1, help="Logs that are judged at once, a process each.")] = 1,
    url: Url = None,
    api_key: ApiKey = None,
    data_dir: DataDir = None,
) -> None:
    """Run the detectors over past logs: JSON lines, TensorBoard, exports, stored runs.

    Exits with 1 when a log could not be read at all; the others are judged.
    """
    # Here and not above: it loads NumPy and Polars, which no other command waits for.
    from stabilityplugins.backtest import output
    from stabilityplugins.backtest.judged import Filter
    from stabilityplugins.importers.formats import formats_of
    from stabilityplugins.importers.names import parse_renames

    if listed:
        output.report_detectors(as_json)
        return
    if not paths:
        raise BadRequest("no log is given, expected FILE...", hint="stabilityboard backtest --help", code=WRONG_USE)
    settings = parse_settings(sets or [])
    shown = Filter(_severity(severity), _only(only or []))
    reading = _Reading(step_key, parse_renames(rename or []), formats_of(context.obj), (url, api_key, data_dir))
    if plot is not None:
        _check_page(plot)
    if autopilot is not None:
        assumed = (gpus, checkpoint_every, reaction_min)
        if not _fly(paths, autopilot, assumed, settings, reading, as_json):
            raise typer.Exit(1)
        return
    good, drawn = True, []
    with ExitStack() as stack, _rare_collections():
        logs = reading.logs(paths, stack)
        for judged in _judged(logs, settings, shown, jobs, with_curves=plot is not None):
            good = output.report(judged, as_json) and good
            if plot is not None and not judged.error:
                drawn.append(judged)
    if plot is not None and drawn:
        _draw(plot, drawn, settings)
    if not good:
        raise typer.Exit(1)


def _severity(name: str) -> str:
    from stabilitybackend.judging.detectors.engine.base import SEVERITIES

    if name not in SEVERITIES:
        raise BadRequest(f"--severity is {name!r}, expected one of {', '.join(SEVERITIES)}", code=WRONG_USE)
    return name


def _draw(plot: Path, drawn: list[Judged], settings: Mapping[str, Mapping[str, float]]) -> None:
    from stabilityplugins.backtest.page import write_page

    try:
        write_page(plot, drawn, settings)
    except OSError as error:
        raise BadRequest(f"--plot {plot} can't be written: {error}") from error
    typer.echo(f"drawn: {plot}", err=True)


def _fly(
    paths: list[str],
    policy: Path,
    assumed: tuple[int, int, float],
    settings: Mapping[str, Mapping[str, float]],
    reading: _Reading,
    as_json: bool,
) -> bool:
    """Print the autopilot's actions in each log, one log after another; return whether all could be judged."""
    from stabilitybackend.acting.autopilot.policy import read_policy
    from stabilitybackend.cli.autopilot import policy_text
    from stabilityplugins.backtest.autopilot import Assumed, Flight, fly
    from stabilityplugins.backtest.judged import Judged
    from stabilityplugins.backtest.output import report_flights

    known, given = read_policy(policy_text(policy), str(policy)), Assumed(assumed[0], assumed[1], 60.0 * assumed[2])
    with ExitStack() as stack, _rare_collections():
        logs = reading.logs(paths, stack)
        flights = (
            Flight(log.name, error=log.error, hint=log.hint)
            if isinstance(log, Judged)
            else fly(log, known, given, settings)
            for log in logs
        )
        return report_flights(flights, given, as_json)


def _only(texts: Iterable[str]) -> frozenset[str]:
    """Return the detectors and kinds that comma-separated texts name.

    Raises:
        BadRequest: one of them is no detector and no kind of any.
    """
    from stabilitybackend.judging.detectors.registry import DETECTORS

    wanted = [name.strip() for text in texts for name in text.split(",") if name.strip()]
    kinds = {kind for make in DETECTORS.values() for kind in make().kinds}
    for name in wanted:
        if name not in DETECTORS and name not in kinds:
            others = ", ".join(sorted(kinds - set(DETECTORS)))
            more = f", or a kind: {others}" if others else ""
            what = f"there is no detector {name!r}, expected one of {', '.join(DETECTORS)}{more}"
            raise BadRequest(f"--only: {what}", hint=SETTINGS_HINT, code=WRONG_USE)
    return frozenset(wanted)


def _check_page(plot: Path) -> None:
    """Raise BadRequest where no page can be written, before anything is judged."""
    folder = plot.resolve().parent
    if plot.suffix.lower() not in (".html", ".htm"):
        # ``--plot *.jsonl`` would write the page over the first log.
        raise BadRequest(f"--plot is {plot}, expected a name that ends in .html", code=WRONG_USE)
    if not folder.is_dir():
        raise BadRequest(f"--plot {plot}: the folder {folder} is not there", code=WRONG_USE)
    if plot.is_dir() or not os.access(plot if plot.exists() else folder, os.W_OK):
        raise BadRequest(f"--plot {plot} can't be written, expected a file in a folder of yours", code=WRONG_USE)


#: New objects without a collection, in place of Python's 700.
_GC_THRESHOLD = 200_000


@contextlib.contextmanager
def _rare_collections() -> Iterator[None]:
    """Let Python look for cycles rarely: a log is read as millions of objects without any, an eighth of the time."""
    before = gc.get_threshold()
    gc.set_threshold(_GC_THRESHOLD, *before[1:])
    try:
        yield
    finally:
        gc.set_threshold(*before)


class _StoredRuns:
    """Fetches stored runs into a folder that goes with the command."""

    def __init__(self, stack: ExitStack, server: tuple[str | None, str | None, Path | None]) -> None:
        self._stack = stack
        self._options = server
        self._folder: Path | None = None

    def fetch(self, run_id: str) -> Path:
        """Return an export of the run, all segments and dead points in it.

        Raises:
            StabilityBoardError: there is no such run, no server, or it refuses.
        """
        from stabilitybackend.cli.exporting import download

        try:
            with connect(*self._options) as client:
                run_id = client.run(run_id)["run_id"]
                if self._folder is None:
                    self._folder = Path(self._stack.enter_context(tempfile.TemporaryDirectory(prefix="backtest-")))
                path = self._folder / f"{run_id}.jsonl"
                with path.open("wb") as file:
                    download(client, f"{run_path(run_id)}/export", "jsonl", "all", [], file, lambda done, total: None)
        except Unavailable as error:
            raise Unavailable(
                f"{run_id} is no file, and whether it is a run can't be asked: {error.message}", hint=error.hint
            ) from error
        except StabilityBoardError as error:
            if error.status != 404:
                raise
            raise BadRequest(
                f"{run_id} is neither a file or folder here nor a run at {client.url}",
                hint="stabilityboard runs lists the stored runs; --url names another server",
            ) from error
        return path


@dataclass(frozen=True, slots=True)
class _Reading:
    """How logs are read.

    Attributes:
        step_key, renames, formats: as of ``read_files``.
        server: its URL, key and data folder, as the options give them.
    """

    step_key: str | None
    renames: Mapping[str, str]
    formats: Sequence[Importer]
    server: tuple[str | None, str | None, Path | None]

    def logs(self, paths: list[str], stack: ExitStack) -> Iterator[Log | Judged]:
        """Yield the logs in files, folders and stored runs; an error as a verdict without incidents, in its place."""
        from stabilityplugins.backtest.judged import Judged
        from stabilityplugins.backtest.sources import read_files

        stored = _StoredRuns(stack, self.server)
        for given in paths:
            try:
                if Path(given).exists() or os.sep in given or Path(given).suffix in _FILE_SUFFIXES:
                    yield from read_files(
                        [Path(given)], step_key=self.step_key, renames=self.renames, formats=self.formats
                    )
                else:
                    for log in read_files([stored.fetch(given)], renames=self.renames):
                        log.name = given
                        yield log
            except (StabilityBoardError, OSError) as error:
                hint = error.hint if isinstance(error, StabilityBoardError) else ""
                yield Judged(given, error=str(error), hint=hint)


def _judged(
    logs: Iterator[Log | Judged],
    settings: Mapping[str, Mapping[str, float]],
    shown: Filter,
    jobs: int,
    *,
    with_curves: bool,
) -> Iterator[Judged]:
    """Yield the result of each log, in the order given."""
    from stabilityplugins.backtest.judged import Judged, judge

    if jobs == 1:
        for log in logs:
            yield log if isinstance(log, Judged) else judge(log, settings, shown, with_curves=with_curves)
        return
    # Spawned, not forked: Polars has threads, and a forked copy of their locks may never open.
    with ProcessPoolExecutor(jobs, multiprocessing.get_context("spawn"), _begin_process) as pool:
        waiting = [
            log if isinstance(log, Judged) else pool.submit(judge, log, settings, shown, with_curves=with_curves)
            for log in logs
        ]
        for each in waiting:
            yield each if isinstance(each, Judged) else each.result()


def _begin_process() -> None:
    gc.set_threshold(_GC_THRESHOLD, *gc.get_threshold()[1:])
    load(os.environ)
