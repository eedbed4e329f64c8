"""Digests of whole runs for the table: curve, speed, tokens and goodput.

Updated with a bounded share of a core: live runs first, old ones while the table is open.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Mapping
from itertools import pairwise
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray
from redis.exceptions import RedisError

from stabilitybackend.base.errors import StabilityBoardError
from stabilitybackend.base.keys import RunKeys
from stabilitybackend.base.rounds import ROUND_S, in_rounds
from stabilitybackend.base.tasks import in_thread
from stabilitybackend.fleet.fleet import Fleet
from stabilitybackend.judging.detection.naming.headline import main_of
from stabilitybackend.run_table.table import RunTables
from stabilitybackend.runs.derived.rollback_cost import rollback_costs_of
from stabilitybackend.runs.manager import RunManager
from stabilitybackend.runs.worker import RunWorker
from stabilitybackend.schema.pages.run_table import CURVE_BUCKETS, CURVE_TOP, RunCurve, RunDigest
from stabilitybackend.schema.rollback_cost import RollbackCosts
from stabilitybackend.schema.runs import STATUSES, UNTIMED_KEY, Run
from stabilitybackend.storage.query.lineage_view import LineageView
from stabilitybackend.storage.query.query import primary_rank, select
from stabilitybackend.storage.query.request import SeriesRequest

__all__ = ["POINTS", "DigestUpdater", "curve", "curve_metric", "is_stale", "token_metric"]

#: Points that a curve is made of: two buckets of the grid are no wider than a stretch, which gets their extremes.
POINTS = 8 * CURVE_BUCKETS
#: Two points further apart than so many usual distances have a hole between them.
HOLE = 2.0
#: Share of the stretches at each end that does not stretch the curve's height: a far spike leaves the rest in sight.
CUT = 0.03
#: Metrics that count the tokens seen so far, without a prefix such as ``train/``. Megatron-LM, Hugging Face's Trainer,
#: OLMo, Composer, litgpt.
TOKEN_COUNTS = (
    "consumed_tokens", "tokens_seen", "total_tokens", "num_input_tokens_seen", "consumed_train_tokens",
    "cumulative_tokens", "tokens_total", "seen_tokens", "time/token", "throughput/total_tokens",
    "total_training_tokens", "n_tokens_seen", "ntokens_seen",
)  # fmt: skip
#: Names that may be of one step as well: they count where they rise over the whole run.
MAY_COUNT = ("tokens", "num_tokens", "n_tokens", "ntokens")
NO_TIMES = "its log has no times"
_NO_TOKENS = "no metric counts the tokens seen: log one as consumed_tokens"


def curve_metric(metrics: Iterable[str], loss: str | None) -> str | None:
    """Return the metric of the small curve: the one that the large chart of the run shows."""
    return main_of(metrics, loss)


def token_metric(metrics: Iterable[str]) -> tuple[str, bool] | None:
    """Return the metric that counts tokens, and whether its name alone decides so; None where there is none.

    Example:
        >>> token_metric(["loss", "train/tokens_seen"]), token_metric(["tokens"]), token_metric(["tokens/web"])
        (('train/tokens_seen', True), ('tokens', False), None)
    """
    plain = {name.lower().removeprefix("train/").replace("-", "_"): name for name in metrics}
    for names, sure in ((TOKEN_COUNTS, True), (MAY_COUNT, False)):
        for name in names:
            if name in plain:
                return plain[name], sure
    return None


def digest_of(worker: RunWorker, fleet: Fleet, now: float) -> Callable[[], RunDigest]:
    """Return a function that digests a run as it is. Call this on the event loop, and the function in a thread."""
    state, run = worker.state, worker.listing.run
    metric, tokens = curve_metric(state.store.metrics(), run.loss_metric), token_metric(run.latest)
    wanted = [name for name in (metric, tokens[0] if tokens else None) if name is not None]
    primary = []  # of a large job the series of one rank, not those of thousands
    for name in dict.fromkeys(wanted):
        keys = state.store.keys(name)
        rank = primary_rank(keys)
        primary += [key for key in keys if key.rank == rank]
    view, lineage = state.store.view_of(primary), LineageView.of(state.fold)
    stops = fleet.stops(worker.run_id), fleet.stops(worker.run_id)
    untimed = bool(run.config.get(UNTIMED_KEY))
    costs = rollback_costs_of(state, now, stops, untimed=untimed)
    step_time_s = state.job.view(for_command=False).step_time_s

    def read(name: str) -> RunCurve | None:
        request = SeriesRequest.of([name], view="effective", points=POINTS, rank="primary")
        answer = select(view, lineage, request)
        if not answer.series:
            return None
        steps, values = (np.concatenate([getattr(one, part) for one in answer.series]) for part in ("steps", "values"))
        return curve(name, steps, values, 1 << answer.level)

    def work() -> RunDigest:
        drawn = None if metric is None else read(metric)
        facts: dict[str, Any] = {}
        if step_time_s is not None and step_time_s > 0 and not untimed:
            facts |= {"speed": 1 / step_time_s, "speed_unit": "steps/s"}
        facts |= _tokens(tokens, run.latest, read) | _goodput(costs, untimed=untimed)
        return RunDigest(
            step=run.last_step, head=run.head, status=run.status, made=now, metric_count=run.metric_count,
            curve=drawn, **facts,
        )  # fmt: skip

    return work


def _goodput(costs: Callable[[], RollbackCosts], *, untimed: bool) -> dict[str, Any]:
    """Return goodput and GPUs of a digest, or the reason why they are unknown."""
    try:
        totals = costs().totals
    except StabilityBoardError as error:
        return {"goodput_why": error.message}
    why = "" if totals.goodput is not None else NO_TIMES if untimed else "known from the second row on"
    gpus = totals.gpus if totals.gpus_from == "agents" else None
    return {"goodput": totals.goodput, "goodput_why": why, "gpus": gpus}


def _tokens(
    tokens: tuple[str, bool] | None, latest: Mapping[str, object], read: Callable[[str], RunCurve | None]
) -> dict[str, Any]:
    """Return the tokens of a digest, or the reason why they are unknown."""
    if tokens is None:
        return {"tokens_why": _NO_TOKENS}
    name, sure = tokens
    value = latest[name]
    if not isinstance(value, int | float):
        return {"tokens_why": f"the newest value of {name} is {value}"}
    if not sure and not _rises(read(name)):
        return {"tokens_why": f"{name} does not rise over the run: it is of a step"}
    return {"tokens": float(value), "tokens_metric": name}


def _rises(found: RunCurve | None) -> bool:
    if found is None:
        return False
    high = [value for value in found.high if value is not None]
    return len(high) > 1 and high[-1] > high[0] and all(a <= b for a, b in pairwise(high))


def curve(metric: str, steps: NDArray[np.int64], values: NDArray[np.float64], bucket: int = 1) -> RunCurve | None:
    """Return the extremes of up to 60 stretches of a line; None of one with fewer than two steps.

    Args:
        steps: of the points, in any order. values: NaN and infinities are marked, and drawn nowhere.
        bucket: the points are the extremes of each so many steps.
    """
    if len(steps) < 2 or int(steps.min()) == int(steps.max()):
        return None
    first, last = int(steps.min()), int(steps.max())
    count = min(CURVE_BUCKETS, last - first + 1)
    at = np.minimum(((steps - first) * count) // (last - first + 1), count - 1).astype(np.int64)
    finite = np.isfinite(values)
    low, high = np.full(count, np.inf), np.full(count, -np.inf)
    np.minimum.at(low, at[finite], values[finite])
    np.maximum.at(high, at[finite], values[finite])
    there = np.isfinite(low)
    odd = sorted({int(one) for one in at[~finite]})
    if not there.any():
        return RunCurve(metric, first, last, [None] * count, [None] * count, 0.0, 0.0, odd)
    least, most = _range(low[there], high[there])
    span = (most - least) or 1.0
    passed = _passed_over(steps, finite, at, count, bucket)
    for extreme in (low, high):
        extreme[passed] = np.interp(passed, np.flatnonzero(there), extreme[there])
    there[passed] = True

    def scaled(of: NDArray[np.float64]) -> list[int | None]:
        part = np.clip((of / span - least / span), 0.0, 1.0) if most > least else np.full(count, 0.5)
        return [round(float(one) * CURVE_TOP) if is_there else None for one, is_there in zip(part, there, strict=True)]

    with np.errstate(invalid="ignore"):
        return RunCurve(metric, first, last, scaled(low), scaled(high), least, most, odd)


def _passed_over(
    steps: NDArray[np.int64], finite: NDArray[np.bool_], at: NDArray[np.int64], count: int, bucket: int
) -> NDArray[np.int64]:
    """Return the stretches that have no point though the log has no hole there: a line passes over them.

    A job that logs each 50 steps, and a grid that keeps two points of each 8 steps, leave stretches without a point.
    """
    order = np.argsort(steps, kind="stable")
    distances = np.diff(steps[order])
    usual = float(np.median(distances[distances > 0]))
    near = (distances <= max(HOLE * usual, 2.0 * bucket)) & finite[order][1:] & finite[order][:-1]
    before, after = at[order][:-1][near], at[order][1:][near]
    found = [np.arange(a + 1, b) for a, b in zip(before, after, strict=True) if b > a + 1]
    return np.concatenate([np.empty(0, np.int64), *found])[:count]


def _range(low: NDArray[np.float64], high: NDArray[np.float64]) -> tuple[float, float]:
    """Return the heights of a curve, without the extremes that the first steps of a run, or a few spikes, would add."""
    least, most = float(low.min()), float(high.max())
    if len(low) < 8:
        return least, most
    bottom, top = float(np.quantile(low, CUT)), float(np.quantile(high, 1 - CUT))
    usual = top - bottom
    # Only remote extremes are cut: a curve that falls all the time keeps its whole height.
    return (bottom if bottom - least > usual else least), (top if most - top > usual else most)


#: Part of the time that rounds may take: all runs share one core.
SHARE = 0.1
#: A run is worked out again at most this often, seconds.
EVERY_S = 5.0
#: ... and while its job is under way at least this often, seconds.
AGES_S = 30.0
#: So long after the last look at the table, runs that no browser follows are digested too, seconds.
LOOKED_S = 60.0

_log = logging.getLogger(__name__)


def is_stale(run: Run, digest: RunDigest | None, now: float = 0.0) -> bool:
    """Return whether a run is another one than when it was worked out, by a stretch of its curve or by its head.

    Args:
        now: unix seconds. The goodput of a job under way is another one while it does nothing; 0: leave that out.
    """
    if digest is None:
        return bool(run.latest)
    if STATUSES[run.status].under_way and now - digest.made >= AGES_S:
        return True
    if (digest.head, digest.status) != (run.head, run.status):
        return True
    # Another one may be the loss now, or stand for the run where none is.
    others = run.loss_metric is not None or digest.metric_count != run.metric_count
    if others and digest.curve is not None and digest.curve.metric != run.loss_metric:
        return True
    if run.last_step is None or digest.step is None:
        return run.last_step != digest.step
    return run.last_step - digest.step >= max(1, run.last_step // CURVE_BUCKETS)


class DigestUpdater:
    """Digests whole runs for the table.

    Args:
        clock: unix seconds now.
    """

    def __init__(self, manager: RunManager, tables: RunTables, clock: Callable[[], float] = time.time) -> None:
        self._manager = manager
        self._tables = tables
        self._clock = clock
        #: Runs that could not be read -> their newest step then: they are tried again when it is another one.
        self._failed: dict[str, int | None] = {}

    async def follow(self) -> None:
        """Go on round by round, until it is cancelled."""
        undone = "curves of the list of runs are not made"
        expected = (RedisError, OSError, StabilityBoardError)
        await in_rounds(self.round, share=SHARE, undone=undone, expected=expected, log=_log)

    async def round(self) -> None:
        """Digest the live runs with new rows, longest waiting first, then one ended run."""
        await self._tables.refresh()
        followed, now = self._manager.followed(), self._clock()
        due = []
        for run_id in followed:
            row = self._tables.row(run_id)
            if row is None or not is_stale(row.run, row.digest, now) or followed[run_id].state.store.loading:
                continue
            made = 0.0 if row.digest is None else row.digest.made
            if not 0 <= now - made < EVERY_S and self._failed.get(run_id, -1) != row.run.last_step:
                due.append((made, run_id))
        began = time.monotonic()
        for _, run_id in sorted(due):
            await self._work(followed[run_id])
            if time.monotonic() - began > ROUND_S * SHARE:
                return
        if now - self._tables.used < LOOKED_S:
            await self._catch_up(set(followed))

    async def _catch_up(self, followed: set[str]) -> None:
        left = [
            row.run
            for row in self._tables.rows()
            if row.run.run_id not in followed
            and is_stale(row.run, row.digest)
            and self._failed.get(row.run.run_id, -1) != row.run.last_step
        ]
        if left:
            newest = max(left, key=lambda run: run.created)
            try:
                worker = await self._manager.glance(newest.run_id)
            except StabilityBoardError:
                self._failed[newest.run_id] = newest.last_step
                raise
            await self._work(worker)

    async def _work(self, worker: RunWorker) -> None:
        await worker.points.wait()
        run = worker.listing.run
        self._failed[worker.run_id] = run.last_step  # until it has gone well
        digest = await in_thread(digest_of(worker, self._manager.fleet, self._clock()))
        await worker.fence.write(("HSET", RunKeys(worker.run_id).meta, "digest", msgspec.json.encode(digest)))
        self._tables.digested(worker.run_id, digest)
        del self._failed[worker.run_id]
