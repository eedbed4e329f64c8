"""Answers of the API, shortened for a reader whose context is small: the fields that name the fault. Pure."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

__all__ = ["checkpoint", "compared", "incident", "listed_incident", "points", "run_row", "run_state", "segment", "text"]

#: Characters of one answer; a longer one is cut, with a note. About 6,000 tokens.
MAX_CHARS = 24_000
#: Characters of a text of a job or a person, items of a list inside an incident's evidence.
MAX_TEXT, MAX_ITEMS = 600, 12
#: Newest values of a run that are named.
MAX_LATEST = 30
#: Steps at which two runs are laid side by side.
MAX_ROWS = 16
#: From here on numbers are times and sizes, which stay whole; below, six digits are enough.
MAX_ROUNDED = 1e6
#: Steps of values that are not finite that are named one by one.
MAX_NAMED = 8

_ROW = (
    "run_id", "name", "project", "tags", "status", "note", "step", "loss", "loss_metric", "ranks", "gpus", "speed",
    "speed_unit", "goodput", "open_incidents", "rollbacks", "created", "updated",
)  # fmt: skip
_RUN = (
    "run_id", "name", "project", "tags", "status", "note", "last_step", "loss_metric", "unwatched", "rollbacks",
    "open_incidents", "created", "updated", "began", "logged",
)  # fmt: skip
_LISTED = (
    "run_id", "run_name", "incident_id", "kind", "severity", "status", "title", "metric", "rank", "node", "onset_step",
    "step", "opened", "resolved", "acknowledged_by", "advice", "caused_by", "nth",
)  # fmt: skip
_INCIDENT = (
    "incident_id", "run_id", "kind", "label", "severity", "state", "status_word", "title", "text", "metric", "dataset",
    "rank", "node", "segment", "onset_step", "step", "peak_step", "recovered_step", "until_step", "opened", "resolved",
    "acknowledged_by", "dead", "caused_by", "train", "nth",
)  # fmt: skip
_CHECKPOINT = ("step", "segment", "time", "where", "inside", "unfit", "unchecked", "complete", "kind", "size_bytes")
_SEGMENT = (
    "id", "label", "parent", "fork_step", "first_step", "last_step", "dead_after", "kept", "discarded", "on_head_path",
    "cause", "reason", "command_id", "issuer", "changes", "applied", "created", "returns_to",
)  # fmt: skip


def text(answer: Mapping[str, Any]) -> str:
    """Return an answer as compact JSON of at most MAX_CHARS: lists are cut from their end, longest first."""
    cut = dict(answer)
    written = _json(cut)
    while len(written) > MAX_CHARS:
        longest = max(
            (name for name, value in cut.items() if isinstance(value, list | str) and len(value) > 1),
            key=lambda name: len(_json(cut[name])),
            default=None,
        )
        if longest is None:
            return _json({"cut": "the answer is too long; ask for less", "begin": written[: MAX_CHARS // 2]})
        cut[longest] = cut[longest][: len(cut[longest]) // 2]
        cut["cut"] = f"{longest} is cut to fit: ask for less, or look at the page"
        written = _json(cut)
    return written


def run_row(row: Mapping[str, Any], columns: Sequence[str] = ()) -> dict[str, Any]:
    """Return a row of the table of runs; ``columns`` name its further cells."""
    shown = _some(row, _ROW) | _state(row)
    if columns:
        shown["columns"] = dict(zip(columns, row["cells"], strict=False))
    return shown


def run_state(run: Mapping[str, Any]) -> dict[str, Any]:
    """Return a run's identity and state."""
    latest: dict[str, Any] = {name: _shortened(value) for name, value in list(run["latest"].items())[:MAX_LATEST]}
    loss: str | None = run.get("loss_metric")
    if loss is not None and loss in run["latest"]:
        latest = {loss: _shortened(run["latest"][loss])} | latest
    left_out = run["metric_count"] - len(latest)
    return _some(run, _RUN) | _state(run) | {
        "ranks": run["world"],
        "agents": run["agents"],
        "latest_values": latest,
        "metrics_not_listed": max(0, left_out),
        "config": _shortened(run["config"]),
        "storing_problem": run.get("storing"),
    }  # fmt: skip


def listed_incident(one: Mapping[str, Any]) -> dict[str, Any]:
    """Return an incident of a list."""
    return _some(one, _LISTED)


def incident(one: Mapping[str, Any]) -> dict[str, Any]:
    """Return one incident with its verdict, its advice and its evidence."""
    evidence = dict(one["evidence"])
    verdict = evidence.pop("verdict", None)
    return _some(one, _INCIDENT) | {
        "verdict": _shortened(verdict),
        "advice": _shortened(one.get("suggestion")),
        "evidence": _shortened(evidence),
        "what_people_can_do": one["actions"],
    }


def checkpoint(one: Mapping[str, Any]) -> dict[str, Any]:
    """Return a checkpoint."""
    return _some(one, _CHECKPOINT)


def segment(one: Mapping[str, Any]) -> dict[str, Any]:
    """Return a segment of the lineage."""
    return _some(one, _SEGMENT)


def points(answer: Mapping[str, Any], metric: str) -> dict[str, Any]:
    """Return the points of one metric by step, and in words which of them are not finite."""
    pairs = _pairs(answer["series"], metric)
    level = answer["level"]
    ranks = sorted({one["rank"] for one in answer["series"] if one["rank"] is not None})
    shown: dict[str, Any] = {
        "metric": metric,
        "rank": ranks[0] if ranks else None,
        "resolution": "every logged step" if level == 0 else f"extremes of each {2**level} steps",
        "points": [[step, value] for step, value in pairs],
        "in_words": _in_words(metric, pairs),
    }
    if answer["problems"]:
        shown["problems"] = answer["problems"][:MAX_ITEMS]
    return shown


