"""What it costs to fold a run: frames, the snapshot that saves folding them again, the summary asked for every second.

    python benchmarks/fold.py [--steps 100000] [--ranks 2048] [--json]

No server and no Redis: the fold alone, as a worker runs it, on one core. Each figure has its floor or its alternative
beside it, measured in the same run:

frames      values/s of the rank that detectors judge, and of any other, against decoding the same frames
snapshot    bytes, and ms to freeze (on the event loop), to seal (in a thread) and to load, against folding again
summary     ms of the whole view of a run, against counting its points anew
costs       ms of the costs of rollbacks, the first time and with what was looked up
mixture     us a row of comparing what is taken with the declared mixture, of 4 and of 16 data sets
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import numpy as np

from stabilitybackend.judging.detectors.engine.bank import DetectorBank
from stabilitybackend.judging.detectors.engine.base import Mark
from stabilitybackend.judging.detectors.mixture import MixtureDetector
from stabilitybackend.runs.archiving import snapshot
from stabilitybackend.runs.derived.rollback_cost import rollback_costs_of
from stabilitybackend.runs.state import RunState
from stabilitybackend.schema.fleet import InterruptionNumbers
from stabilityclient.wire import EventBlock, Frame, PointsBlock, SourceInfo, decode_message, encode_message

METRICS = ("loss", "grad_norm", "lr", *(f"layer/{i}/norm" for i in range(9)))
ROWS_PER_FRAME = 200
ROLLBACKS = 50
#: No run of this server was ever interrupted.
NO_STOPS = InterruptionNumbers(
    count=0, time_lost_s=0.0, running_s=0.0, gpu_hours=0.0, mtbi_s=None, per_1000_gpu_hours=None, rank_s=0.0
)
#: What each rank of the wide run sends.
WIDE_FRAMES, WIDE_ROWS = 5, 20
T = TypeVar("T")


def timed(work: Callable[[], T], times: int = 5) -> tuple[float, T]:
    """Return (ms of the fastest call, its answer)."""
    best, answer = float("inf"), None
    for _ in range(times):
        start = time.perf_counter()
        answer = work()
        best = min(best, (time.perf_counter() - start) * 1e3)
    return best, answer  # type: ignore[return-value]


class Rank:
    """One rank that logs twelve metrics a step, ten steps a second."""

    def __init__(self, rank: int, ranks: int) -> None:
        self._info = SourceInfo(f"r{rank}-1", rank, ranks, rank, f"n{rank // 8}", 1, 1_000.0)
        self._rng = np.random.default_rng(rank)
        self._seq, self._time = 0, 1_000.0

    def _message(self, block: PointsBlock | EventBlock, records: int) -> bytes:
        first, self._seq = self._seq + 1, self._seq + records
        return encode_message(Frame(self._info, first, self._seq, [block]))

    def rows(self, first: int, count: int) -> bytes:
        times = self._time + 0.1 * np.arange(1, count + 1)
        self._time = float(times[-1])
        values = 2.5 * (1 + 0.01 * self._rng.standard_normal((len(METRICS), count)))
        steps = np.arange(first, first + count, dtype="<i8")
        return self._message(PointsBlock(list(METRICS), steps.tobytes(), times.tobytes(), values.tobytes()), count)

    def rolled_back(self, to_step: int, key: str) -> bytes:
        self._time += 60.0
        return self._message(EventBlock("segment", self._time, to_step, {"key": key, "to_step": to_step}), 1)


def story(steps: int) -> Iterator[bytes]:
    """Yield a run of one rank with rollbacks, ``steps`` steps in all."""
    rank, step, part = Rank(0, 1), 1, steps // ROLLBACKS
    for number in range(ROLLBACKS):
        for at in range(step, step + part, ROWS_PER_FRAME):
            yield rank.rows(at, min(ROWS_PER_FRAME, step + part - at))
        step += part - part // 10
        yield rank.rolled_back(step - 1, f"k{number}")
    yield rank.rows(step, ROWS_PER_FRAME)


def folded(messages: list[bytes], primary: bool = True) -> RunState:
    """Return the state after ``messages``."""
    state = RunState("bench", lambda: 2_000.0)
    if not primary:
        state.judge.primary = -1  # a lower rank is the one that detectors judge
    for message in messages:
        frame = decode_message(message)
        assert isinstance(frame, Frame)
        state.apply(frame, replayed=True)
    return state


def snapshot_figures(state: RunState) -> dict[str, float]:
    freeze_ms, frozen = timed(lambda: snapshot.freeze(state))
    seal_ms, data = timed(lambda: snapshot.seal(frozen))
    load_ms, _ = timed(lambda: snapshot.load(data, "bench", lambda: 2_000.0))
    return {"KiB": len(data) / 1024, "freeze ms": freeze_ms, "seal ms": seal_ms, "load ms": load_ms}


def recount(state: RunState) -> int:
    """Return the points of the loss, counted anew: what the summary saves each second."""
    view = state.store.view(["loss"])
    return sum(len(view.rows(key)) for key in view.keys("loss"))


def long_run(steps: int) -> dict[str, Any]:
    messages = list(story(steps))
    values = steps * len(METRICS)
    decode_ms, _ = timed(lambda: [decode_message(message) for message in messages], 2)
    other_ms, _ = timed(lambda: folded(messages, primary=False), 1)
    fold_ms, state = timed(lambda: folded(messages), 1)
    view_ms, _ = timed(state.view)
    recount_ms, _ = timed(lambda: recount(state))
    first_ms, _ = timed(lambda: rollback_costs_of(state, 2_000.0, (NO_STOPS, NO_STOPS))(), 1)
    again_ms, _ = timed(lambda: rollback_costs_of(state, 2_000.0, (NO_STOPS, NO_STOPS))())
    figures = snapshot_figures(state)
    return {
        "decoding alone, M values/s": values / decode_ms / 1e3,
        "any rank, M values/s": values / other_ms / 1e3,
        "judged rank, M values/s": values / fold_ms / 1e3,
        **{f"snapshot {name}": value for name, value in figures.items()},
        "folding again / loading": fold_ms / figures["load ms"],
        "view ms": view_ms,
        "counting anew / view": recount_ms / view_ms,
        "costs ms, first": first_ms,
        "costs ms, again": again_ms,
    }


def wide_run(ranks: int) -> dict[str, Any]:
    jobs = [Rank(number, ranks) for number in range(ranks)]
    messages = [job.rows(at, WIDE_ROWS) for at in range(1, WIDE_FRAMES * WIDE_ROWS, WIDE_ROWS) for job in jobs]
    fold_ms, state = timed(lambda: folded(messages), 1)
    view_ms, _ = timed(state.view)
    tick_ms, _ = timed(state.tick)
    figures = snapshot_figures(state)
    return {
        "M values/s": len(messages) * WIDE_ROWS * len(METRICS) / fold_ms / 1e3,
        **{f"snapshot {name}": value for name, value in figures.items()},
        "view ms": view_ms,
        "counting anew / view": timed(lambda: recount(state))[0] / view_ms,
        "tick ms": tick_ms,
    }


def mixture_us(sets: int, rows: int = 8_192, part: int = 64) -> float:
    """Return the microseconds a row of the detector of declared mixtures; batches of 64 samples."""
    names = [f"set{i}" for i in range(sets)]
    shares = np.array([1 / (i + 1) for i in range(sets)]) / sum(1 / (i + 1) for i in range(sets))
    counts = 1_000.0 * np.random.default_rng(1).multinomial(64, shares, size=rows).T
    columns = {f"mixture.tokens/{name}": column.tolist() for name, column in zip(names, counts, strict=True)}
    bank = DetectorBank({"mixture": MixtureDetector})
    declared = {"shares": dict(zip(names, shares.tolist(), strict=True)), "unit": "tokens"}
    bank.mark(Mark("mixture", 0, 0.0, "a mixture was declared", declared))
    begin = time.process_time()
    for at in range(0, rows, part):
        steps = list(range(at, at + part))
        values = {name: column[at : at + part] for name, column in columns.items()}
        bank.feed_rows(list(columns), steps, [float(step) for step in steps], values)
    return 1e6 * (time.process_time() - begin) / rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=100_000, help="steps of the long run of one rank")
    parser.add_argument("--ranks", type=int, default=2_048, help="ranks of the wide run")
    parser.add_argument("--json", action="store_true", help="print JSON instead of tables")
    options = parser.parse_args()
    found = {
        f"one rank, {options.steps:,} steps, {len(METRICS)} metrics, {ROLLBACKS} rollbacks": long_run(options.steps),
        f"{options.ranks:,} ranks, {WIDE_FRAMES * WIDE_ROWS} steps, {len(METRICS)} metrics": wide_run(options.ranks),
    }
    found["declared mixture"] = {f"us a row, {sets} data sets": mixture_us(sets) for sets in (4, 16)}
    if options.json:
        print(json.dumps(found, indent=1))
        return
    for title, figures in found.items():
        print(f"\n{title}")
        for name, value in figures.items():
            print(f"  {name:<30} {value:>12,.3g}" if value < 1_000 else f"  {name:<30} {value:>12,.0f}")


if __name__ == "__main__":
    main()
