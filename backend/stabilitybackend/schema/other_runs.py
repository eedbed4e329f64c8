"""Which other run of the project had the data of a run: evidence of an incident, and part of ``GET .../batches``."""

from __future__ import annotations

from typing import Literal

import msgspec

__all__ = ["BY_OTHER_RUNS", "NOTE_KIND", "SharedData", "SharedDataFacts"]

#: Who reports it, and the kind of what wakes nobody.
BY_OTHER_RUNS = "other_runs"
NOTE_KIND = "shared_data"

By = Literal["ids", "loss"]


class SharedDataFacts(msgspec.Struct, frozen=True):
    """What is known of it.

    Attributes:
        other_run, other_name: the run that had the data. other_step: its step with the data of the onset.
        by: ``ids`` of batches, or the ``loss``. r: correlation, 1.0 for ids.
        shift: how much further the other run was: steps for ``ids``, else points.
        offset_steps: how much further this run was, steps.
        more_runs: further runs that had it, too.
        from_step: the step of the other run whose weights this one says that it began with; None where it says nothing.
    """

    other_run: str = ""
    other_name: str = ""
    other_step: int = 0
    by: By = "loss"
    r: float = 0.0
    shift: int = 0
    offset_steps: int = 0
    more_runs: int = 0
    from_step: int | None = None


class SharedData(msgspec.Struct, frozen=True):
    """Data that another run of the project had.

    Attributes:
        first: step since which this run has it. other_step: the step of the other run that had the data of ``first``.
        other_run, other_name: id and name of that run.
        by: ``ids`` of batches, or the ``loss``. r: correlation, 1 for ids.
        learned: the weights have learned from it, as the run says that it goes on from the other one: an alarm.
        more_runs: further runs that had it, too.
        incident_id: of the incident that says so.
    """

    first: int
    other_run: str
    other_name: str
    other_step: int
    by: By
    r: float
    learned: bool
    more_runs: int
    incident_id: str
