"""The detectors of every run: one line each, in order of priority."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict
from typing import Any

from stabilitybackend.base.registering import check_class

from .curve.detector import CurvesDetector
from .data_mix_drift import DataMixDriftDetector
from .engine.base import Detector, DetectorSettingError
from .frozen import FrozenDetector
from .learning_rate import LearningRateDetector
from .mixture import MixtureDetector
from .nonfinite import NonfiniteDetector
from .repeat_data import RepeatDataDetector
from .resume_artifact import ResumeArtifactDetector
from .sdc_suspect import SdcSuspectDetector
from .starts_over import StartsOverDetector
from .straggler import StragglerDetector
from .throughput import ThroughputDetector

__all__ = ["DETECTORS", "DetectorFactory", "Settings", "add", "check_settings", "detector_list", "renamed"]

#: Makes a fresh detector. Must be importable, so that a law test can name it.
DetectorFactory = Callable[[], Detector]

#: Parameters that differ from their default, by detector and name.
Settings = Mapping[str, Mapping[str, float]]

#: All detectors by name, in order of priority: the first one to claim an event keeps it. The checks of
#: ``conformance.py`` are run over each of them.
DETECTORS: dict[str, DetectorFactory] = {
    LearningRateDetector.name: LearningRateDetector,
    NonfiniteDetector.name: NonfiniteDetector,
    FrozenDetector.name: FrozenDetector,
    StartsOverDetector.name: StartsOverDetector,
    ResumeArtifactDetector.name: ResumeArtifactDetector,
    CurvesDetector.name: CurvesDetector,
    RepeatDataDetector.name: RepeatDataDetector,
    MixtureDetector.name: MixtureDetector,
    DataMixDriftDetector.name: DataMixDriftDetector,
    ThroughputDetector.name: ThroughputDetector,
    StragglerDetector.name: StragglerDetector,
    SdcSuspectDetector.name: SdcSuspectDetector,
}


#: Predecessors of the curve detector, the best documented first -> their parameters that it has.
_REPLACED: Mapping[str, tuple[str, ...]] = {
    "spike": ("sensitivity", "min_rise"),
    **dict.fromkeys(("level_shift", "divergence", "dataset_loss", "plateau", "grad_norm"), ("sensitivity",)),
}


def add(detector: type[Detector]) -> None:
    """Add a detector of a plug-in, with the lowest priority.

    Raises:
        TypeError: no detector, or incomplete.
        ValueError: an invalid or duplicate name.
    """
    check_class(detector, Detector, ("name", "kinds", "wants", "update"), DETECTORS)
    detector()  # an error of its constructor stops the start, not the first run
    DETECTORS[detector.name] = detector


def detector_list() -> list[dict[str, Any]]:
    """Return all detectors, in order of priority, with their parameters."""
    return [
        {
            "name": name,
            "title": type(detector).title or name,
            "kinds": list(detector.kinds),
            "parameters": [{"name": one, **asdict(known)} for one, known in detector.parameters.items()],
        }
        for name, detector in ((name, make()) for name, make in DETECTORS.items())
    ]


def check_settings(settings: object) -> dict[str, dict[str, float]]:
    """Return settings of detectors as numbers, without empty ones.

    Args:
        settings: mapping of detector -> mapping of parameter -> number, as users send it.

    Raises:
        DetectorSettingError: no such mapping, an unknown name, or a number out of range.
    """
    if not isinstance(settings, Mapping):
        raise DetectorSettingError(f"settings are {type(settings).__name__}, expected detector -> parameter -> number")
    checked: dict[str, dict[str, float]] = {}
    for name, values in renamed(settings).items():
        if name not in DETECTORS:
            raise DetectorSettingError(f"there is no detector {name!r}, expected one of {', '.join(DETECTORS)}")
        if not isinstance(values, Mapping):
            raise DetectorSettingError(f"settings of {name} are {values!r}, expected parameter -> number")
        detector = DETECTORS[name]()
        detector.configure(values)
        if values:
            checked[name] = {parameter: detector.settings[parameter] for parameter in values}
    return checked


def renamed(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return settings with those of the curve detector's predecessors under its name.

    Args:
        settings: detector -> parameter -> number, by users or an older version.

    Raises:
        DetectorSettingError: a removed parameter, or two values for a merged one.
    """
    found = {name: values for name, values in settings.items() if name not in _REPLACED}
    curve = CurvesDetector.name
    for name, known in _REPLACED.items():
        for parameter, value in _mapping(settings.get(name)).items():
            place = f"{name}.{parameter}"
            if parameter not in known:
                raise DetectorSettingError(f"{place} is gone: detector {curve} replaces {name} and has no such setting")
            values = found.setdefault(curve, {})
            if _mapping(values).get(parameter, value) != value:
                have = values[parameter]
                raise DetectorSettingError(f"{place} is {value!r} and {curve}.{parameter} {have!r}: they are one now")
            found[curve] = {**values, parameter: value}
    return found


def _mapping(values: object) -> Mapping[str, Any]:
    return values if isinstance(values, Mapping) else {}
