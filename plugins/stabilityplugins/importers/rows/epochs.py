"""Steps that begin again with each epoch."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

__all__ = ["EpochSteps"]


class EpochSteps:
    """Counts steps on that begin again with each epoch."""

    def __init__(self) -> None:
        self._ahead = 0
        self._stride = 1
        self._step: int | None = None

    def through(self, steps: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the steps with those of the epochs before added."""
        found = steps.copy()
        for at, step in enumerate(steps.tolist()):
            if self._step is not None and step < self._step:
                self._ahead += self._step + self._stride - step
            elif self._step is not None and step > self._step:
                self._stride = step - self._step
            self._step = step
            found[at] = step + self._ahead
        return found
