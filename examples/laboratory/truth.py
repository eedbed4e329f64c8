"""What really happened: a broken run measured against its healthy twin, which differs in nothing but the fault.

The twin has the same seed, so it sees the same batches in the same order, and the noise of the batches falls out of the
difference. So the truth knows more than any detector can, and needs none: when an effect began, when it was over, and
whether the fault had an effect at all. One that had none is no reason to call anybody.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from statistics import median
from typing import Any

from fault import Fault, Injected
from harmless import SuddenDrop
from training import LogRow

__all__ = ["Event", "tell_truth"]

#: Points before the fault from which the usual level and noise are taken.
_BEFORE = 96
#: A single point shows an effect above so many sigmas of noise and this fraction of the level ...
_POINT_SIGMAS, _POINT_RISE = 4.0, 0.03
#: ... when so many of the next points do.
_POINTS, _OF_POINTS = 2, 3
#: A lone point shows one that people see from so many sigmas on.
_LONE_SIGMAS = 8.0
#: A run of points shows one when their median is above so many sigmas and this fraction.
_RUN_POINTS, _RUN_SIGMAS, _RUN_RISE = 16, 1.0, 0.015
#: People who have no twin see a rise in the curve when the median of such a run is so many sigmas high.
_VISIBLE_SIGMAS = 2.5
#: Back: the median of so many points is within so many sigmas, or within this fraction of the level.
_BACK_POINTS, _BACK_SIGMAS, _BACK_RISE = 5, 3.0, 0.02
#: No longer than this is fast; not back after so many is none. Points of the log.
_FAST_POINTS, _NONE_POINTS = 10, 200
#: The noise is taken as at least this fraction of the level.
_NOISE_FLOOR = 0.005
#: Points after which repeated data or a mixture that is back have left their mark on every detector's memory.
_AFTERMATH_POINTS = 60
#: A run of finite points that ends a stretch of non-finite ones.
_FINITE_AGAIN = 10
#: Kinds for which ``recovery`` has a meaning.
_RECOVERS = ("spike",)
#: Kinds that show as a value lower than the twin's.
_LOWER = ("repeat_data", "throughput")


@dataclass
class Event:
    """One thing that happened in a log.

    Args:
        kind: incident kind, or ``sudden_drop``, ``lr_drop``, ``warm_up``, ``batch_size``.
        metric: where it shows.
        injected_step: first step that the fault touched.
        onset_step: first step at which the effect shows; ``injected_step`` where none does, and for what is wrong
            from the first step after a resume.
        visible_step: first step at which it can be seen without a twin; a detector's time runs from there.
        peak_step: step of the largest effect, None where that has no meaning.
        recovered_step: first step at which it is over, None when it is not.
        recovery: ``fast``, ``slow`` or ``none`` for spikes, else None.
        dataset: the only data set concerned, None for all.
        rank: the only rank concerned, None for all.
        alarm: whether people should be called.
        points: logged points from the onset until it is over.
        sigmas: largest effect in sigmas of the healthy noise.
        why: why there is no alarm, or None.
        ignore_until: alarms up to this step belong to its aftermath, None for the usual ten points.
        cause: incident kind that names the cause, e.g. ``learning_rate``; None where no kind does.
    """

    kind: str
    metric: str
    injected_step: int
    onset_step: int
    visible_step: int
    peak_step: int | None = None
    recovered_step: int | None = None
    recovery: str | None = None
    dataset: str | None = None
    rank: int | None = None
    alarm: bool = True
    points: int = 0
    sigmas: float = 0.0
    why: str | None = None
    ignore_until: int | None = None
    cause: str | None = None


def tell_truth(fault: Fault, seed: int, rows: list[LogRow], twin: list[LogRow]) -> dict[str, Any]:
    """Return the truth of one log.

    Args:
        fault: what was injected.
        seed: of the log and its twin.
        rows: the log, as it was written.
        twin: the log of the same job without the fault.

    Returns:
        JSON-able: ``fault``, ``seed``, ``text``, ``log_interval``, ``rows`` and ``events``, in the order of steps.
    """
    settings = fault.settings()
    events = [_event(injected, rows, twin, settings.log_every) for injected in fault.injected()]
    if isinstance(fault, SuddenDrop) and (step := fault.found(rows)) is not None:
        events.append(
            Event("plateau", "loss", 150, 150, 150, recovered_step=step, alarm=False, why="it ends by itself")
        )
        events.append(Event("sudden_drop", "loss", step, step, step, alarm=False, why="the model found the rule"))
    return {
        "fault": fault.name,
        "seed": seed,
        "text": fault.text,
        "log_interval": settings.log_every,
        "rows": sum(not row.get("rank") for row in rows),
        "events": [asdict(event) for event in events],
    }


def _event(injected: Injected, rows: list[LogRow], twin: list[LogRow], interval: int) -> Event:
    event = Event(
        injected.kind,
        injected.metric,
        injected.step,
        injected.step,
        injected.step,
        recovered_step=None if injected.last_step is None else injected.last_step + interval,
        dataset=injected.dataset,
        rank=injected.rank,
        alarm=injected.alarm,
        cause=injected.cause,
    )
    if not injected.measured:
        event.why = None if injected.alarm else "known and harmless"
        return event
    if injected.kind == "nonfinite":
        return _nonfinite(event, rows)
    metric = injected.metric if injected.dataset is None else f"loss/{injected.dataset}"
    ours, healthy = _effective(rows, metric), _effective(twin, metric)
    steps = sorted(step for step in ours if step in healthy and step >= injected.step)
    past = sorted(step for step in healthy if step < injected.step)[-_BEFORE:]
    past = past if len(past) >= _BEFORE // 2 else sorted(healthy)[-_BEFORE:]
    level, noise = _level_and_noise([healthy[step] for step in past])
    sign = -1.0 if injected.kind in _LOWER else 1.0
    rises = [sign * (ours[step] - healthy[step]) if math.isfinite(ours[step]) else math.inf for step in steps]
    if injected.above_before:
        rises = _on_top(rises, [ours[s] - healthy[s] for s in sorted(healthy) if s in ours and s < injected.step])
    last = injected.sought_until
    sought = rises if last is None else rises[: sum(step <= last for step in steps)]
    if injected.one_point:
        return _lone(event, steps, rises, level, noise)
    onset = _onset(sought, level, noise)
    if onset is None:
        event.alarm, event.why = False, "no measurable effect against the twin"
        return event
    if injected.kind == "plateau":  # the curve stands still from the first step that learnt nothing
        event.recovered_step = None
        event.sigmas = _sigmas(rises, noise)
        return event
    return _measure(event, steps, rises, onset, level, noise)


def _on_top(rises: list[float], before: list[float]) -> list[float]:
    """Return what the rises are above those of the points before."""
    usual = median(before[-_RUN_POINTS:])
    return [rise - usual for rise in rises]


def _lone(event: Event, steps: list[int], rises: list[float], level: float, noise: float) -> Event:
    """Fill in an effect that one logged point shows, if it does."""
    event.onset_step = event.visible_step = event.peak_step = steps[0]
    event.recovered_step, event.points, event.sigmas = steps[1], 1, _sigmas(rises[:1], noise)
    event.recovery = "fast"
    if rises[0] <= max(_LONE_SIGMAS * noise, _POINT_RISE * abs(level)):
        event.alarm, event.why = False, "no effect in the one logged point that has it"
    return event


def _measure(event: Event, steps: list[int], rises: list[float], onset: int, level: float, noise: float) -> Event:
    """Fill in from when to when the effect lasted and how large it was."""
    injected_end = event.recovered_step
    from_the_first_step = event.kind == "resume_artifact"
    event.onset_step = event.injected_step if from_the_first_step else steps[onset]
    event.visible_step = steps[_visible(rises, onset, noise)]
    back = _back(rises, onset, level, noise, for_good=event.kind not in _RECOVERS)
    end = len(rises) if back is None else back
    event.points = end - onset
    event.recovered_step = None if back is None else steps[back]
    event.sigmas = _sigmas(rises[onset:end], noise)
    peak = max(range(onset, end), key=lambda i: rises[i])
    event.peak_step = steps[peak]
    if event.kind in _RECOVERS:
        none = event.points >= _NONE_POINTS or back is None
        event.recovery = "none" if none else "fast" if event.points <= _FAST_POINTS else "slow"
    elif event.kind in ("repeat_data", "throughput", "data_mix_drift"):
        event.recovered_step = injected_end if event.kind != "data_mix_drift" else event.recovered_step
        last = event.recovered_step
        event.ignore_until = None if last is None else last + _AFTERMATH_POINTS * max(1, steps[1] - steps[0])
    return event


def _effective(rows: list[LogRow], metric: str) -> dict[int, float]:
    """Return step -> value of what the model in memory really learnt: a later row replaces an earlier one."""
    return {row["step"]: row[metric] for row in rows if not row.get("rank") and row.get(metric) is not None}


def _level_and_noise(values: list[float]) -> tuple[float, float]:
    """Return the level and the noise around a line through the values."""
    half = len(values) // 2
    slope = (median(values[half:]) - median(values[:half])) / max(1, len(values) - half)
    flat = [value - slope * (i - len(values)) for i, value in enumerate(values)]
    level = median(flat)
    noise = 1.4826 * median([abs(value - level) for value in flat])
    return level, max(noise, _NOISE_FLOOR * abs(level), 1e-12)


def _onset(rises: list[float], level: float, noise: float) -> int | None:
    """Return the index of the first point that shows an effect."""
    high = [rise > max(_POINT_SIGMAS * noise, _POINT_RISE * abs(level)) for rise in rises]
    threshold = max(_RUN_SIGMAS * noise, _RUN_RISE * abs(level))
    for i, rise in enumerate(rises):
        if high[i] and sum(high[i : i + _OF_POINTS]) >= _POINTS:
            return i
        run = rises[i : i + _RUN_POINTS]
        if len(run) == _RUN_POINTS and rise > threshold and median(run) > threshold:
            return i
    return None


def _visible(rises: list[float], onset: int, noise: float) -> int:
    """Return the index from which the effect can be seen without a twin; the onset for one that never is so large."""
    for i in range(onset, len(rises)):
        ahead = rises[i : i + _OF_POINTS]
        run = rises[i : i + _RUN_POINTS]
        if sum(rise > _POINT_SIGMAS * noise for rise in ahead) >= _POINTS or median(run) > _VISIBLE_SIGMAS * noise:
            return i
    return onset


def _back(rises: list[float], onset: int, level: float, noise: float, for_good: bool) -> int | None:
    """Return the index at which the effect is over, for the first time or for good. A weak one is over at its half."""
    highest = sorted(rises[onset : onset + _RUN_POINTS])[-3:][0]
    within = min(max(_BACK_SIGMAS * noise, _BACK_RISE * abs(level)), highest / 2)
    low = [
        rises[i] <= within and median(rises[i : i + _BACK_POINTS]) <= within
        for i in range(onset + 1, len(rises) - _BACK_POINTS + 1)
    ]
    if for_good:  # single points above do not count: the median of the points around decides
        low = [median(rises[i : i + _BACK_POINTS]) <= within for i in range(onset + 1, len(rises) - _BACK_POINTS + 1)]
        high = [i for i, is_low in enumerate(low) if not is_low]
        first = high[-1] + 1 if high else 0
    else:
        first = low.index(True) if True in low else len(low)
    return onset + 1 + first if first < len(low) else None


def _sigmas(rises: list[float], noise: float) -> float:
    finite = [rise for rise in rises if math.isfinite(rise)]
    return round(min(max(finite, default=0.0) / noise, 1e6), 1)


def _nonfinite(event: Event, rows: list[LogRow]) -> Event:
    """Find the non-finite values in the log itself."""
    losses = sorted(_effective(rows, "loss").items())
    bad = [i for i, (_, value) in enumerate(losses) if not math.isfinite(value)]
    if not bad:
        event.alarm, event.why = False, "no value was non-finite"
        return event
    event.onset_step = event.visible_step = losses[bad[0]][0]
    event.points = bad[-1] - bad[0] + 1
    event.recovered_step = losses[bad[-1] + 1][0] if bad[-1] + _FINITE_AGAIN < len(losses) else None
    return event
