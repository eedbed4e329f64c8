"""The numbers of NVML that alone show a fault of a GPU: one line each.

A line here makes the agent ask for the number at its slow samples, and report it. Its meaning (how bad it is, the
remedy) is one line of the server, ``gpus/signs.py``: older agents are judged by today's rules.
"""

from __future__ import annotations

from typing import NamedTuple

__all__ = ["CONDITIONS", "Condition", "register"]

#: Seconds between two reports of corrected memory errors of one GPU.
COUNTER_QUIET_S = 600.0


class Condition(NamedTuple):
    """One number.

    Args:
        what: its name in the event ``gpu`` and, of a counter, in the metric ``gpu/<i>/<what>``.
        field: its id in ``nvmlDeviceGetFieldValues``. A GPU that does not have it is not asked again.
        text: one clause; of a counter its noun, with ``{}`` where the plural's s goes.
        counts: it is a counter, reported by its growth. Else it is a condition while it is not 0.
        quiet_s: of a counter: seconds between two reports.
    """

    what: str
    field: int
    text: str
    counts: bool = False
    quiet_s: float = 0.0


CONDITIONS: dict[str, Condition] = {
    condition.what: condition
    for condition in (
        # NVML_FI_DEV_ECC_DBE_VOL_TOTAL and _SBE_: since the driver was loaded.
        Condition("ecc_uncorrected", 4, "memory error{} beyond correction", counts=True),
        Condition("ecc_corrected", 3, "corrected memory error{}", counts=True, quiet_s=COUNTER_QUIET_S),
        # NVML_FI_DEV_REMAPPED_PENDING, NVML_FI_DEV_REMAPPED_FAILURE
        Condition("remap_pending", 144, "a memory row is replaced with the next reset"),
        Condition("remap_failed", 145, "a bad memory row could not be replaced"),
    )
}


def register(condition: Condition) -> None:
    """Add a condition, from a plug-in of the agent.

    Raises:
        ValueError: there is one of its name.
    """
    if condition.what in CONDITIONS:
        raise ValueError(f"there is a condition {condition.what!r} already, give this one another name")
    CONDITIONS[condition.what] = condition
