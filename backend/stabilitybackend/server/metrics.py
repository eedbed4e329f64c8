"""Metrics of the server for Prometheus, read on request from the counting parts; nothing is global.

Every name is described in docs/operations.md. No label holds more values than a named constant allows, and none holds
anything secret: run ids, receivers' names and codes.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import accumulate

from prometheus_client import CollectorRegistry, GCCollector, PlatformCollector, ProcessCollector
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from stabilityalerting import AlertingService
from stabilitybackend.base.collector import CycleCollector
from stabilitybackend.base.judging_lag import JUDGED_WITHIN_S
from stabilitybackend.base.loop_lag import BUCKETS_S, LoopLag
from stabilitybackend.base.shared_answers import SharedAnswers
from stabilitybackend.ingest.gateway import Gateway
from stabilitybackend.runs.manager import RunManager
from stabilitybackend.storage.storing import Storing

__all__ = ["MAX_RUNS", "OTHERS", "ServerMetrics", "registry"]

#: Runs that have a series of their own: those that took most CPU time. All others are one series together.
MAX_RUNS = 20
OTHERS = "other runs"


def registry(metrics: ServerMetrics) -> CollectorRegistry:
    """Return a registry with ``metrics`` and metrics of the process: memory, CPU, open files, Python."""
    found = CollectorRegistry()
    ProcessCollector(registry=found)
    PlatformCollector(registry=found)
    GCCollector(registry=found)
    found.register(metrics)
    return found


class ServerMetrics(Collector):
    """The server's own metrics, from the parts of one server."""

    def __init__(
        self,
        manager: RunManager,
        gateway: Gateway,
        storing: Storing,
        alerting: AlertingService,
        loop_lag: LoopLag,
        collector: CycleCollector,
        charts: SharedAnswers,
    ) -> None:
        self._manager = manager
        self._gateway = gateway
        self._storing = storing
        self._alerting = alerting
        self._loop_lag = loop_lag
        self._collector = collector
        self._charts = charts
        #: Runs with a series of their own: one that has it keeps it, or its counter would seem to go back.
        self._named: set[str] = set()

    def collect(self) -> Iterator[Metric]:
        """Yield all metrics as they are now."""
        yield from self._loop()
        yield from self._frames()
        yield from self._runs()
        yield from self._clients()

    def _loop(self) -> Iterator[Metric]:
        lag = self._loop_lag
        yield _histogram(
            "stability_event_loop_lag_seconds",
            "How late a sleep of 0.1 s ended.",
            BUCKETS_S,
            lag.counts,
            lag.late_s,
        )
        yield _counter(
            "stability_event_loop_stalls", "Times that the event loop was blocked for over 50 ms.", lag.stalls
        )
        yield _gauge("stability_event_loop_longest_stall_seconds", "Longest time that it was blocked.", lag.longest_s)
        pause = GaugeMetricFamily(
            "stability_gc_longest_pause_seconds", "Longest pause of Python's garbage collector.", labels=["looked_at"]
        )
        for what, seconds in self._collector.longest_s.items():
            pause.add_metric([what], seconds)
        yield pause
        yield _counter("stability_gc_pause_seconds", "All its pauses together.", self._collector.pauses_s)

    def _frames(self) -> Iterator[Metric]:
        ingest, counts = self._gateway.ingest, self._gateway.counts
        yield _counter("stability_frames_stored", "Frames that were stored.", ingest.stored)
        yield _counter("stability_records_stored", "Rows and events that were stored.", ingest.stored_records)
        yield _counter("stability_frames_duplicate", "Frames that were stored before.", ingest.duplicates)
        yield _counter("stability_frames_out_of_order", "Frames that did not follow the last one.", ingest.gaps)
        refused = CounterMetricFamily(
            "stability_frames_refused", "Frames that were not taken, by reason.", labels=["reason"]
        )
        reasons = {"busy": counts.busy, "bad_frame": counts.bad_frames, "bad_message": counts.bad_messages}
        for reason, count in reasons.items():
            refused.add_metric([reason], count)
        yield refused
        writes = CounterMetricFamily(
            "stability_redis_writes_refused", "Writes that Redis refused, by code.", labels=["code"]
        )
        for code, count in sorted(self._storing.refused.items()):
            writes.add_metric([code], count)
        yield writes
        yield _gauge("stability_storing", "1 while what comes is stored, 0 while not.", self._storing.problem is None)
        yield _gauge("stability_ingest_waiting_bytes", "Bytes that wait for Redis.", ingest.waiting_bytes)

    def _runs(self) -> Iterator[Metric]:
        manager = self._manager
        runs = GaugeMetricFamily("stability_runs", "Runs that this server follows, by status.", labels=["status"])
        for status, count in sorted(Counter(manager.statuses()).items()):
            runs.add_metric([status], count)
        yield runs
        lag = manager.lag
        yield _histogram(
            "stability_judging_lag_seconds", "How long frames waited in Redis until they were judged.",
            JUDGED_WITHIN_S, lag.counts, lag.waited_s,
        )  # fmt: skip
        yield _counter(
            "stability_ownership_refused", "Runs that another process had taken over when something was to be written.",
            manager.ownership.refused,
        )  # fmt: skip
        yield _gauge("stability_redis_clock_ahead_seconds", "Redis' clock minus ours.", self._storing.ahead_s)
        yield _gauge("stability_runs_restoring", "Live runs not judged since the start.", manager.waking.waiting)
        windows = [worker.window for worker in manager.owned().values()]
        unarchived = sum(bool(window.problem) for window in windows)
        yield _gauge("stability_runs_unarchived", "Runs that could not be archived.", unarchived)
        full = sum(window.full_since is not None for window in windows)
        yield _gauge("stability_runs_window_full", "Runs that have taken no frame for a minute.", full)
        files = CounterMetricFamily(
            "stability_restart_files", "What became of the files that runs are taken up from.", labels=["outcome"]
        )
        for outcome in ("written", "failed", "taken_up", "passed_over"):
            files.add_metric([outcome], manager.files.restart.counts[outcome])
        yield files
        spent = CounterMetricFamily(
            "stability_run_cpu_seconds", "Time of folding and judging on the event loop, by run.", labels=["run_id"]
        )
        for run_id, seconds in self._cpu(manager.folding_s()):
            spent.add_metric([run_id], seconds)
        yield spent

    def _cpu(self, by_run: dict[str, float]) -> Iterator[tuple[str, float]]:
        self._named &= by_run.keys()
        free = MAX_RUNS - len(self._named)
        self._named.update(heapq.nlargest(free, by_run.keys() - self._named, key=lambda run_id: by_run[run_id]))
        for run_id in sorted(self._named):
            yield run_id, by_run[run_id]
        yield OTHERS, sum(seconds for run_id, seconds in by_run.items() if run_id not in self._named)

    def _clients(self) -> Iterator[Metric]:
        counts = self._gateway.counts
        yield _gauge("stability_agents", "Agents that are connected.", counts.connections)
        yield _counter("stability_agents_refused", "Agents' connections that were refused.", counts.refused)
        yield _gauge("stability_browsers", "Pages that are connected.", self._manager.browsers())
        charts = CounterMetricFamily("stability_series_answers", "Answers for charts.", labels=["how"])
        charts.add_metric(["made"], self._charts.made)
        charts.add_metric(["shared"], self._charts.shared)
        yield charts
        alerts = CounterMetricFamily(
            "stability_alerts", "Incident events, by receiver and what became of them.", labels=["receiver", "outcome"]
        )
        for receiver, outcomes in self._alerting.status()["counts"].items():
            for outcome, count in sorted(outcomes.items()):
                alerts.add_metric([receiver, outcome], count)
        yield alerts


def _counter(name: str, words: str, value: float) -> CounterMetricFamily:
    return CounterMetricFamily(name, words, value=value)


def _histogram(
    name: str, words: str, bounds: Sequence[float], counts: Sequence[int], total: float
) -> HistogramMetricFamily:
    found = HistogramMetricFamily(name, words)
    ends = [*(str(bound) for bound in bounds), "+Inf"]
    found.add_metric([], list(zip(ends, accumulate(counts), strict=True)), sum_value=total)
    return found


def _gauge(name: str, words: str, value: float) -> GaugeMetricFamily:
    return GaugeMetricFamily(name, words, value=value)
