"""Which metric of a run is watched as what, and why."""

from __future__ import annotations

from typing import Literal

import msgspec

Why = Literal["name", "declared", "values"]


class WatchedMetric(msgspec.Struct, frozen=True):
    """A metric that detectors look at.

    Attributes:
        role: ``loss``, ``grad_norm``, ``lr``, ``batch_size``, ``val_loss``, ``tokens_per_s`` (any speed),
            ``step_time_s``, or ``ratio``, ``tokens``, ``samples`` of a data set; "" for any other: a note where it
            leaves its own past, or what a plug-in looks at.
        dataset: the data set that it is of, null for the run as a whole.
        why: its name is known, ``run.names()`` declared it, or what its values do told.
        detectors: that look at it. Empty where it is only drawn or looked up.
        text: what is done with its values, "" where they are taken as they are.
    """

    metric: str
    role: str
    dataset: str | None
    why: Why
    detectors: list[str]
    text: str = ""


class Watched(msgspec.Struct):
    """What is watched of a run, and what is not.

    Attributes:
        watched: those of the run as a whole first.
        unwatched: names that nobody looks at, at most 500, with ``unwatched_count`` in all. Readings of GPUs are none.
        notes: what should be put right: a declared name that never came, several that may be the loss.
        incomplete: the run has more metrics than are told apart.
        mixture: the job has declared its mixture (``GET .../mixture``).
    """

    watched: list[WatchedMetric]
    unwatched: list[str]
    unwatched_count: int
    notes: list[str]
    incomplete: bool = False
    mixture: bool = False
