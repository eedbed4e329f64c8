"""Which place in the data a step has, once batches have been left out."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

__all__ = ["Skips"]


class Skips:
    """Steps and places are counted from 1; without anything left out, step N has the batches at place N.

    Args:
        state: of :meth:`state`.
    """

    def __init__(self, state: dict[str, Any] | None = None) -> None:
        state = state or {"passed": [], "waiting": []}
        #: (step, how many places had been left out before it), where that changed.
        self._passed: list[tuple[int, int]] = [(int(step), int(count)) for step, count in state["passed"]]
        #: Places to be left out, (first, last), those that have been passed too.
        self._waiting: list[tuple[int, int]] = [(int(first), int(last)) for first, last in state["waiting"]]

    def place(self, step: int) -> int:
        """Return the place that a step had, or will have where nothing more is left out."""
        return step + next((count for since, count in reversed(self._passed) if since <= step), 0)

    def leave_out(self, first: int, last: int) -> None:
        """Leave these places out, both ends included, as far as they still lie ahead."""
        self._waiting.append((first, last))

    def carry_out(
        self, step: int, steps: Sequence[int] | None, batches: int | None, before: Skips
    ) -> tuple[int, int] | None:
        """Skip the ordered batches of a job that continues behind ``step``; return the places, None without an order.

        Args:
            steps: the first and the last whose batches are left out, as ``before`` knows them.
            batches: else how many behind ``step``.
        """
        if steps is not None:
            places = before.place(steps[0]), before.place(steps[1])
        elif batches:
            place = self.place(step)
            places = place + 1, place + batches
        else:
            return None
        self.leave_out(*places)
        return places

    def before(self, step: int) -> int:
        """Return how many places are left out right before the next step, and count them; once a step, in order."""
        place = begin = self.place(step)
        while any(first <= place <= last for first, last in self._waiting):
            place += 1
        if place > begin:
            self._passed.append((step, place - step))
            self._waiting = [one for one in self._waiting if one[1] >= place]
        return place - begin

    def state(self) -> dict[str, Any]:
        """Return the state for a checkpoint."""
        return {"passed": list(self._passed), "waiting": list(self._waiting)}
