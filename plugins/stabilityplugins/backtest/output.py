"""Output of ``stabilityboard backtest``: tables for a terminal, JSON lines for programs."""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

import orjson
import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Column, Table

from stabilitybackend.cli.detectors import detector_table
from stabilitybackend.cli.echo import echo
from stabilitybackend.judging.detectors.engine.base import SEVERITIES
from stabilitybackend.judging.detectors.registry import detector_list
from stabilitybackend.schema.watched import WatchedMetric, WatchedMetrics
from stabilityplugins.backtest.judged import Judged

if TYPE_CHECKING:
    from stabilityplugins.backtest.autopilot import Assumed, Flight

__all__ = ["JSON_KEYS", "report", "report_detectors", "report_flights"]

#: Fields of each line of ``--json`` behind ``file``, in this order. Times are not among them: a log without times has
#: made-up ones.
JSON_KEYS = (
    "kind", "step", "onset_step", "peak_step", "recovered_step", "severity", "dataset", "rank", "segment", "evidence",
    "suggestion", "recovery", "state", "metric", "title", "text", "incident_id", "dead", "score",
)  # fmt: skip
#: Width of a table without a terminal's bound, characters.
_FREE_WIDTH = 160
#: Names in the lists of watched and unwatched metrics.
_MAX_NAMES = 12
_STYLES = {"critical": "bold red", "warning": "yellow", "info": "dim"}


def report(judged: Judged, as_json: bool) -> bool:
    """Print the result of one log; return whether it could be judged."""
    _report_problems(judged)
    if judged.error:
        hint = f" ({judged.hint})" if judged.hint else ""
        echo(f"{judged.name}: can't be judged: {judged.error}{hint}", err=True)
        return False
    if as_json:
        for incident in judged.incidents:
            facts = {"file": judged.name, **{key: incident.get(key) for key in JSON_KEYS}}
            sys.stdout.buffer.write(orjson.dumps(facts, option=orjson.OPT_APPEND_NEWLINE))
        sys.stdout.buffer.flush()
    elif judged.incidents:
        _console().print(_table(judged))
    echo(_summary(judged), err=as_json)
    for line in _watched(judged.watched) if judged.watched is not None else ():
        echo(f"  {line}", err=as_json)
    return True


def report_detectors(as_json: bool) -> None:
    """Print all detectors and their settings."""
    detectors = detector_list()
    if as_json:
        typer.echo(orjson.dumps(detectors, option=orjson.OPT_INDENT_2).decode())
        return
    _console().print(detector_table(detectors, {}))


def _console() -> Console:
    console = Console(highlight=False)
    return console if console.is_terminal else Console(highlight=False, width=_FREE_WIDTH)


def _table(judged: Judged) -> Table:
    table = Table(
        Column("kind", no_wrap=True),
        "severity",
        Column("onset", justify="right", no_wrap=True),
        Column("seen", justify="right", no_wrap=True),
        Column("delay", justify="right", no_wrap=True),
        Column("recovered", justify="right", no_wrap=True),
        "recovery",
        "where",
        Column("what", ratio=1),
        title=escape(judged.name),
        title_justify="left",
        title_style="bold",
    )
    for incident in judged.incidents:
        style = "dim strike" if incident["dead"] else _STYLES[incident["severity"]]
        table.add_row(
            incident["kind"],
            incident["severity"],
            str(incident["onset_step"]),
            str(incident["step"]),
            str(incident["step"] - incident["onset_step"]),
            _text(incident["recovered_step"]),
            _ending(incident),
            escape(_where(incident)),
            escape(_first_sentence(incident)),
            style=style,
        )
    return table


def _ending(incident: dict[str, Any]) -> str:
    if incident["dead"] and incident["recovered_step"] is None:
        return "superseded"
    return str(incident["recovery"] or ("" if incident["state"] == "open" else incident["state"]))


def _first_sentence(incident: dict[str, Any]) -> str:
    text = str(incident["text"] or incident["title"])
    end = text.find(". ")
    return text if end < 0 else text[: end + 1]


def _where(incident: dict[str, Any]) -> str:
    found = [str(incident["dataset"])] if incident["dataset"] is not None else []
    found += [f"rank {incident['rank']}"] if incident["rank"] is not None else []
    found += [f"segment {incident['segment']}"] if incident["segment"] else []
    metric = incident["metric"]
    found += [str(metric)] if metric is not None and not metric.startswith("loss") else []
    return ", ".join(found)


def _text(value: Any) -> str:
    return "" if value is None else str(value)


def _summary(judged: Judged) -> str:
    counts = Counter(incident["severity"] for incident in judged.incidents)
    found = ", ".join(f"{counts[severity]} {severity}" for severity in reversed(SEVERITIES) if counts[severity])
    dead = sum(bool(incident["dead"]) for incident in judged.incidents)
    left = f" ({dead} on branches that were left)" if dead else ""
    return (
        f"{judged.name}: {judged.rows:,} rows, {judged.points:,} points in {judged.seconds:.1f} s; "
        f"incidents: {found or 'none'}{left}"
    )


