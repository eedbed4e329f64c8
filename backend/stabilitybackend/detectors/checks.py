"""The law that every detector keeps, as functions that a plug-in author can run: ``check_all(MyDetector)``.

Each check takes a factory (a class, or any function that gives a fresh detector) and raises ``LawBroken`` with what was
given, expected and seen. The curves are generated from seeds, so that a failure comes again.
"""

from __future__ import annotations

import copy
import json
import math
import pickle
from collections.abc import Callable, Iterator
from dataclasses import asdict

from . import curves
from .contract import Detector, Finding, Point

#: Points after which the memory of a detector is measured the second time.
MANY_POINTS = 20_000
#: Largest pickled detector, bytes. One is kept per run and detector, and up to 64 times in snapshots.
MAX_STATE_BYTES = 64 * 1024
#: Findings about one event over 1,000 points that are still news and not chatter.
MAX_FINDINGS_PER_EVENT = 24
#: Largest finding as JSON, bytes.
MAX_FINDING_BYTES = 16 * 1024

Factory = Callable[[], Detector]

__all__ = ["CHECKS", "LawBroken", "check_all"]


class LawBroken(AssertionError):
    """A detector breaks the law. The text names the check, what was expected and what was seen."""


def check_deterministic(make: Factory) -> None:
    """The same points give the same findings, from two fresh detectors."""
    for metric, points in _event_series(make):
        if _feed(make(), points) != _feed(make(), points):
            raise LawBroken(f"deterministic: two detectors of one kind differ on the same points of {metric}")


def check_bounded_memory(make: Factory) -> None:
    """The state after 20,000 points is small, and no larger than after 2,000."""
    for metric in _wanted(make):
        detector = make()
        values = curves.noisy(MANY_POINTS, seed=3)
        _feed(detector, curves.points(metric, values[:2_000]))
        early = len(pickle.dumps(detector))
        _feed(detector, [Point(2_000 + i, metric, v, 0.0) for i, v in enumerate(values[2_000:])])
        late = len(pickle.dumps(detector))
        if late > MAX_STATE_BYTES or late > 1.25 * early + 512:
            raise LawBroken(
                f"bounded memory: {early} bytes after 2,000 points of {metric}, {late} after {MANY_POINTS:,}; "
                f"expected no growth and at most {MAX_STATE_BYTES}"
            )


def check_works_from_the_first_point(make: Factory) -> None:
    """No number of first points, one included, makes a detector raise, whatever their values."""
    for metric in _wanted(make):
        for first in (0.0, -1.0, 2.5, 1e300, -1e300, 5e-324, math.nan, math.inf, -math.inf):
            for more in ([], [first], [2.0], [0.0, first, 2.0]):
                detector = make()
                try:
                    _feed(detector, curves.points(metric, [first, *more]))
                except Exception as error:
                    raise LawBroken(
                        f"works from the first point: {metric} = {[first, *more]} raised {error!r}"
                    ) from error


def check_resumes_from_pickle(make: Factory) -> None:
    """A detector that was pickled and loaded in the middle goes on as if nothing had been."""
    for metric, points in _event_series(make):
        straight = _feed(make(), points)
        detector, found = make(), []
        for i, point in enumerate(points):
            if i % 37 == 0:
                detector = pickle.loads(pickle.dumps(detector))  # made here, one line above
            found += detector.update(point)
        if found != straight:
            raise LawBroken(f"resumes from pickle: findings on {metric} differ after a pickle in the middle")


def check_awake_after_nonfinite(make: Factory) -> None:
    """What a detector finds in a curve it finds as well when NaN and infinities came long before."""
    for metric, values in _events(make):
        quiet = curves.noisy(400, seed=11)
        interrupted = [*quiet]
        for i, bad in enumerate((math.nan, math.inf, -math.inf, math.nan)):
            interrupted[200 + i] = bad
        plain = _onsets(_feed(make(), curves.points(metric, quiet + values)), after=600)
        after = _onsets(_feed(make(), curves.points(metric, interrupted + values)), after=600)
        if plain - after:
            raise LawBroken(
                f"awake after NaN: {sorted(plain)} found on {metric} without NaN before, {sorted(after)} with"
            )


def check_input_not_kept(make: Factory) -> None:
    """Points are neither changed nor held: a finding is not a window onto the detector's own state."""
    for metric, points in _event_series(make):
        detector, found = make(), []
        copies = []
        for point in points:
            before = tuple(point)
            for finding in detector.update(point):
                found.append(finding)
                copies.append(copy.deepcopy(finding))
            if repr(tuple(point)) != repr(before):
                raise LawBroken(f"input not kept: a point of {metric} was changed from {before} to {tuple(point)}")
        if found != copies:
            raise LawBroken(f"input not kept: a finding on {metric} changed after it was returned")


