"""Conformance checks of detectors for plug-in authors: ``check_all(MyDetector)``.

Each check takes a factory (a class, or any function that gives a fresh detector) and raises ``LawBroken`` with given,
expected and actual values. The curves are generated from seeds, so that a failure is reproducible. A detector whose
event is more than a curve that leaves its level provides one in ``story()``; the checks run on that as well.
"""

from __future__ import annotations

import copy
import json
import math
import traceback
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict
from itertools import groupby
from typing import NoReturn

from stabilitybackend.base.stateful import fields_of
from stabilitybackend.judging.detectors.engine import synthetic
from stabilitybackend.judging.detectors.engine.bank import DetectorBank
from stabilitybackend.judging.detectors.engine.base import (
    SEVERITIES,
    Detector,
    DetectorSettingError,
    Finding,
    Mark,
    Point,
    Row,
)
from stabilitybackend.schema.kinds import check_named

__all__ = ["CHECKS", "LawBroken", "Series", "check_all", "given", "where"]

Factory = Callable[[], Detector]
Series = Sequence[Row | Mark]


class LawBroken(AssertionError):
    """A detector breaks the law. The text names the check, expected and actual values."""


class DetectorRaised(LawBroken):
    """A detector raises: further checks are meaningless."""


class _Bank(DetectorBank):
    """A bank without replacement of failed detectors."""

    def _failed(self, detector: Detector, error: Exception) -> NoReturn:
        raise DetectorRaised(f"no exception: {detector.name} raised {where(detector, error)}") from error


