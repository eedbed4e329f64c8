"""Every registered detector keeps the law of ``engine/conformance.py``, and every check finds one that breaks it."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any, ClassVar

import pytest

from stabilitybackend.judging.detectors.curve.detector import CurvesDetector
from stabilitybackend.judging.detectors.engine import conformance
from stabilitybackend.judging.detectors.engine.base import Detector, Finding, Mark, Point, Row, fresh
from stabilitybackend.judging.detectors.engine.context import Claim
from stabilitybackend.judging.detectors.engine.row_blocks import QuietRows
from stabilitybackend.judging.detectors.engine.synthetic import noisy, rows
from stabilitybackend.judging.detectors.nonfinite import NonfiniteDetector
from stabilitybackend.judging.detectors.registry import DETECTORS, DetectorFactory
from stabilitybackend.schema.kinds import KINDS

Check = Callable[[DetectorFactory], None]


def _each_with_each() -> Iterable[Any]:
    """Every detector with every check; an eighth of them, in which each of both is met, is not left to `make soak`."""
    for row, name in enumerate(DETECTORS):
        for column, check in enumerate(conformance.CHECKS):
            marks = () if (row + column) % 8 == 0 else (pytest.mark.soak,)
            yield pytest.param(name, check, id=f"{name}-{check.__name__}", marks=marks)


@pytest.mark.parametrize(("name", "check"), [*_each_with_each()])
def test_every_detector_keeps_the_law(name: str, check: Check) -> None:
    check(DETECTORS[name])


@pytest.mark.parametrize("name", DETECTORS)
def test_a_detector_is_registered_under_its_own_name_with_known_kinds(name: str) -> None:
    assert DETECTORS[name]().name == name
    assert set(DETECTORS[name]().kinds) <= KINDS.keys()


def test_check_all_runs_every_check_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    ran: list[tuple[int, DetectorFactory]] = []
    monkeypatch.setattr(conformance, "CHECKS", tuple(lambda make, n=n: ran.append((n, make)) for n in range(3)))
    conformance.check_all(NonfiniteDetector)
    assert ran == [(0, NonfiniteDetector), (1, NonfiniteDetector), (2, NonfiniteDetector)]


class _Wrapped(CurvesDetector):
    """A good detector to be broken by its subclasses."""


class _ReadsTheClock(_Wrapped):
    def update(self, point: Point) -> list[Finding]:
        return [replace(f, score=time.perf_counter()) for f in super().update(point)]


class _TakesTooMuchAtOnce(_Wrapped):
    def take_quiet(self, rows: QuietRows, start: int, stop: int) -> int:
        return stop


class _Remembers(_Wrapped):
    all: list[float] = fresh(list)

    def update(self, point: Point) -> list[Finding]:
        self.all.append(point.value)
        return super().update(point)


class _RaisesAtFirst(_Wrapped):
    def update(self, point: Point) -> list[Finding]:
        return [] if point.value == 1 / (point.value or 0) else super().update(point)


class _RemembersUndeclared(_Wrapped):
    def __init__(self) -> None:
        super().__init__()
        self.newest = 0

    def update(self, point: Point) -> list[Finding]:
        self.newest = point.step
        return super().update(point)


class _DeclaresAnotherType(_Wrapped):
    newest: str = ""

    def update(self, point: Point) -> list[Finding]:
        self.newest = point.step  # type: ignore[assignment]
        return super().update(point)


class _DeafAfterNan(_Wrapped):
    def __init__(self) -> None:
        super().__init__()
        self.sum = 0.0

    def update(self, point: Point) -> list[Finding]:
        self.sum += point.value
        return super().update(point) if self.sum == self.sum and abs(self.sum) < 1e300 else []


class _SharesItsEvidence(_Wrapped):
    def __init__(self) -> None:
        super().__init__()
        self.evidence: dict[str, Any] = {}

    def update(self, point: Point) -> list[Finding]:
        self.evidence["last"] = point.step
        return [replace(f, evidence=self.evidence) for f in super().update(point)]


class _NewKeyEachTime(_Wrapped):
    def update(self, point: Point) -> list[Finding]:
        return [replace(f, key=f"{f.key}:{point.step}") for f in super().update(point)]


class _Chatters(_Wrapped):
    def __init__(self) -> None:
        super().__init__()
        self.said: Finding | None = None

    def update(self, point: Point) -> list[Finding]:
        found = super().update(point)
        self.said = found[-1] if found else self.said
        return found or ([] if self.said is None else [replace(self.said, now_step=point.step)])


class _SaysObjects(_Wrapped):
    def update(self, point: Point) -> list[Finding]:
        return [replace(f, evidence={"point": object()}) for f in super().update(point)]


class _SaysAnotherKind(_Wrapped):
    def update(self, point: Point) -> list[Finding]:
        return [replace(f, kind="straggler") for f in super().update(point)]


class _Nervous(Detector):
    name: ClassVar[str] = "spike"
    kinds: ClassVar[tuple[str, ...]] = ("spike",)

    def __init__(self) -> None:
        super().__init__()
        self.mean = 2.0

    def wants(self, metric: str) -> bool:
        return metric == "loss"

    def update(self, point: Point) -> list[Finding]:
        high = point.value > 1.3 * self.mean
        self.mean += 0.1 * (point.value - self.mean)
        key = f"spike:loss:{point.step}"
        text = "The loss is high."
        step = point.step
        return [Finding("spike", key, "spike", "open", "warning", text, text, step, step, step)] if high else []


class _TellsOfTwoEvents(_Wrapped):
    @classmethod
    def story(cls) -> list[Row | Mark]:
        values = noisy(600, seed=1)
        values[200:204] = values[400:404] = [9.0] * 4
        return [*rows("loss", values)]


class _RaisesOnHugeValues(_Wrapped):
    def update(self, point: Point) -> list[Finding]:
        return super().update(point) if math.isinf(point.value) or math.exp(min(point.value, 1e3)) else []


class _RemembersOutsideItself(_Wrapped):
    seen: ClassVar[set[int]] = set()

    def update(self, point: Point) -> list[Finding]:
        self.seen.add(point.step)
        return [replace(f, score=float(len(self.seen))) for f in super().update(point)]


class _CalmsDown(_Wrapped):
    def update(self, point: Point) -> list[Finding]:
        return [f if f.state == "open" else replace(f, severity="info") for f in super().update(point)]


class _CannotBeMuted(_Wrapped):
    def configured(self) -> None:
        self.settings = {name: parameter.default for name, parameter in self.parameters.items()}
        super().configured()


class _NeverLetsGo(_Wrapped):
    def update(self, point: Point) -> list[Finding]:
        found = super().update(point)
        for f in found:
            self.context.claim(str(f.metric), Claim(self.name, f.key, f.kind, f.onset_step))
        return found


class _FindsNothing(_Wrapped):
    def update(self, point: Point) -> list[Finding]:
        return []


class _HasAKindOfNobody(_Wrapped):
    kinds: ClassVar[tuple[str, ...]] = ("spyke",)


class _WantsNothing(_Wrapped):
    def wants(self, metric: str) -> bool:
        return metric == os.devnull


BROKEN: list[tuple[Check, DetectorFactory]] = [
    (conformance.check_deterministic, _ReadsTheClock),
    (conformance.check_deterministic, _TakesTooMuchAtOnce),
    (conformance.check_bounded_memory, _Remembers),
    (conformance.check_works_from_the_first_point, _RaisesAtFirst),
    (conformance.check_resumes_from_its_saved_state, _RemembersUndeclared),
    (conformance.check_resumes_from_its_saved_state, _DeclaresAnotherType),
    (conformance.check_awake_after_nonfinite, _DeafAfterNan),
    (conformance.check_input_not_kept, _SharesItsEvidence),
    (conformance.check_one_incident_per_event, _NewKeyEachTime),
    (conformance.check_one_incident_per_event, _Chatters),
    (conformance.check_one_incident_per_event, _CalmsDown),
    (conformance.check_finds_its_story, _TellsOfTwoEvents),
    (conformance.check_finds_its_story, _FindsNothing),
    (conformance.check_survives_bad_input, _RaisesOnHugeValues),
    (conformance.check_rewinds_to_the_fork, _RemembersOutsideItself),
    (conformance.check_gives_events_back, _NeverLetsGo),
    (conformance.check_settings, _CannotBeMuted),
    (conformance.check_findings_are_well_formed, _SaysObjects),
    (conformance.check_findings_are_well_formed, _SaysAnotherKind),
    (conformance.check_findings_are_well_formed, _HasAKindOfNobody),
    (conformance.check_silent_when_healthy, _Nervous),
    (conformance.check_silent_when_healthy, _WantsNothing),
]


@pytest.mark.parametrize(("check", "broken"), BROKEN, ids=lambda thing: thing.__name__)
def test_each_check_finds_a_detector_that_breaks_it(check: Check, broken: DetectorFactory) -> None:
    with pytest.raises(conformance.LawBroken):
        check(broken)


@pytest.mark.soak
def test_check_all_names_every_law_that_is_broken_with_its_own_line() -> None:
    class BreaksTwo(_CannotBeMuted, _CalmsDown):
        pass

    with pytest.raises(conformance.LawBroken) as caught:
        conformance.check_all(BreaksTwo)

    laws = {line.partition(":")[0] for line in str(caught.value).splitlines()}
    assert {"one incident per event", "settings"} <= laws


def test_a_detector_that_raises_breaks_the_law_with_its_exception_and_line() -> None:
    line = _RaisesOnHugeValues.update.__code__.co_firstlineno + 1
    with pytest.raises(conformance.LawBroken, match=rf"OverflowError: math range error \(.*\.py, line {line}\)"):
        conformance.check_all(_RaisesOnHugeValues)


def test_what_is_no_detector_breaks_the_law_in_words() -> None:
    with pytest.raises(conformance.LawBroken, match=r"Detector of stabilitybackend\.judging\.detectors"):
        conformance.check_all(object)  # type: ignore[arg-type]


def test_every_check_has_a_detector_that_breaks_it() -> None:
    assert {check for check, _ in BROKEN} == set(conformance.CHECKS)