def check_one_incident_per_event(make: Factory) -> None:
    """One event has one key and few findings, and no two findings in a row say the same."""
    for metric, points in _event_series(make):
        found = _feed(make(), points)
        keys = {finding.key for finding in found}
        if len({(finding.kind, finding.metric) for finding in found}) < len(keys):
            raise LawBroken(f"one incident per event: one event of {metric} gave the keys {sorted(keys)}")
        for key in keys:
            of_key = [finding for finding in found if finding.key == key]
            if len(of_key) > MAX_FINDINGS_PER_EVENT:
                raise LawBroken(f"one incident per event: {len(of_key)} findings about {key}, expected news only")
            if len({(finding.kind, finding.onset_step, finding.step) for finding in of_key}) != 1:
                raise LawBroken(f"one incident per event: kind, onset or first sight of {key} changed")


def check_findings_are_well_formed(make: Factory) -> None:
    """Findings are of a declared kind, in order, and their evidence is JSON."""
    kinds, names = make().kinds, make().name
    for _, points in _event_series(make):
        detector = make()
        for point in points:
            for finding in detector.update(point):
                _check_finding(finding, point, kinds, names)


def check_silent_when_healthy(make: Factory) -> None:
    """Healthy curves give nothing: noise, heavy tails, warm-ups, drops, constants, integers, sparse steps."""
    for metric in _wanted(make):
        for name, values in curves.healthy():
            for every in (1, 10, 100):
                found = _feed(make(), curves.points(metric, values, every=every))
                if found:
                    raise LawBroken(
                        f"silent when healthy: {found[0].key} on the healthy curve {name!r} of {metric}, "
                        f"one point each {every} steps: {found[0].text}"
                    )


#: The law, in the order in which it is best read.
CHECKS: tuple[Callable[[Factory], None], ...] = (
    check_works_from_the_first_point,
    check_deterministic,
    check_resumes_from_pickle,
    check_bounded_memory,
    check_input_not_kept,
    check_awake_after_nonfinite,
    check_findings_are_well_formed,
    check_one_incident_per_event,
    check_silent_when_healthy,
)


def check_all(make: Factory) -> None:
    """Run every check.

    Raises:
        LawBroken: the first check that does not hold.
    """
    for check in CHECKS:
        check(make)


def _wanted(make: Factory) -> list[str]:
    detector = make()
    wanted = [metric for metric in curves.METRICS if detector.wants(metric)]
    if not wanted:
        raise LawBroken(f"{detector.name} wants none of {curves.METRICS}: add its metric to curves.METRICS")
    return wanted


def _events(make: Factory) -> Iterator[tuple[str, list[float]]]:
    """Give curves with one event each, for every metric that the detector wants."""
    for metric in _wanted(make):
        for values in curves.eventful():
            yield metric, values


def _event_series(make: Factory) -> Iterator[tuple[str, list[Point]]]:
    for metric, values in _events(make):
        yield metric, curves.points(metric, values)


def _feed(detector: Detector, points: list[Point]) -> list[Finding]:
    return [finding for point in points for finding in detector.update(point)]


def _onsets(found: list[Finding], after: int) -> set[int]:
    return {finding.onset_step for finding in found if finding.onset_step >= after}


def _check_finding(finding: Finding, point: Point, kinds: tuple[str, ...], name: str) -> None:
    facts = asdict(finding)
    try:
        size = len(json.dumps(facts, allow_nan=False))
    except (TypeError, ValueError) as error:
        raise LawBroken(f"well formed: {finding.key} is not JSON: {error}") from error
    wrong = {
        "a kind that is not declared": finding.kind not in kinds,
        "another detector's name": finding.detector != name,
        "no title or text": not finding.title or not finding.text,
        "onset <= first seen <= now broken": not finding.onset_step <= finding.step <= finding.now_step,
        "a step from the future": finding.now_step > point.step,
        f"more than {MAX_FINDING_BYTES} bytes": size > MAX_FINDING_BYTES,
        "recovered without a recovered_step": finding.state == "recovered" and finding.recovered_step is None,
    }
    broken = [what for what, is_so in wrong.items() if is_so]
    if broken:
        raise LawBroken(f"well formed: {finding.key} at step {point.step} has {', '.join(broken)}")
