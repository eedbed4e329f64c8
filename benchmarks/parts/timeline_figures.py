"""What timeline.py measures of one run, and the table that shows it."""

from __future__ import annotations

import math
import statistics
from dataclasses import dataclass, field
from typing import Any

from big_run import METRICS

__all__ = ["Figures", "growth", "quantile", "table", "together"]


@dataclass
class Figures:
    """What was measured of one run.

    Attributes:
        warm, cold: ms by name of the window. floor: ms of an answer with nothing in it, taken in between.
        hidden: planted values that an answer did not show. shown: how many answers did.
        wrong: where an answer is not what was sent. compared: raw values that were.
    """

    points: int
    steps: int
    feed_s: float = 0.0
    settle_s: float = 0.0
    up_s: list[float] = field(default_factory=list)
    restored_s: list[float] = field(default_factory=list)
    warm: dict[str, list[float]] = field(default_factory=dict)
    cold: dict[str, list[float]] = field(default_factory=dict)
    floor: list[float] = field(default_factory=list)
    all_at_once_ms: list[float] = field(default_factory=list)
    shown: int = 0
    compared: int = 0
    hidden: list[str] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)
    rss_mib: dict[str, float] = field(default_factory=dict)
    storage: dict[str, Any] = field(default_factory=dict)
    files_mib: dict[str, float] = field(default_factory=dict)
    answer_kib: float = 0.0
    peers: dict[str, Any] = field(default_factory=dict)


def growth(every: list[dict[str, list[float]]]) -> dict[str, list[float]]:
    """Return, by the window's name, each run's median time divided by that of the first run.

    Args:
        every: of each run its times by the window's name.
    """
    names = [name for name in every[0] if all(name in one for one in every)]
    medians = {name: [statistics.median(one[name]) for one in every] for name in names}
    return {name: [value / values[0] for value in values] for name, values in medians.items()}


def spread(values: list[float]) -> str:
    """Return the median, and the lowest and highest."""
    return f"{statistics.median(values):.1f} [{min(values):.1f}..{max(values):.1f}]"


def together(times: dict[str, list[float]]) -> list[float]:
    """Return the times of all windows."""
    return [one for some in times.values() for one in some]


def quantile(values: list[float], part: float) -> float:
    """Return the smallest value that at least ``part`` of the values do not exceed."""
    return sorted(values)[min(len(values) - 1, math.ceil(part * len(values)) - 1)]


def table(figures: Figures) -> str:
    """Return the figures of one run as text."""
    hot, cold = figures.storage.get("hot", {}), figures.storage.get("cold", {})
    lines = [f"\n{figures.points / 1e6:.1f} M points, {figures.steps:,} steps, {len(METRICS)} metrics"]
    if figures.feed_s:
        lines[0] += f"; confirmed in {figures.feed_s:.1f} s, folded and archived {figures.settle_s:.1f} s later"
    if cold.get("parts"):
        lines.append(
            f"  archive: {cold['rows']:,} points in {cold['parts']} parts, {cold['bytes'] / 2**20:.0f} MiB "
            f"({cold['bytes'] / max(1, cold['rows']):.1f} bytes a point); in Redis {hot['bytes'] / 2**20:.0f} of "
            f"{hot['limit_bytes'] / 2**20:.0f} MiB; files, MiB: "
            + ", ".join(f"{kind} {mib:.1f}" for kind, mib in figures.files_mib.items() if mib >= 0.05)
        )
    lines.append(
        f"  {'one metric, 2,000 points, ms':<30}{'warm p50':>10}{'p95':>8}{'max':>8}"
        f"{'cold p50':>11}{'p95':>8}{'max':>8}"
    )
    rows = {name: (figures.warm[name], figures.cold[name]) for name in figures.warm}
    for name, both in (rows | {"all windows": (together(figures.warm), together(figures.cold))}).items():
        cells = "".join(
            f"{quantile(times, 0.5):>{width}.1f}{quantile(times, 0.95):>8.1f}{max(times):>8.1f}"
            for times, width in zip(both, (10, 11), strict=True)
        )
        lines.append(f"  {name:<30}{cells}")
    lines.append(
        f"  {'GET /healthz (floor)':<30}{quantile(figures.floor, 0.5):>10.1f}{quantile(figures.floor, 0.95):>8.1f}"
        f"{max(figures.floor):>8.1f}"
    )
    lines.append(
        f"  all {len(METRICS)} metrics in one request: {statistics.median(figures.all_at_once_ms):.0f} ms; "
        f"an answer is at most {figures.answer_kib:.0f} KiB"
    )
    lines.append(
        f"  restart: the server is up after {spread(figures.up_s)} s, "
        f"the run answers {spread(figures.restored_s)} s later"
    )
    lines.append("  server memory, MiB: " + ", ".join(f"{name} {mib:.0f}" for name, mib in figures.rss_mib.items()))
    lines.append(f"  planted values shown: {figures.shown} of {figures.shown + len(figures.hidden)} answers")
    lines.append(
        f"  raw values compared with what was sent: {figures.compared:,}, windows that differ: {len(figures.wrong)}"
    )
    lines += [f"  HIDDEN: {text}" for text in figures.hidden[:20]]
    lines += [f"  WRONG: {text}" for text in figures.wrong]
    if figures.peers:
        lines.append("  the loss of the whole run, 2,000 points or what the peer offers instead:")
        for name, found in figures.peers.items():
            text = found if isinstance(found, str) else f"{found:>10.1f} ms{found / figures.peers['ours']:>8.1f}x"
            lines.append(f"    {name:<86}{text}")
    return "\n".join(lines)