def _watched(watched: WatchedMetrics) -> Iterator[str]:
    """Yield the metrics judged, by role, and those not judged."""
    shown = [_as(one) for one in watched.watched[:_MAX_NAMES]]
    more = len(watched.watched) - len(shown)
    yield f"watched: {', '.join(shown) or 'nothing'}{f' and {more} more' if more else ''}"
    if watched.unwatched_count:
        names, more = watched.unwatched[:_MAX_NAMES], watched.unwatched_count - _MAX_NAMES
        yield f"not watched: {', '.join(names)}{f' and {more} more' if more > 0 else ''}"
    yield from watched.notes


def _as(one: WatchedMetric) -> str:
    of = f" of {one.dataset}" if one.dataset is not None else ""
    why = "" if one.why == "name" else ", by its values" if one.why == "values" else ", declared"
    if not one.role and one.text:
        return f"{one.metric} (a note at most)"
    told = (one.role or "other metric") + of
    plain = not why and one.metric in (one.role, f"{one.role}/{one.dataset}")
    return one.metric if plain else f"{one.metric} ({told}{why})"


def _report_problems(judged: Judged) -> None:
    reading = judged.reading
    for note in reading.notes:
        echo(f"note: {note}", err=True)
    for name, count in judged.failures.items():
        echo(f"{judged.name}: the detector {name} failed {count} times and began afresh each time", err=True)
    if judged.unreadable:
        echo(f"{judged.name}: {judged.unreadable} pieces could not be folded and are passed over", err=True)
    if reading.count and not judged.error:  # the error names the first one
        echo(f"{judged.name}: {reading.count} could not be read, the rest is judged:", err=True)
        for line in reading.lines():
            echo(f"  {line}", err=True)


def report_flights(flights: Iterable[Flight], assumed: Assumed, as_json: bool) -> bool:
    """Print the result of each log; return whether all could be judged."""
    good, won, lost, rolled = True, 0.0, 0.0, 0
    for flight in flights:
        if flight.error:
            hint = f" ({flight.hint})" if flight.hint else ""
            typer.echo(f"{flight.name}: can't be judged: {flight.error}{hint}", err=True)
            good = False
            continue
        for one in flight.done:
            hours = one.gpu_hours or 0.0
            won, lost = won + max(0.0, hours), lost - min(0.0, hours)
            rolled += one.entry.action == "roll_back"
            if as_json:
                typer.echo(json.dumps({"file": flight.name, **one.as_json()}))
        typer.echo(_facts(flight, assumed), err=as_json)
        if flight.done and not as_json:
            console = Console(highlight=False)
            console = console if console.is_terminal else Console(highlight=False, width=_FREE_WIDTH)
            console.print(_flight_table(flight))
    typer.echo(
        f"{rolled} rollbacks it would have made: {won:.1f} GPU-hours won, {lost:.1f} lost, against a person who goes "
        f"back as advised {assumed.reaction_s / 60:g} minutes after the alarm, and only if it is still open then",
        err=as_json,
    )
    return good


def _facts(flight: Flight, assumed: Assumed) -> str:
    saved = "its own checkpoints" if flight.own_checkpoints else (
        f"a verified checkpoint each {assumed.checkpoint_every:,} steps assumed, the log has none"
    )  # fmt: skip
    done = f"{len(flight.done)} actions" if flight.done else "it would have done nothing"
    return f"{flight.name}: {flight.rows:,} rows, {flight.step_s:.3g} s a step, {assumed.gpus:,} GPUs, {saved}: {done}"


def _flight_table(flight: Flight) -> Table:
    table = Table(
        Column("step", justify="right", no_wrap=True), "would have", "about", "in the log",
        Column("steps won", justify="right"), Column("GPU-hours", justify="right"), Column("why", ratio=1),
    )  # fmt: skip
    for one in flight.done:
        entry = one.entry
        changes = [
            "left out batches" if entry.skip_range or entry.skip_batches else "",
            f"LR x {entry.lr_scale:g}" if entry.lr_scale is not None else "",
            "a new seed" if entry.seed is not None else "",
        ]
        what = "asked people"
        if entry.to_step is not None:
            what = ", ".join([f"rolled back to {entry.to_step:,}", *filter(None, changes)])
        table.add_row(
            f"{entry.step:,}", what, f"{entry.kind} of step {entry.onset_step:,}", one.end,
            "" if one.steps is None else f"{one.steps:+,}", "" if one.gpu_hours is None else f"{one.gpu_hours:+.1f}",
            escape(entry.text),
        )  # fmt: skip
    return table