def where(detector: Detector, error: Exception) -> str:
    """Return an exception as text, with the last line of the detector's own file in its traceback."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if frame.filename == type(detector).update.__code__.co_filename]
    return f"{type(error).__name__}: {error} ({(own or frames)[-1].filename}, line {(own or frames)[-1].lineno})"


def checked_bank(make: Factory) -> DetectorBank:
    """Return a bank of one detector, which raises ``DetectorRaised`` where the detector raises."""
    return _Bank({make().name: make}, in_order=not make().every_rank)


def given(bank: DetectorBank, series: Iterable[Row | Mark]) -> list[Finding]:
    """Feed rows, one by one, and marks; return the findings. Raises Raised, with the step."""
    found = []
    for item in series:
        try:
            found += bank.mark(item) if isinstance(item, Mark) else bank.feed_row(item)
        except DetectorRaised as error:
            raise DetectorRaised(f"{error} at step {item.step}") from error.__cause__
    return found


def fed(make: Factory, series: Iterable[Row | Mark]) -> list[Finding]:
    """Return the findings of a fresh detector in a run."""
    return given(checked_bank(make), series)


def fed_at_once(make: Factory, series: Series) -> list[Finding]:
    """Return the same as ``fed``; consecutive rows of the same metrics are fed as a batch."""
    bank, found = checked_bank(make), list[Finding]()
    for (is_row, rank, names), some in groupby(series, key=_alike):
        items = list(some)
        if not is_row:
            found += given(bank, items)
            continue
        rows = [item for item in items if isinstance(item, Row)]
        columns = {name: [row.values[name] for row in rows] for name in names if bank.wants(name)}
        steps, times = [row.step for row in rows], [row.time for row in rows]
        found += [finding for _, finding in bank.feed_rows(names, steps, times, columns, rank)]
    return found


def _alike(item: Row | Mark) -> tuple[bool, int, tuple[str, ...]]:
    return (True, item.rank, tuple(item.values)) if isinstance(item, Row) else (False, 0, ())


#: Points before the second measurement of a detector's memory.
MANY_POINTS = 20_000
#: Largest state of a detector that watches one metric, bytes. One is kept per run, and 32 times in snapshots.
MAX_STATE_BYTES = 32 * 1024
#: Findings about one event over 1,000 points that are still news.
MAX_FINDINGS_PER_EVENT = 24
#: Notes (severity info) on a healthy curve of 1,500 points that are still worth reading.
MAX_INFOS = 10
#: Points after which an event must be over or its new level accepted.
SETTLED_POINTS = 3_000
#: Largest finding as JSON, bytes.
MAX_FINDING_BYTES = 16 * 1024


def check_finds_its_story(make: Factory) -> None:
    """A detector finds the one event of its story; without a story it finds something in the generated curves."""
    story = make().story()
    keys = {finding.key for finding in fed(make, story)}
    if story and len(keys) != 1:
        raise LawBroken(f"finds its story: {sorted(keys)} found in {make().name}.story(), expected one event")
    if not story and not any(fed(make, series) for _, series in _events(make)):
        raise LawBroken(
            f"finds its story: {make().name} finds nothing in our curves of {', '.join(_wanted(make))}, expected a "
            "story() with one event that it finds"
        )


def check_deterministic(make: Factory) -> None:
    """The same points give the same findings: from two fresh detectors, and from one that is fed batches."""
    for name, series in _events(make):
        found = fed(make, series)
        if found != fed(make, series):
            raise LawBroken(f"deterministic: two detectors of one kind differ on the same points of {name}")
        if found != fed_at_once(make, series):
            raise LawBroken(f"deterministic: findings on {name} differ where rows come at once: see take_quiet")


def check_bounded_memory(make: Factory) -> None:
    """The state after 20,000 points is small, and no larger than after 2,000."""
    for metric in _wanted(make):
        bank = checked_bank(make)
        values = synthetic.noisy(MANY_POINTS, seed=3)
        given(bank, synthetic.rows(metric, values[:2_000]))
        early = _size(bank)
        given(bank, synthetic.rows(metric, values[2_000:], start=2_000))
        late = _size(bank)
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
                    for row in synthetic.rows(metric, [first, *more]):
                        detector.update(Point(row.step, metric, row.values[metric], row.time))
                except Exception as error:
                    raise LawBroken(
                        f"works from the first point: {metric} = {[first, *more]} raised {where(detector, error)}"
                    ) from error


def check_survives_bad_input(make: Factory) -> None:
    """No bad input makes a detector raise, grow, or report more than one event."""
    for metric in _wanted(make):
        for name, series in synthetic.nasty(metric):
            bank = checked_bank(make)
            keys = {finding.key for finding in given(bank, series) if finding.severity != "info"}
            if len(keys) > 1:
                raise LawBroken(f"survives bad input: {sorted(keys)[:4]} on {metric} ({name}), expected one at most")
            if _size(bank) > MAX_STATE_BYTES:
                raise LawBroken(f"survives bad input: {_size(bank)} bytes of state on {metric} ({name})")


def check_resumes_from_its_saved_state(make: Factory) -> None:
    """A detector with a restored state continues as if uninterrupted."""
    for name, series in _events(make):
        bank, found, undeclared = checked_bank(make), [], _undeclared(checked_bank(make))
        for i, item in enumerate(series):
            if i % 37 == 0:
                saved = {part.name: part for part in bank.saved("bank")}
                another = checked_bank(make)
                unfit = another.restore("bank", saved)
                changed = sorted(
                    attribute for attribute, value in _undeclared(bank) if (attribute, value) not in undeclared
                )
                if unfit or changed:
                    raise LawBroken(
                        f"resumes from its saved state: {[*unfit.values(), *changed]} on {name}, expected that each "
                        "attribute that it changes is annotated in its class, with its type and what it begins with"
                    )
                bank = another
            found += given(bank, [item])
        if found != fed(make, series):
            raise LawBroken(f"resumes from its saved state: findings on {name} differ after it was saved in the middle")


def check_rewinds_to_the_fork(make: Factory) -> None:
    """After a rollback to any step a detector continues as if it had never seen the points after it."""
    for name, series in _events(make):
        if make().every_rank or any(isinstance(item, Mark) for item in series):
            continue
        rows = [item for item in series if isinstance(item, Row)]
        expected = fed(make, rows)
        for cut in (1, len(rows) // 3, 2 * len(rows) // 3):
            bank = checked_bank(make)
            given(bank, rows[:cut])
            dead = [row._replace(values={m: 7.0 * abs(v) + i for m, v in row.values.items()}) for i, row in
                    enumerate(rows[cut : cut + 90])]  # fmt: skip
            given(bank, dead)
            after = bank.rewind(rows[cut - 1].step)
            again = [row for row in rows if row.step > after]
            known = {finding.key for finding in expected if finding.now_step <= after}
            found = given(bank, again)
            wanted = [finding for finding in expected if finding.now_step > after]
            if found != wanted:
                raise LawBroken(
                    f"rewinds to the fork: {len(found)} findings on {name} after going back to step "
                    f"{rows[cut - 1].step}, expected {len(wanted)} (events known before: {sorted(known)})"
                )


def check_awake_after_nonfinite(make: Factory) -> None:
    """Findings in a curve are the same when NaN and infinities occurred long before."""
    for metric in _wanted(make):
        quiet = synthetic.noisy(400, seed=11)
        interrupted = [*quiet]
        for i, bad in enumerate((math.nan, math.inf, -math.inf, math.nan)):
            interrupted[200 + i] = bad
        for values in synthetic.eventful():
            plain = _onsets(fed(make, synthetic.rows(metric, quiet + values)), after=600)
            after = _onsets(fed(make, synthetic.rows(metric, interrupted + values)), after=600)
            if plain - after:
                raise LawBroken(
                    f"awake after NaN: {sorted(plain)} found on {metric} without NaN before, {sorted(after)} with"
                )


def check_input_not_kept(make: Factory) -> None:
    """A finding is independent of the detector's state: it does not change afterwards."""
    for name, series in _events(make):
        bank, found, copies = checked_bank(make), [], []
        for item in series:
            for finding in given(bank, [item]):
                found.append(finding)
                copies.append(copy.deepcopy(finding))
        if found != copies:
            raise LawBroken(f"input not kept: a finding on {name} changed after it was returned")


