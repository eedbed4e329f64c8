"""The batches of a torchtitan job, with what is left out. Its loader has a state, so it knows its place by itself."""

from __future__ import annotations

from stabilityclient.integrations.data import ids_of
from stabilityclient.integrations.shared.skips import Skips

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

    from stabilityclient.run import Run

__all__ = ["Feed", "as_at_the_start"]


class Feed:
    """Iterates over the batches of the steps; a place is what one step takes, with all its micro-batches.

    Args:
        skips: their state in a checkpoint, None where nothing was left out.

    Attributes:
        skips: what was and will be left out.
    """

    def __init__(self, run: Run, trainer: Any, skips: dict[str, Any] | None) -> None:
        self._run, self._trainer = run, trainer
        self.skips = Skips(skips or None)
        self._per_step = trainer.gradient_accumulation_steps * trainer.num_pipeline_parallel_microbatches
        self._source: Iterator[Any] | None = None
        #: Batches of this step that came; the first one of the next, and what came in place of it.
        self._drawn = 0
        self._waiting: list[Any] = []
        self._error: Exception | None = None

    def over(self, source: Iterator[Any]) -> Feed:
        """Take batches from torchtitan's iterator."""
        self._source = source
        return self

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        with self._run.phase("data"):
            if self._error is not None:
                raise self._error
            if self._waiting:
                return self._waiting.pop()
            return self._next(self._trainer.step)

    def fetch(self) -> None:
        """Leave out what is due, and wait for the first batch of the next step."""
        with self._run.phase("data"):
            try:
                self._waiting.append(self._next(self._trainer.step + 1))
            except Exception as error:  # no more data: for whoever asks for it
                self._error = error

    def _next(self, step: int) -> Any:
        assert self._source is not None
        if self._drawn == 0:
            for _ in range(self._per_step * self.skips.before(step)):
                next(self._source)
        batch = next(self._source)
        self._drawn = (self._drawn + 1) % self._per_step
        ids = ids_of(batch[0].get("input")) if isinstance(batch[0], dict) else None
        if ids is not None:
            self._run.data(step, ids=ids)
        return batch


def as_at_the_start(dataset: Any) -> None:
    """Let a data set be in its first epoch's order: torchtitan's do not go back to it when they load a state."""
    if hasattr(dataset, "_original_data"):
        dataset._data = dataset._original_data
    for inner in getattr(dataset, "_datasets", None) or ():
        as_at_the_start(inner)
