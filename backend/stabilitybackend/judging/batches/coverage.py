"""What is missing in the ids that a job hands over, and what changed in how they are made: said, never guessed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from stabilitybackend.base.stateful import Stateful, fresh
from stabilitybackend.lineage.tree import PathRange

__all__ = ["Coverage", "Layout"]

#: Steps in a row that make another layout: the last batch of an epoch may be smaller, a rank may be late once.
CONFIRM_STEPS = 3
#: Changes of the layout, and of the epoch, that are remembered; the oldest go.
MAX_LAYOUTS, MAX_EPOCHS = 64, 4_096


@dataclass
class Layout:
    """How ids are made from a step on.

    Attributes:
        step: the first one. of: ``ids``, ``tokens[2048]``, or ``text`` (``run.batch``).
        parts: how many are handed over for one step, by ranks and calls. samples: in all of them, 0 where not known.
    """

    step: int
    of: str
    parts: int
    samples: int

    def like(self, other: Layout) -> bool:
        """Return whether batches of both are made alike."""
        return (self.of, self.parts, self.samples) == (other.of, other.parts, other.samples)


class Coverage(Stateful):
    """Follows the judged steps of the effective path."""

    layouts: list[Layout] = fresh(list)
    _next: Layout | None = None
    _nexts: int = 0
    #: The newest step with ids, the usual distance of two, and steps between two that have none.
    last: int | None = None
    _stride: int = 0
    missing: int = 0
    #: (segment, first step, epoch): what the lowest rank says.
    _epochs: list[tuple[int, int, float]] = fresh(list)

    def take(self, step: int, of: str, parts: int, samples: int) -> None:
        """Note how the batch of a judged step was made."""
        if self.last is not None and step > self.last:
            distance = step - self.last
            self._stride = min(self._stride or distance, distance)
            self.missing += distance // self._stride - 1
        self.last = step
        new = Layout(step, of, parts, samples)
        if not self.layouts:
            self.layouts.append(new)
        if self.layouts[-1].like(new):
            self._next = None
        elif self._next is None or not self._next.like(new):
            self._next, self._nexts = new, 1
        else:
            self._nexts += 1
            if self._nexts == CONFIRM_STEPS:
                self.layouts, self._next = [*self.layouts, self._next][-MAX_LAYOUTS:], None

    def went_back(self, fork_step: int) -> None:
        """Forget what came after the step to which the run went back."""
        kept = [one for one in self.layouts if one.step <= fork_step]
        # One rank that dies in its first steps tells nothing of the job; the first layout stays as the one to compare.
        self.layouts, self._next = kept or self.layouts[:1], None
        self.last = None

    def began(self) -> None:
        """A process goes on: what lies between its first step and the last one was not left out."""
        self.last = None

    # --- epochs --------------------------------------------------------------------------------------------------

    def note_epoch(self, path: Sequence[PathRange], segment: int, step: int, epoch: float) -> None:
        """Take the number of the pass over the data that the lowest rank gives for a step."""
        known, _ = self.epoch_at(path, step)
        if known != epoch:
            self._epochs = [*self._epochs, (segment, step, epoch)][-MAX_EPOCHS:]

    def epoch_at(self, path: Sequence[PathRange], step: int) -> tuple[float | None, int]:
        """Return the epoch of a step of a path and the step with which it began; None and 0 where nothing was said."""
        ends = {part.segment: part.last for part in path}
        for segment, first, epoch in reversed(self._epochs):
            if segment in ends and first <= step:
                last = ends[segment]
                if last is None or first <= last:
                    return epoch, first
        return None, 0

    # --- words ---------------------------------------------------------------------------------------------------

    def notes(self) -> Iterator[str]:
        """Yield what people have to know before they trust that nothing was found, a sentence each."""
        for before, after in zip(self.layouts, self.layouts[1:], strict=False):
            since = f"Since step {after.step:,}"
            if before.of != after.of:
                yield (
                    f"{since} ids are made of {after.of}, before of {before.of}: batches before and after can't be "
                    "compared."
                )
            elif before.of == "text" and before.parts != after.parts:
                yield (
                    f"{since} {after.parts} parts make a batch, before {before.parts}: batches before and after can't "
                    "be compared, since run.batch was given one text for each part. run.data(ids=) can be."
                )
            elif before.samples != after.samples:
                yield (
                    f"{since} a batch has {after.samples:,} samples, before {before.samples:,}: batches before and "
                    "after have no equal ids, only their samples are compared."
                )
        if any(one.of.startswith("tokens") for one in self.layouts):
            yield (
                "Ids are made of tokens: with another tokenizer, packing or padding the same text has another id. Ids "
                "of samples do not depend on them."
            )
        if self.missing:
            yield f"{self.missing:,} steps between others have no ids: what they saw is not known."
