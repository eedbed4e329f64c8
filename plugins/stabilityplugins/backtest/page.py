"""The page of ``backtest --plot``: curves with their incidents, one file that needs no network."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from html import escape
from importlib.resources import files
from pathlib import Path
from typing import Any

import orjson

from stabilitybackend.judging.detectors.engine.base import SEVERITIES
from stabilityplugins.backtest.judged import Judged

__all__ = ["MAX_DRAWN", "page", "write_page"]

#: Incidents of one log that are drawn, the worst ones: more spans than this are no picture.
MAX_DRAWN = 300
_KEYS = (
    "kind", "severity", "state", "title", "text", "metric", "dataset", "rank", "segment", "dead", "onset_step", "step",
    "peak_step", "recovered_step", "recovery", "score",
)  # fmt: skip


def write_page(path: Path, logs: Sequence[Judged], settings: Mapping[str, Mapping[str, float]]) -> None:
    """Write the page to ``path``. Raises OSError."""
    path.write_text(page(logs, settings), encoding="utf-8")


def page(logs: Sequence[Judged], settings: Mapping[str, Mapping[str, float]]) -> str:
    """Return the page as HTML, about 5 MB: plotly.js is in it.

    Args:
        settings: of the judgement, shown with the logs.
    """
    from plotly.offline import get_plotlyjs  # 5 MB of JavaScript, read only where it is needed

    tried = ", ".join(
        f"{detector}.{name} = {value:g}" for detector, values in settings.items() for name, value in values.items()
    )
    parts = {
        "PLOTLY": get_plotlyjs(),
        "DATA": _json([_facts(log) for log in logs]),
        "SETTINGS": escape(f"with {tried}" if tried else "with default settings"),
        "TITLE": escape(f"Backtest of {logs[0].name}" if len(logs) == 1 else f"Backtest of {len(logs)} logs"),
    }
    template = files("stabilityplugins.backtest").joinpath("page.html").read_text("utf-8")
    for name, content in parts.items():
        template = template.replace(f"<!--{name}-->", content)
    return template


def _facts(log: Judged) -> dict[str, Any]:
    worst = sorted(log.incidents, key=lambda incident: (-SEVERITIES.index(incident["severity"]), -incident["score"]))
    drawn = sorted(worst[:MAX_DRAWN], key=lambda incident: incident["onset_step"])
    return {
        "name": log.name,
        "rows": log.rows,
        "points": log.points,
        "seconds": log.seconds,
        "left_out": len(log.incidents) - len(drawn),
        "incidents": [
            {key: incident[key] for key in _KEYS} | {"advice": (incident["suggestion"] or {}).get("text", "")}
            for incident in drawn
        ],
        "curves": [asdict(curve) for curve in log.curves],
    }


def _json(content: Any) -> str:
    """Return JSON that may be in a script: no text in it can end the element."""
    return orjson.dumps(content).decode().replace("<", "\\u003c")
