"""Which step a row has in a library that counts by itself where the script gives none (W&B, Trackio)."""

from __future__ import annotations

from stabilityclient.step_names import STEP_NAMES, names_steps, whole

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

    from stabilityclient.tee.recording import Recording

__all__ = ["Counting"]


class Counting:
    """The steps of one stream.

    In this order: the step that the call gives; a value of the row that is the step of the training (declared, or of a
    listed name), and without it in the row its newest one; the newest step that the script gave another library, if it
    did so before this stream began; the library's count.

    Args:
        library: its title. count: where it begins to count.
    """

    def __init__(self, recording: Recording, library: str, count: int) -> None:
        self._recording = recording
        self._library = library
        self._count = count
        self._declared = [] if recording.step_key is None else [recording.step_key]
        self._key: str | None = None
        self._no_key = False
        self._newest = -1
        #: Added to the count, once a value that was taken for the step was none.
        self._ahead = 0
        self._follows: bool | None = None

    def declare(self, step_metric: str, of: str) -> None:
        """Take the script's axis of some metrics (``define_metric``)."""
        if step_metric not in self._declared and (of == "*" or names_steps(step_metric)):
            self._declared.append(step_metric)

    def count_to(self, step: int) -> None:
        """A call gave a step: the count continues from there."""
        self._count = max(self._count, step)

    def commit(self) -> None:
        """The row is complete."""
        self._count += 1

    def place(self, values: Mapping[str, Any], given: object = None) -> int:
        """Return the step of a row."""
        step = whole(given)
        if step is None:
            step = self._of(values)
        else:
            self._recording.note_step(self._library, step)
        self._newest = step
        return step

    def _of(self, values: Mapping[str, Any]) -> int:
        key = self._key or self._found(values)
        step = None if key is None else whole(values.get(key))
        if step is not None and (step >= self._newest or key in self._declared):
            self._key = key
            self._recording.note_step(self._library, step)
            return step
        if self._key is not None:
            if step is None:
                return self._newest
            self._recording.tell(f"{key} goes back from {self._newest} to {step}: it is not taken as the step any more")
            self._key, self._no_key, self._ahead = None, True, self._newest + 1 - self._count
        if self._follows is None:
            self._follows = self._recording.elsewhere(self._library) >= 0
        if self._follows:
            return self._recording.elsewhere(self._library)
        return self._count + self._ahead

    def _found(self, values: Mapping[str, Any]) -> str | None:
        for key in self._declared:
            if key in values:
                return key
        return None if self._no_key else next((key for key in STEP_NAMES if key in values), None)
