"""An incident kind with its advice and icon, and a detector of it. Logs ``disk_free_gib``, where checkpoints go."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from stabilitybackend.hooks import hook
from stabilitybackend.judging.detectors.engine.base import Detector, Finding, Point, Row
from stabilitybackend.judging.detectors.engine.synthetic import rows
from stabilitybackend.schema.kinds import IncidentKind

FREE_GIB = 100.0  # less is too little for the next checkpoint

FULL_DISK = IncidentKind(
    name="full_disk",
    label="Full disk",
    short="full disk",
    about="process",
    sign="▤",
    advice="Delete old checkpoints, or save to another disk, before the next checkpoint fails.",
)


class FullDiskDetector(Detector):
    """Opens one incident when the disk of the checkpoints has less than 100 GiB free."""

    name: ClassVar[str] = "full_disk"
    kinds: ClassVar[tuple[str, ...]] = ("full_disk",)
    title: ClassVar[str] = "Full disk"

    is_open: bool = False

    def wants(self, metric: str) -> bool:
        return metric == "disk_free_gib"

    def update(self, point: Point) -> list[Finding]:
        if self.is_open or not point.value < FREE_GIB * self.settings["sensitivity"]:
            return []
        self.is_open = True
        return [
            Finding(
                detector=self.name,
                key=self.name,
                kind="full_disk",
                state="open",
                severity="critical",
                title=f"Disk of the checkpoints has {point.value:.0f} GiB left at step {point.step}",
                text=f"Less than {FREE_GIB:.0f} GiB are left.",
                onset_step=point.step,
                step=point.step,
                now_step=point.step,
                metric=point.metric,
            )
        ]

    @classmethod
    def story(cls) -> Sequence[Row]:
        return rows("disk_free_gib", [500.0 - i for i in range(450)])


@hook
def incident_kinds() -> list[IncidentKind]:
    return [FULL_DISK]


@hook
def detectors() -> list[type[Detector]]:
    return [FullDiskDetector]
