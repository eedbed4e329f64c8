"""What a small learned model sees of each logged point: sixteen figures, each in units of the run's own past.

Each is causal, so that a model of them could judge live runs: a level is a median of points before, a sigma their
median absolute deviation, a tail the largest residual but one of the last 512. Large figures are squashed by
``sign(x) log(1 + |x|)``. What a row does not have (gradient norm, rate) is 0.
"""

from __future__ import annotations

import numpy as np
from detection_score import LOSS_KINDS
from labelled_logs import Labelled
from numpy.lib.stride_tricks import sliding_window_view

__all__ = ["INPUTS", "inputs_of", "targets_of"]

#: Names of the columns of ``inputs_of``.
INPUTS = (
    "residual", "median of 3", "median of 10", "mean of 32", "median of 128 above its low", "residual in own tail",
    "median of 3 in own tail", "lag-1 correlation", "slope of 64", "fall before", "relative residual",
    "relative median of 10", "share of the rise in the last point", "noise of 16 to 128", "gradient norm",
    "rate to its maximum",
)  # fmt: skip


def inputs_of(log: Labelled) -> np.ndarray:
    """Return (rows, INPUTS) of a log, rows in its order."""
    loss = _column(log, "loss")
    level = _before(_rolling(loss, 50, np.median), 1)
    residual = loss - level
    sigma = 1.4826 * _before(_rolling(np.abs(residual), 128, np.median), 1)
    sigma = np.maximum(sigma, 2e-3 * np.abs(level) + 1e-12)
    few, ten = _rolling(loss, 3, np.median), _rolling(loss, 10, np.median)
    rise_few, rise_ten = few - _before(level, 3), ten - _before(level, 10)
    mean, long = _rolling(loss, 32, np.mean), _rolling(loss, 128, np.median)
    centred = residual - _rolling(residual, 128, np.mean)
    power = _rolling(centred**2, 128, np.mean) + 1e-30
    lag = _rolling(centred * _before(centred, 1), 128, np.mean) / power
    slope = (_rolling(loss, 32, np.mean) - _before(_rolling(loss, 32, np.mean), 32)) / sigma
    gradient = _column(log, "grad_norm")
    usual = _before(_rolling(gradient, 50, np.median), 1)
    spread = 1.4826 * _before(_rolling(np.abs(gradient - usual), 128, np.median), 1) + 1e-2 * np.abs(usual) + 1e-12
    rate = _column(log, "lr")
    highest = _before(np.maximum.accumulate(rate), 1)
    columns = [
        residual / sigma,
        rise_few / sigma,
        rise_ten / sigma,
        (mean - _before(mean, 32)) / sigma,
        (long - _rolling(long, 512, np.min)) / sigma,
        residual / _tail(residual, sigma),
        rise_few / _before(_tail(rise_few, sigma), 2),
        lag,
        slope,
        (_before(level, 256) - level) / sigma,
        residual / (np.abs(level) + 1e-12),
        rise_ten / (np.abs(level) + 1e-12),
        np.clip((loss - _before(loss, 1)) / np.where(np.abs(residual) > sigma, residual, sigma), -3, 3),
        _rolling(np.abs(residual), 16, np.median) / (_rolling(np.abs(residual), 128, np.median) + 0.1 * sigma),
        (gradient - usual) / spread,
        np.where(highest > 0, np.log((rate + 1e-30) / (highest + 1e-30)), 0.0).clip(-3, 3),
    ]
    stacked = np.stack(columns, axis=1)
    return np.sign(stacked) * np.log1p(np.abs(stacked))


def targets_of(log: Labelled) -> np.ndarray:
    """Return for each row 1 where an alarm finds an event, 0 where it is false, -1 where it is neither."""
    steps = np.array([row["step"] for row in log.rows])
    wanted = np.zeros(len(steps), dtype=np.int8)
    sorted_steps = np.array(log.steps)
    places = np.searchsorted(sorted_steps, steps)
    for event in log.events:
        begin = log.place(event.first)
        wanted[[log.covers(event, place) for place in places]] = -1
        if event.alarm and not event.one_point and event.kind in LOSS_KINDS and event.kind != "nonfinite":
            shown = log.place(event.onset if event.visible is None else event.visible)
            end = len(steps) if event.recovered is None else log.place(event.recovered)
            in_time = [begin <= place < max(end, begin + 1) and log.seen_in_time(event, place) for place in places]
            wanted[np.array(in_time) & (places >= min(shown, begin + 1))] = 1
    wanted[: log.unscored] = -1
    wanted[[log.is_ignored(step) for step in steps]] = -1
    return wanted


def _column(log: Labelled, name: str) -> np.ndarray:
    """Return a metric, each value that is missing or not finite as the one before."""
    values = np.array(
        [row[name] if isinstance(row.get(name), int | float) else np.nan for row in log.rows], dtype=float
    )
    known = np.isfinite(values) & (np.abs(values) < 1e30)
    if not known.any():
        return np.zeros(len(values))
    newest = np.maximum.accumulate(np.where(known, np.arange(len(values)), -1))
    return values[np.where(newest < 0, np.argmax(known), newest)]


def _before(values: np.ndarray, points: int) -> np.ndarray:
    return np.concatenate([np.full(min(points, len(values)), values[0]), values[:-points]])[: len(values)]


def _rolling(values: np.ndarray, points: int, function: np.ufunc) -> np.ndarray:
    """Return a function of the newest points; at the beginning the first value stands for those before it."""
    padded = np.concatenate([np.full(points - 1, values[0]), values])
    return function(sliding_window_view(padded, points), axis=1)


def _tail(values: np.ndarray, sigma: np.ndarray) -> np.ndarray:
    """Return the second largest of the 512 points before, at least a sigma."""
    blocks = _rolling(values, 16, np.max)  # the largest of 16, taken every 16: a cheap order statistic
    past = np.stack([_before(blocks, 1 + 16 * at) for at in range(32)])
    return np.maximum(np.partition(past, -2, axis=0)[-2], sigma)
