"""The comparison of live runs with others, as a stage of the server."""

from __future__ import annotations

from collections.abc import Coroutine, Mapping
from typing import Any

from stabilitybackend.server.stage import Stage
from stabilitybackend.server.stages import Options, Runs
from stabilityplugins.other_runs.library import Library
from stabilityplugins.other_runs.service import OtherRuns

__all__ = ["OtherRunsStage"]


class OtherRunsStage(Stage):
    """Shared data of live runs with other runs of their project."""

    def __init__(self, options: Options, runs: Runs) -> None:
        self._follows_runs = options.has("worker")
        self._other_runs = OtherRuns(runs.manager, Library(runs.manager, runs.index))

    def work(self) -> Mapping[str, Coroutine[Any, Any, object]]:
        """Return the comparison."""
        return {"other-runs": self._other_runs.follow()} if self._follows_runs else {}
