"""The detectors that run on every run: one line each, in the order in which they see a point."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from stabilitybackend.registering import check_class

from .data_mix_drift import DataMixDriftDetector
from .dataset_loss import DatasetLossDetector
from .divergence import DivergenceDetector
from .engine.base import Detector, DetectorSettingError
from .frozen import FrozenDetector
from .grad_norm import GradNormDetector
from .learning_rate import LearningRateDetector
from .level_shift import LevelShiftDetector
from .mixture import MixtureDetector
from .nonfinite import NonfiniteDetector
from .plateau import PlateauDetector
from .repeat_data import RepeatDataDetector
from .resume_artifact import ResumeArtifactDetector
from .spike.detector import SpikeDetector
from .starts_over import StartsOverDetector
from .straggler import StragglerDetector
from .throughput import ThroughputDetector

__all__ = ["DETECTORS", "DetectorFactory", "Settings", "check_settings", "register"]

#: Makes a fresh detector. Must be importable, so that a law test can name it.
DetectorFactory = Callable[[], Detector]

#: Parameters that differ from their default, by detector and name.
Settings = Mapping[str, Mapping[str, float]]

#: All detectors by name, in the order of their right to an event: the first that claims it keeps it. The law in
#: ``conformance.py`` is run over each of them.
DETECTORS: dict[str, DetectorFactory] = {
    LearningRateDetector.name: LearningRateDetector,
    NonfiniteDetector.name: NonfiniteDetector,
    FrozenDetector.name: FrozenDetector,
    StartsOverDetector.name: StartsOverDetector,
    ResumeArtifactDetector.name: ResumeArtifactDetector,
    SpikeDetector.name: SpikeDetector,
    DivergenceDetector.name: DivergenceDetector,
    RepeatDataDetector.name: RepeatDataDetector,
    LevelShiftDetector.name: LevelShiftDetector,
    DatasetLossDetector.name: DatasetLossDetector,
    PlateauDetector.name: PlateauDetector,
    GradNormDetector.name: GradNormDetector,
    MixtureDetector.name: MixtureDetector,
    DataMixDriftDetector.name: DataMixDriftDetector,
    ThroughputDetector.name: ThroughputDetector,
    StragglerDetector.name: StragglerDetector,
}


def register(detector: type[Detector]) -> type[Detector]:
    """Add a detector, behind all others in the right to an event. A plug-in has it above its class as a decorator.

    Raises:
        TypeError: it is no detector, or lacks something that every detector has.
        ValueError: its name has the wrong form, or there is one of its name.
    """
    check_class(detector, Detector, ("name", "kinds", "wants", "update"), DETECTORS)
    detector()  # what its constructor raises is better known now than in the first run
    DETECTORS[detector.name] = detector
    return detector


def check_settings(settings: object) -> dict[str, dict[str, float]]:
    """Return settings of detectors as numbers, without empty ones.

    Args:
        settings: mapping of detector -> mapping of parameter -> number, as people send it.

    Raises:
        DetectorSettingError: it is no such mapping, a name is unknown or a number is out of range.
    """
    if not isinstance(settings, Mapping):
        raise DetectorSettingError(f"settings are {type(settings).__name__}, expected detector -> parameter -> number")
    checked: dict[str, dict[str, float]] = {}
    for name, values in settings.items():
        if name not in DETECTORS:
            raise DetectorSettingError(f"there is no detector {name!r}, expected one of {', '.join(DETECTORS)}")
        if not isinstance(values, Mapping):
            raise DetectorSettingError(f"settings of {name} are {values!r}, expected parameter -> number")
        detector = DETECTORS[name]()
        detector.configure(values)
        if values:
            checked[name] = {parameter: detector.settings[parameter] for parameter in values}
    return checked
