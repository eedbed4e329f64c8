"""A lock whose urgent waiters are served first, the others in order of arrival."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable

__all__ = ["Turns"]


class Turns:
    """Who may work now."""

    def __init__(self) -> None:
        self._taken = False
        self._waiting: dict[asyncio.Future[None], Callable[[], bool]] = {}

    @contextlib.asynccontextmanager
    async def mine(self, urgent: Callable[[], bool]) -> AsyncIterator[None]:
        """Wait for a turn and hold it; ``urgent`` is called whenever the next waiter is chosen."""
        if self._taken:
            turn = asyncio.get_running_loop().create_future()
            self._waiting[turn] = urgent
            try:
                await turn
            except asyncio.CancelledError:
                if self._waiting.pop(turn, None) is None:  # it had just been given
                    self._next()
                raise
        self._taken = True
        try:
            yield
        finally:
            self._next()

    def _next(self) -> None:
        waiting = {turn: urgent for turn, urgent in self._waiting.items() if not turn.done()}  # else it was cancelled
        chosen = next((turn for turn, urgent in waiting.items() if urgent()), next(iter(waiting), None))
        self._taken = chosen is not None
        if chosen is not None:
            del self._waiting[chosen]
            chosen.set_result(None)
