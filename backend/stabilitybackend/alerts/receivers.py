"""Receivers of incidents and watchers of the server, with the newest outcome of each."""

from __future__ import annotations

from typing import Literal

from stabilityalerting import HEARTBEAT, WATCHDOG, AlertingService, Heartbeat, Outcome
from stabilitybackend.schema.server import ErrorFacts, Receivers, ReceiverStatus

__all__ = ["receivers_now"]

#: The heartbeat and the watchdog are late after so long, seconds: both come each 30 s, and two may be missed.
LATE_AFTER_S = 90.0


async def receivers_now(
    alerting: AlertingService, beat: Heartbeat | None, reasons: list[ErrorFacts], now: float
) -> Receivers:
    """Return the receivers of incidents and the watchers of the server at ``now``, unix seconds.

    Raises:
        RedisError: Redis is away.
    """
    found = await alerting.outcomes.read()
    names = alerting.outcome_names()

    def status(name: str, set_up: bool, *, steady: bool = False) -> ReceiverStatus:
        outcome = found.get(name, Outcome())
        word: Literal["off", "nothing sent", "accepted", "refused", "late"]
        word = "nothing sent" if outcome.accepted is None else "accepted"
        if steady and outcome.accepted is not None and now - outcome.accepted > LATE_AFTER_S:
            word = "late"
        if outcome.is_refused:
            word = "refused"
        return ReceiverStatus(name, set_up, word if set_up else "off", outcome.accepted, outcome.refused, outcome.why)

    return Receivers(
        now, not reasons, reasons,
        heartbeat=status(HEARTBEAT, beat is not None, steady=True),
        watchdog=status(WATCHDOG, WATCHDOG in names, steady=True),
        receivers=[status(name, True) for name in names if name != WATCHDOG],
    )  # fmt: skip
