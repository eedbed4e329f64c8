"""Imports files into a run that only lives in this process: the rule about numbers, then the fold, then the store."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from stabilitybackend.lineage.batch import Batch, Placed
from stabilitybackend.lineage.fold import LineageFold
from stabilitybackend.schema.lineage import Cause
from stabilitybackend.schema.runs import Run
from stabilitybackend.storage.export.export import Export, ExportView
from stabilitybackend.storage.points.store import RunStore, StoreView
from stabilitybackend.storage.query.lineage_view import LineageView
from stabilityclient.wire import EventBlock, Frame, PointsBlock, decode_message, encode_message
from stabilityplugins.importers.detect import find_plans
from stabilityplugins.importers.job import ImportJob, ImportResult, Options
from support.points.full_curve import entries

__all__ = ["ImportedRun", "export_of", "points_of"]

#: What two runs are compared by: (metric, rank, node, segment is dead there, step) -> values in their order, NaN as
#: text.
Points = dict[tuple[str, int | None, str, bool, int], list[float | str]]


class ImportedRun:
    """One run as the server would hold it.

    Attributes:
        events: (type, step, data) of everything that was no point. rows: rows stored, each time they came.
    """

    def __init__(self) -> None:
        self.fold, self.store = LineageFold(), RunStore()
        self.held: dict[str, int] = {}
        self.checks: dict[str, tuple[int, str]] = {}
        self.events: list[tuple[str, int | None, dict[str, Any]]] = []
        self.rows = 0

    def take(self, *paths: Path, run_id: str = "run", **options: Any) -> ImportResult:
        """Import files into this run; what is there already must not come again."""
        [plan] = find_plans(list(paths), run_id=run_id)
        job = ImportJob(plan, Options(**options))
        job.sniff()
        for frame in job.frames(dict(self.held), dict(self.checks)):
            self.feed(frame)
        self.checks = job.checks
        return job.result()

    def feed(self, frame: Frame) -> None:
        """Store one frame by the rule of ``ingest.lua``."""
        frame = decode_message(encode_message(frame))  # type: ignore[assignment]
        last = self.held.get(frame.source.source, 0)
        assert (frame.first_seq, frame.last_seq >= frame.first_seq) == (last + 1, True), "no gap, nothing twice"
        self.held[frame.source.source] = frame.last_seq
        for block in frame.blocks:
            if isinstance(block, EventBlock):
                self.events.append((block.type, block.step, block.data))
            elif isinstance(block, PointsBlock):
                self.rows += len(block.steps) // 8
        for change in self.fold.apply(frame):
            if isinstance(change, Placed):
                self.store.add(Batch.of([change]))

    def line(self, metric: str = "loss", rank: int | None = 0) -> dict[int, float]:
        """Return step -> value of the effective timeline."""
        return {
            step: value
            for entry in entries(self.store, self.fold, metric)
            if entry.rank == rank
            for step, value in zip(entry.steps.tolist(), entry.values.tolist(), strict=True)
        }

    def dead(self, metric: str = "loss") -> dict[int, list[int]]:
        """Return segment -> its dead steps."""
        found: dict[int, list[int]] = {}
        for entry in entries(self.store, self.fold, metric, "all"):
            if entry.dead:
                found.setdefault(entry.segment, []).extend(entry.steps.tolist())
        return found

    def forks(self) -> list[tuple[int | None, int, Cause]]:
        """Return (parent, fork step, cause) of every segment but the root."""
        return [(segment.parent, segment.fork_step, segment.cause) for segment in self.fold.tree][1:]


def export_of(
    store: RunStore,
    fold: LineageFold,
    view: ExportView = "all",
    metrics: Sequence[str] = (),
    run_id: str = "run",
    refresh: Callable[[], StoreView] | None = None,
) -> Export:
    """Return the export of a run that only lives in this process."""
    run = Run(run_id=run_id, project="p", name="n", config={"lr": 1.0}, created=0.0, updated=0.0)
    return Export(
        store.view(), LineageView.of(fold), run, fold.tree.view().segments,
        view=view, metrics=metrics, cursor="1-0", now=1e9, refresh=refresh,
    )  # fmt: skip


def points_of(store: RunStore, fold: LineageFold, view: str = "all") -> Points:
    """Return every point but strays."""
    found: Points = {}
    dead_after = {segment.id: fold.tree.dead_after(segment.id) for segment in fold.tree}
    for metric in store.metrics():
        for key in store.keys(metric):
            if key.stray:
                continue
            rows = store.rows(key)
            limit = dead_after[key.segment]
            for step, value in zip(rows.steps.tolist(), rows.values.tolist(), strict=True):
                dead = limit is not None and step > limit
                if not dead or view == "all":
                    # A dead step may stand in several dead segments; which one is told by its value in the tests.
                    name = f"{metric}@{key.segment}" if dead else metric
                    logged = found.setdefault((name, key.rank, key.node, dead, step), [])
                    logged.append("NaN" if math.isnan(value) else value)
    return found