def compared(answer: Mapping[str, Any], metrics: Iterable[str]) -> list[dict[str, Any]]:
    """Return for each metric the runs' last values, and their values side by side at a few common x."""
    found = []
    for metric in metrics:
        by_run = {run["run_id"]: _pairs(run["series"], metric, run["offset"]) for run in answer["runs"]}
        missing = [name for name, pairs in by_run.items() if not pairs]
        there = {name: pairs for name, pairs in by_run.items() if pairs}
        rows: list[list[Any]] = []
        if there:
            first = max(pairs[0][0] for pairs in there.values())
            last = min(pairs[-1][0] for pairs in there.values())
            rows = [[x, *(_before(pairs, x) for pairs in there.values())] for x in _spread(first, last)]
        found.append({
            "metric": metric,
            "runs": {name: {"last_x": pairs[-1][0], "last_value": pairs[-1][1]} for name, pairs in there.items()},
            "side_by_side": {"columns": ["x", *there], "rows": rows},
            **({"not_logged_by": missing} if missing else {}),
        })  # fmt: skip
    return found


def _pairs(series: Iterable[Mapping[str, Any]], metric: str, offset: float = 0.0) -> list[tuple[float, Any]]:
    """Return (x, value) of a metric's points on the effective timeline, by x."""
    pairs: dict[float, Any] = {}
    for one in series:
        if one["metric"] == metric and not one["dead"] and not one["stray"]:
            xs = one.get("xs") or [step - offset for step in one["steps"]]
            pairs.update(zip((_whole(x) for x in xs), map(_shortened, one["values"]), strict=True))
    return sorted(pairs.items())


def _whole(x: float) -> float:
    return int(x) if float(x).is_integer() else round(x, 3)


def _spread(first: float, last: float) -> list[float]:
    """Return up to MAX_ROWS places from first to last, both included."""
    if last < first:
        return []
    count = min(MAX_ROWS, max(2, int(last - first) + 1))
    return list(dict.fromkeys(_whole(round(first + (last - first) * n / (count - 1))) for n in range(count)))


def _before(pairs: Sequence[tuple[float, Any]], x: float) -> Any:
    """Return the newest value at or before ``x``."""
    return next((value for at, value in reversed(pairs) if at <= x), None)


def _in_words(metric: str, pairs: Sequence[tuple[float, Any]]) -> str:
    if not pairs:
        return f"{metric} has no points there."
    odd = [(step, value) for step, value in pairs if isinstance(value, str)]
    finite = [(step, value) for step, value in pairs if isinstance(value, int | float) and math.isfinite(value)]
    words = []
    if finite:
        low, high = min(finite, key=lambda pair: pair[1]), max(finite, key=lambda pair: pair[1])
        words.append(
            f"{metric} goes from {_number(finite[0][1])} at step {finite[0][0]} to {_number(finite[-1][1])} at step "
            f"{finite[-1][0]}; least {_number(low[1])} at step {low[0]}, greatest {_number(high[1])} at step {high[0]}."
        )
    if odd:
        named = ", ".join(f"{value} at step {step}" for step, value in odd[:MAX_NAMED])
        more = f" and {len(odd) - MAX_NAMED} more" if len(odd) > MAX_NAMED else ""
        words.append(f"{len(odd)} of these {len(pairs)} points are not finite: {named}{more}.")
    return " ".join(words)


def _number(value: float) -> str:
    return f"{value:.5g}"


def _state(run: Mapping[str, Any]) -> dict[str, Any]:
    state, worst = run["state"], run.get("worst_incident")
    return {
        "state": state["word"],
        "does": state["phase"],
        "condition": state["condition"],
        "worst_incident": None if worst is None else _some(worst, ("incident_id", "kind", "severity", "title",
                                                                    "advice", "acknowledged")),
    }  # fmt: skip


def _some(source: Mapping[str, Any], names: Iterable[str]) -> dict[str, Any]:
    """Return some fields without those that say nothing."""
    return {name: _shortened(source[name]) for name in names if source.get(name) not in (None, "", [], {})}


def _shortened(value: Any, depth: int = 0) -> Any:
    """Return JSON with long texts and lists cut, numbers rounded, and nothing deeper than five levels."""
    if isinstance(value, float) and abs(value) < MAX_ROUNDED:
        return float(f"{value:.6g}")
    if isinstance(value, str):
        return value if len(value) <= MAX_TEXT else f"{value[:MAX_TEXT]}... ({len(value)} characters)"
    if depth >= 5 and isinstance(value, dict | list):
        return "..."
    if isinstance(value, Mapping):
        kept = {str(name): _shortened(one, depth + 1) for name, one in list(value.items())[: 4 * MAX_ITEMS]}
        return kept if len(value) <= 4 * MAX_ITEMS else kept | {"...": f"{len(value)} entries"}
    if isinstance(value, list):
        kept_items = [_shortened(one, depth + 1) for one in value[:MAX_ITEMS]]
        return kept_items if len(value) <= MAX_ITEMS else [*kept_items, f"... {len(value)} in all"]
    return value


_json: Callable[[Any], str] = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"), default=str).encode
