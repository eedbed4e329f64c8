"""How long finish() waits for the delivery, and when it is of no use to wait."""

from __future__ import annotations

import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from stabilityclient.sidecar import Sidecar

__all__ = ["await_delivery"]

#: finish() does not wait out its time for a server that the agent has not reached for so long, seconds.
AWAY_S = 5.0
#: The same for a server that refused the data for good: long enough for a new agent to say that it is otherwise.
REFUSED_S = 1.0
#: Seconds between two looks into the agent's files.
POLL_S = 0.02


def await_delivery(sidecar: Sidecar, source: str, last_seq: int, timeout_s: float) -> int:
    """Wait until the server confirmed ``last_seq`` of ``source``, or waiting is of no use.

    Returns:
        How many records are not delivered: 0 for all well.
    """
    begin = time.monotonic()
    sidecar.ensure()
    while True:
        left = last_seq - sidecar.acked(source)
        waited = time.monotonic() - begin
        if left <= 0 or waited >= timeout_s or _is_away(sidecar, source, waited):
            return max(0, left)
        time.sleep(POLL_S)


def _is_away(sidecar: Sidecar, source: str, waited: float) -> bool:
    state = sidecar.state()
    if state.get("state") in ("refused", "left") or sidecar.is_held(source):
        return waited >= REFUSED_S
    return state.get("state") == "connecting" and min(waited, time.time() - float(state.get("since") or 0)) >= AWAY_S
