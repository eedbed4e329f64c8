"""Watched metrics of a run, and reasons."""

from __future__ import annotations

from typing import Literal

import msgspec

Why = Literal["name", "declared", "values"]


class WatchedMetric(msgspec.Struct, frozen=True):
    """A metric that detectors read.

    Attributes:
        role: ``loss``, ``grad_norm``, ``lr``, ``batch_size``, ``val_loss``, ``tokens_per_s`` (any speed),
            ``step_time_s``, or ``ratio``, ``tokens``, ``samples`` of a data set; "" for any other: a note where it
            leaves its own past, or input of a plug-in.
        dataset: its data set, null for the run as a whole.
        why: by its name, by ``run.names()``, or by its values.
        detectors: that read it. Empty for display only.
        text: transformation of its values, "" for none.
    """

    metric: str
    role: str
    dataset: str | None
    why: Why
    detectors: list[str]
    text: str = ""


class WatchedMetrics(msgspec.Struct):
    """Watched and unwatched metrics of a run.

    Attributes:
        watched: those of the run as a whole first.
        unwatched: other names but readings of GPUs, at most 500, with ``unwatched_count`` in all.
        notes: faults to correct: a declared name that never appeared, several candidates of the loss.
        incomplete: the run has more metrics than are distinguished.
        mixture: the job has declared its mixture (``GET .../mixture``).
    """

    watched: list[WatchedMetric]
    unwatched: list[str]
    unwatched_count: int
    notes: list[str]
    incomplete: bool = False
    mixture: bool = False
