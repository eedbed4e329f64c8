"""Settings of detectors as people type them: ``curve.sensitivity=2``; and the list of what can be set."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict
from typing import Any

from stabilitybackend.base.errors import WRONG_USE, BadRequest
from stabilitybackend.judging.detectors.engine.base import DetectorSettingError
from stabilitybackend.judging.detectors.registry import DETECTORS, check_settings

__all__ = ["detector_list", "parse_only", "parse_settings"]


def parse_settings(texts: Iterable[str]) -> dict[str, dict[str, float]]:
    """Return ``detector.parameter=value`` texts as settings; of two that name the same the last one counts.

    Raises:
        BadRequest: a text is not of that form, a name is unknown (the message lists what exists) or a value is out of
            its range.
    """
    settings: dict[str, dict[str, float]] = {}
    for text in texts:
        place, equals, value = text.partition("=")
        detector, dot, parameter = place.strip().partition(".")
        try:
            number = float(value)
        except ValueError:
            equals = ""
        if not equals or not dot:
            raise BadRequest(f"--set is {text!r}, expected detector.parameter=number", hint=_HINT, code=WRONG_USE)
        settings.setdefault(detector, {})[parameter] = number
    try:
        return check_settings(settings)
    except DetectorSettingError as error:
        raise BadRequest(f"--set: {error}".strip(), hint=_HINT, code=WRONG_USE) from error


def parse_only(texts: Iterable[str]) -> frozenset[str]:
    """Return the detectors and kinds that comma-separated texts name.

    Raises:
        BadRequest: one of them is no detector and no kind of any.
    """
    wanted = [name.strip() for text in texts for name in text.split(",") if name.strip()]
    kinds = {kind for make in DETECTORS.values() for kind in make().kinds}
    for name in wanted:
        if name not in DETECTORS and name not in kinds:
            others = ", ".join(sorted(kinds - set(DETECTORS)))
            more = f", or a kind: {others}" if others else ""
            what = f"there is no detector {name!r}, expected one of {', '.join(DETECTORS)}{more}"
            raise BadRequest(f"--only: {what}", hint=_HINT, code=WRONG_USE)
    return frozenset(wanted)


def detector_list() -> list[dict[str, Any]]:
    """Return all detectors, in the order of their right to an event, with what can be set."""
    return [
        {
            "name": name,
            "title": type(detector).title or name,
            "kinds": list(detector.kinds),
            "parameters": [{"name": one, **asdict(known)} for one, known in detector.parameters.items()],
        }
        for name, detector in ((name, make()) for name, make in DETECTORS.items())
    ]


_HINT = "stabilityboard backtest --list shows every detector, its parameters and their ranges"
