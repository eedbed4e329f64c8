"""Match of a live run's data with another run of the project: by batch ids, or by the news in each loss."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from stabilitybackend.hooks import hook

if TYPE_CHECKING:
    from stabilitybackend.server.stage import Stage


@hook
def stages() -> Iterable[type[Stage]]:
    from stabilityplugins.other_runs.comparison_stage import OtherRunsStage

    return (OtherRunsStage,)
