"""Which metric of a run is watched as its loss, and the text where none is."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from stabilitybackend.detectors.engine.metric_roles import LOSS, OTHERS, dataset_of, loss_of

__all__ = ["Watching"]

#: Readings of agents' GPUs: no metrics of the training.
_READINGS = "gpu/"
#: Names that are shown of those that a run logs.
_SHOWN = 3


class Watching:
    """Looks at the names again only when there is a new one."""

    def __init__(self) -> None:
        self._known: tuple[int, str | None, str] = (-1, None, "")
        self._loss: str | None = None
        self._unwatched = ""

    def view(self, metrics: Sequence[str], loss: str | None = None, missing: str = "") -> dict[str, Any]:
        """Return ``metrics``, ``loss_metric`` and ``unwatched`` of the Run of docs/api.md.

        Args:
            loss: the metric that is judged as the loss, where that is known already.
            missing: what to say of declared names that never came.
        """
        if (len(metrics), loss, missing) != self._known:
            self._known = (len(metrics), loss, missing)
            self._loss = loss or loss_of(metrics)
            self._unwatched = " ".join(text for text in (missing, self._text(metrics)) if text)
        return {"metrics": metrics, "loss_metric": self._loss, "unwatched": self._unwatched}

    def _text(self, metrics: Sequence[str]) -> str:
        logged = [name for name in metrics if not name.startswith(_READINGS)]
        if not logged or self._loss is not None or any(map(dataset_of, logged)):
            return ""
        named = ", ".join(logged[:_SHOWN]) + (f" and {len(logged) - _SHOWN} more" if len(logged) > _SHOWN else "")
        return (
            f"Nothing watches the loss of this run: none of what it logs ({named}) is known as one. Name it with "
            f"run.names(loss=...), or log it as {LOSS!r} or under another known name such as {OTHERS[LOSS][0]!r}; a "
            "data set's as 'loss/<data set>'."
        )
