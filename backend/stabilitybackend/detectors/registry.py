"""The detectors that run on every run: one line each, in the order in which they see a point."""

from __future__ import annotations

from collections.abc import Callable

from .contract import Detector
from .nonfinite import NonfiniteDetector
from .spike import SpikeDetector

__all__ = ["DETECTORS", "DetectorFactory"]

#: Makes a fresh detector. Must be importable, so that a law test can name it.
DetectorFactory = Callable[[], Detector]

#: All detectors by name. The law in ``checks.py`` is run over each of them.
DETECTORS: dict[str, DetectorFactory] = {
    SpikeDetector.name: SpikeDetector,
    NonfiniteDetector.name: NonfiniteDetector,
}