def check_one_incident_per_event(make: Factory) -> None:
    """One event has one key and few findings, its onset and first sight stay, its severity never falls. Its kind may
    change: a spike that rises on is a divergence."""
    for name, series in _events(make):
        found = fed(make, series)
        keys = {finding.key for finding in found if finding.severity != "info"}
        last = {finding.key: (finding.kind, finding.metric) for finding in found if finding.severity != "info"}
        if len({*last.values()}) < len(keys):
            raise LawBroken(f"one incident per event: one event of {name} gave the keys {sorted(keys)}")
        for key in {finding.key for finding in found}:
            of_key = [finding for finding in found if finding.key == key]
            if len(of_key) > MAX_FINDINGS_PER_EVENT:
                raise LawBroken(f"one incident per event: {len(of_key)} findings about {key}, expected news only")
            if len({(finding.onset_step, finding.step) for finding in of_key}) != 1:
                raise LawBroken(f"one incident per event: onset or first sight of {key} changed")
            order = [SEVERITIES.index(finding.severity) for finding in of_key]
            if order != sorted(order):
                raise LawBroken(f"one incident per event: the severity of {key} fell; it is the worst that there was")


def check_findings_are_well_formed(make: Factory) -> None:
    """Findings are of a declared kind that the table of kinds has, in order, and their evidence is JSON."""
    kinds, names = make().kinds, make().name
    try:
        check_named(kinds, type(make()).__name__)
    except ValueError as error:
        raise LawBroken(f"well formed: {error}") from error
    for _, series in _events(make):
        bank = checked_bank(make)
        for item in series:
            for finding in given(bank, [item]):
                _check_finding(finding, item.step, kinds, names)


def check_gives_events_back(make: Factory) -> None:
    """Some thousand points after a curve settled at any level, none of its events is claimed any more."""
    for metric in _wanted(make):
        for values in synthetic.eventful():
            level = next((v for v in reversed(values) if math.isfinite(v)), 2.5)
            bank = checked_bank(make)
            given(bank, synthetic.rows(metric, values + synthetic.noisy(SETTLED_POINTS, seed=9, level=level)))
            held = bank.context.open_claims()
            if held:
                raise LawBroken(
                    f"gives events back: {sorted(held)} still claimed {SETTLED_POINTS} points after {metric} settled "
                    f"at {level:.3g}: other detectors stay mute"
                )


def check_silent_when_healthy(make: Factory) -> None:
    """Healthy curves raise no alarm: noise, heavy tails, warm-ups, drops, constants, integers, sparse steps."""
    for metric in _wanted(make):
        for i, (name, values) in enumerate(synthetic.healthy()):
            every = (1, 10, 100)[i % 3]
            found = fed(make, synthetic.rows(metric, values, every=every))
            alarms = [finding for finding in found if finding.severity != "info"]
            if alarms:
                raise LawBroken(
                    f"silent when healthy: {alarms[0].key} on the healthy curve {name!r} of {metric}, "
                    f"one point each {every} steps: {alarms[0].text}"
                )
            if len({finding.key for finding in found}) > MAX_INFOS:
                raise LawBroken(
                    f"silent when healthy: {len({f.key for f in found})} notes on the healthy curve {name!r} of "
                    f"{metric}, expected at most {MAX_INFOS}"
                )


