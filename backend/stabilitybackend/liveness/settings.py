"""How long a rank may be stalled: the settings of the liveness monitor."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Limits"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Bounds of the learned budgets, all in seconds.

    Args:
        hang_floor_s: a rank may always stall so long before that is called a hang (``STABILITY_HANG_FLOOR_S``).
        hang_ceiling_s: no learned budget of a usual phase is longer (``STABILITY_HANG_CEILING_S``).
        agent_lost_s: an agent may be silent so long before that is reported (``STABILITY_AGENT_LOST_S``). Above 20: an
            agent that was stopped for 20 s and goes on has harmed nothing.
    """

    hang_floor_s: float = 10.0
    hang_ceiling_s: float = 1_800.0
    agent_lost_s: float = 30.0
