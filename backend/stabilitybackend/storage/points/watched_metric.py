"""Which metric of a run is watched as its loss, and the text where none is."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from stabilitybackend.schema.metric_roles import LOSS, OTHERS, dataset_of, loss_of

__all__ = ["Watching"]

#: Readings of agents' GPUs: no metrics of the training.
_READINGS = "gpu/"
#: Names that are shown of those that a run logs.
_SHOWN = 3


class Watching:
    """Looks at each name once, when it is new: a run may have 20,000 of them."""

    def __init__(self) -> None:
        self._taken = 0
        self._named_loss: str | None = None
        self._logged = 0
        self._first: list[str] = []
        self._has_datasets = False

    def view(self, count: int, names: Callable[[], Sequence[str]], loss: str | None, missing: str) -> dict[str, Any]:
        """Return ``metric_count``, ``loss_metric`` and ``unwatched`` of the Run of docs/api.md.

        Args:
            count: of its metrics. names: returns them in the order in which they appeared.
            loss: the metric that is judged as the loss, where that is settled.
            missing: note on declared names without rows.
        """
        if count < self._taken:  # the run was folded again
            self.__init__()  # type: ignore[misc]
        if count > self._taken:
            self._take(names()[self._taken :])
            self._taken = count
        found = loss or self._named_loss
        unwatched = " ".join(text for text in (missing, "" if found is not None else self._text()) if text)
        return {"metric_count": count, "loss_metric": found, "unwatched": unwatched}

    def _take(self, names: Iterable[str]) -> None:
        fresh = [name for name in names if not name.startswith(_READINGS)]
        self._logged += len(fresh)
        self._first += fresh[: _SHOWN - len(self._first)]
        self._has_datasets = self._has_datasets or any(map(dataset_of, fresh))
        self._named_loss = loss_of([*([] if self._named_loss is None else [self._named_loss]), *fresh])

    def _text(self) -> str:
        if not self._logged or self._has_datasets:
            return ""
        more = f" and {self._logged - _SHOWN} more" if self._logged > _SHOWN else ""
        return (
            f"Nothing watches the loss of this run: none of what it logs ({', '.join(self._first)}{more}) is known as "
            f"one. Name it with run.names(loss=...), or log it as {LOSS!r} or under another known name such as "
            f"{OTHERS[LOSS][0]!r}; a data set's as 'loss/<data set>'."
        )
