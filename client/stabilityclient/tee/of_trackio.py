"""Trackio: ``trackio.log``, ``Run.log`` and the config of ``trackio.init``."""

from __future__ import annotations

from stabilityclient.tee.counting import Counting
from stabilityclient.tee.library import Library
from stabilityclient.tee.recording import Recording, Stream

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from types import ModuleType
    from typing import Any

__all__ = ["Trackio"]


class Trackio(Library):
    """Trackio's runs."""

    title = "Trackio"
    modules = ("trackio.run",)

    def __init__(self, recording: Recording) -> None:
        super().__init__(recording)
        #: id of a run -> the run, its stream and its steps.
        self._runs: dict[int, tuple[Any, Stream, Counting]] = {}

    def patch(self, name: str, module: ModuleType) -> None:
        self.follow(module.Run, "log", self._logged)

    def _logged(
        self, _: Any, run: Any, metrics: Mapping[str, Any], step: Any = None, *given: Any, **named: Any
    ) -> None:
        known = self._runs.get(id(run))
        if known is None:
            # It has counted this row; one that is resumed continues from its last one.
            begun = max(0, int(getattr(run, "_next_step", 1)) - 1)
            stream = Stream(self.title, str(getattr(run, "name", None) or "trackio"))
            known = self._runs[id(run)] = (run, stream, Counting(self._recording, self.title, begun))
            config = getattr(run, "config", None)
            self._recording.config({key: value for key, value in dict(config or {}).items() if key[:1] != "_"})
        _, stream, steps = known
        self._recording.row(stream, steps.place(metrics, step), metrics)
        if step is not None:
            steps.count_to(int(step))
        steps.commit()
