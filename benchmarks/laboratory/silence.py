"""Scores what is said of speed, ranks and mixture: false alarms in healthy jobs, slow-downs and drifts found.

    python benchmarks/laboratory/silence.py [--seeds 1000 1001 ...] [--only throughput|straggler|data_mix_drift]

Seeds below 1,000 are for tuning. An alarm is a finding of severity warning or above; notes (``info``) are counted
beside them, and the 95 % interval of their rate: of few seeds it is wider than a goal of 0.2. ``pace.py`` has the jobs.
"""

from __future__ import annotations

import argparse
import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pace import HEALTHY_MIX, HEALTHY_PACE, HEALTHY_RANKS, RANKS, SLOW_DOWNS, mixture, pace, ranks

from stabilitybackend.judging.detectors.engine.bank import DetectorBank
from stabilitybackend.judging.detectors.engine.base import Finding, Mark, Row
from stabilitybackend.judging.detectors.registry import DETECTORS

#: A fault is found when it is reported with an onset from so many steps before to so many after its first one.
NEAR_STEPS = 64


def found(name: str, items: Iterable[Row | Mark], every_rank: bool = False) -> list[Finding]:
    """Return what one detector reports of a job."""
    bank = DetectorBank({name: DETECTORS[name]}, in_order=not every_rank)
    said: list[Finding] = []
    for item in items:
        said += bank.mark(item) if isinstance(item, Mark) else bank.feed_row(item)
    assert not bank.failures, bank.failures
    return said


def loudest(findings: Iterable[Finding]) -> Counter[str]:
    """Return how many events had an alarm, and how many only notes."""
    loud: dict[str, bool] = {}
    for finding in findings:
        loud[finding.key] = loud.get(finding.key, False) or finding.severity != "info"
    return Counter("alarm" if one else "note" for one in loud.values())


def hit(findings: Iterable[Finding], at: int) -> str:
    near = [one for one in findings if at - NEAR_STEPS <= one.onset_step <= at + 4 * NEAR_STEPS]
    return "alarm" if any(one.severity != "info" for one in near) else "note" if near else "none"


def interval(count: int) -> tuple[float, float]:
    """Return between what the expected count lies by 95 %, by Byar's approximation of the Poisson interval."""
    low, high = (
        (n * (1 - 1 / (9 * n) + sigmas / (3 * math.sqrt(n))) ** 3 if n else 0.0)
        for n, sigmas in ((count, -1.96), (count + 1, 1.96))
    )
    return max(0.0, low), high


class Table:
    """Alarms and notes a kind of healthy job, with the steps that they were in."""

    def __init__(self, title: str) -> None:
        self.title, self.steps, self.said = title, Counter[str](), dict[str, Counter[str]]()

    def add(self, kind: str, findings: Sequence[Finding], steps: int) -> None:
        self.steps[kind] += steps
        self.said.setdefault(kind, Counter()).update(loudest(findings))

    def show(self) -> None:
        total, steps = sum(self.said.values(), Counter()), sum(self.steps.values())
        low, high = (1e4 * end / steps for end in interval(total["alarm"]))
        print(f"\n{self.title}: {1e4 * total['alarm'] / steps:.2f} alarms ({low:.2f} to {high:.2f}), "
              f"{1e4 * total['note'] / steps:.2f} notes per 10k steps of {steps:,}")  # fmt: skip
        for kind, one in self.said.items():
            print(f"  {kind:14} {one['alarm']:4} alarms {one['note']:4} notes in {self.steps[kind]:,} steps")


@dataclass(frozen=True)
class Subject:
    """A detector and the jobs that it is scored on.

    Args:
        detector: its name.
        job: returns what a job logs, and the step at which its fault begins; by habit, seed and fault.
        nothing: what ``job`` takes for no fault.
        healthy, planted: habits of jobs without a fault, and of those that faults are planted in.
        faults: by the words that they are printed with.
        ranks: rows a step.
    """

    detector: str
    job: Callable[[str, int, Any], tuple[Sequence[Row | Mark], int | None]]
    nothing: Any
    healthy: Iterable[str]
    planted: Sequence[str]
    faults: Mapping[str, Any]
    ranks: int = 1

    def found(self, items: Iterable[Row | Mark]) -> list[Finding]:
        """Return what the detector reports of a job."""
        return found(self.detector, items, every_rank=self.ranks > 1)


def score(subject: Subject, seeds: Sequence[int]) -> None:
    """Print the alarms in healthy jobs, and which faults were found."""
    table = Table(subject.detector)
    for habit in subject.healthy:
        for seed in seeds:
            items, _ = subject.job(habit, seed, subject.nothing)
            table.add(habit, subject.found(items), len(items) // subject.ranks)
    table.show()
    for words, fault in subject.faults.items():
        recall = Counter[str]()
        for habit in subject.planted:
            for seed in seeds:
                items, at = subject.job(habit, seed, fault)
                assert at is not None
                recall[hit(subject.found(items), at)] += 1
        print(f"  {words}: {dict(recall)}")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seeds", type=int, nargs="+", default=list(range(1_000, 1_010)))
    parser.add_argument("--only", choices=[one.detector for one in SUBJECTS])
    arguments = parser.parse_args()
    for subject in SUBJECTS:
        if arguments.only in (None, subject.detector):
            score(subject, arguments.seeds)


SUBJECTS = (
    Subject(
        "throughput", pace, None, HEALTHY_PACE, ("steady", "noisy", "checkpoints", "evaluations", "lengths"),
        {f"+{plan.slower:.0%} for {plan.lasts_s:g} s": plan for plan in SLOW_DOWNS},
    ),
    Subject(
        "straggler", ranks, 0.0, HEALTHY_RANKS, ("equal", "noisy", "heavy_tailed", "neighbours", "turns"),
        {f"a rank +{slower:.0%} for the rest": slower for slower in (0.1, 0.2, 0.5)}, ranks=RANKS,
    ),
    Subject(
        "data_mix_drift", mixture, "", HEALTHY_MIX, ("constant", "resumes"),
        {fault: fault for fault in ("slide", "after_resume", "jump")},
    ),
)  # fmt: skip

if __name__ == "__main__":
    main()