def check_settings(make: Factory) -> None:
    """A detector has a sensitivity; 0 opens nothing, and settings that are unknown or out of range are refused."""
    detector = make()
    if next(iter(detector.parameters), None) != "sensitivity":
        raise LawBroken(f"settings: {detector.name} has {list(detector.parameters)}, expected sensitivity first")
    for name, parameter in detector.parameters.items():
        for wrong in ({name: parameter.high + 1.0}, {name: math.nan}, {name: "high"}, {name + "_": parameter.default}):
            try:
                detector.configure(wrong)  # type: ignore[arg-type]
            except DetectorSettingError:
                continue
            raise LawBroken(f"settings: {detector.name} took {wrong}, expected a SettingError")
    for name, series in _events(make):
        bank = checked_bank(make)
        bank.configure({detector.name: {"sensitivity": 0.0}})
        found = given(bank, series)
        if found:
            raise LawBroken(f"settings: {found[0].key} on {name} with a sensitivity of 0")


#: The checks, in reading order.
CHECKS: tuple[Callable[[Factory], None], ...] = (
    check_finds_its_story,
    check_works_from_the_first_point,
    check_survives_bad_input,
    check_deterministic,
    check_resumes_from_its_saved_state,
    check_rewinds_to_the_fork,
    check_bounded_memory,
    check_input_not_kept,
    check_awake_after_nonfinite,
    check_findings_are_well_formed,
    check_one_incident_per_event,
    check_gives_events_back,
    check_silent_when_healthy,
    check_settings,
)


def check_all(make: Factory) -> None:
    """Run every check.

    Raises:
        LawBroken: names each check that does not hold, one a line; of a detector that raises only the first.
    """
    if not isinstance(make(), Detector):
        raise LawBroken(f"{make} makes no detector: it must inherit from {Detector.__name__} of {Detector.__module__}")
    broken: dict[str, None] = {}  # in their order, each once
    for check in CHECKS:
        try:
            check(make)
        except DetectorRaised as error:
            raise LawBroken("\n".join([*broken, str(error)])) from error
        except LawBroken as error:
            broken[str(error)] = None
    if broken:
        raise LawBroken("\n".join(broken))


def _wanted(make: Factory) -> list[str]:
    detector = make()
    wanted = [metric for metric in synthetic.METRICS if detector.wants(metric)]
    if not wanted and not detector.story():
        raise LawBroken(f"{detector.name} wants none of {synthetic.METRICS}: give it a story() with its own metrics")
    return wanted


def _events(make: Factory) -> Iterator[tuple[str, Series]]:
    """Yield runs with one event each: the detector's story, and curves of every wanted metric."""
    story = make().story()
    if story:
        yield "its story", story
    for metric in _wanted(make):
        for values in synthetic.eventful():
            yield metric, synthetic.rows(metric, values)


def _size(bank: DetectorBank) -> int:
    return sum(map(len, bank.state().values()))


def _undeclared(bank: DetectorBank) -> list[tuple[str, str]]:
    """Return the attributes outside the saved state, each with its effect."""
    [detector] = bank.detectors.values()
    kept = fields_of(type(detector)).keys() | {"context", "settings", "past"}
    return [(name, repr(value)) for name, value in vars(detector).items() if name not in kept]


def _onsets(found: list[Finding], after: int) -> set[int]:
    return {finding.onset_step for finding in found if finding.onset_step >= after}


def _check_finding(finding: Finding, step: int, kinds: tuple[str, ...], name: str) -> None:
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
        "a step from the future": finding.now_step > step,
        f"more than {MAX_FINDING_BYTES} bytes": size > MAX_FINDING_BYTES,
        "recovered without a recovered_step": finding.state == "recovered" and finding.recovered_step is None,
    }
    broken = [what for what, is_so in wrong.items() if is_so]
    if broken:
        raise LawBroken(f"well formed: {finding.key} at step {step} has {', '.join(broken)}")
