"""Scores what is said of speed, ranks and mixture: false alarms in healthy jobs, slow-downs and drifts found.

    python benchmarks/laboratory/silence.py [--seeds 1000 1001 ...] [--only throughput|straggler|data_mix_drift]

Seeds below 1,000 are for tuning. An alarm is a finding of severity warning or above; notes (``info``) are counted
beside them. ``pace.py`` has the jobs.
"""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Iterable, Sequence

from pace import HEALTHY_MIX, HEALTHY_PACE, HEALTHY_RANKS, SLOW_DOWNS, mixture, pace, ranks

from stabilitybackend.detectors.engine.bank import DetectorBank
from stabilitybackend.detectors.engine.base import Finding, Mark, Row
from stabilitybackend.detectors.registry import DETECTORS

#: A fault is found when it is reported with an onset from so many steps before to so many after its first one.
NEAR_STEPS = 64
#: Habits that slow-downs are planted in: those that are no slow-downs themselves.
PLANTED_IN = ("steady", "noisy", "checkpoints", "evaluations", "lengths")


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


class Table:
    """Alarms and notes a kind of healthy job, with the steps that they were in."""

    def __init__(self, title: str) -> None:
        self.title, self.steps, self.said = title, Counter[str](), dict[str, Counter[str]]()

    def add(self, kind: str, findings: Sequence[Finding], steps: int) -> None:
        self.steps[kind] += steps
        self.said.setdefault(kind, Counter()).update(loudest(findings))

    def show(self) -> None:
        total, steps = sum(self.said.values(), Counter()), sum(self.steps.values())
        print(f"\n{self.title}: {1e4 * total['alarm'] / steps:.2f} alarms, {1e4 * total['note'] / steps:.2f} notes "
              f"per 10k steps of {steps:,}")  # fmt: skip
        for kind, one in self.said.items():
            print(f"  {kind:14} {one['alarm']:4} alarms {one['note']:4} notes in {self.steps[kind]:,} steps")


def throughput(seeds: Sequence[int]) -> None:
    table = Table("throughput")
    for habit in HEALTHY_PACE:
        for seed in seeds:
            rows, _ = pace(habit, seed)
            table.add(habit, found("throughput", rows), len(rows))
    table.show()
    for plan in SLOW_DOWNS:
        recall = Counter[str]()
        for habit in PLANTED_IN:
            for seed in seeds[: max(1, len(seeds) // 2)]:
                rows, at = pace(habit, seed, plan)
                assert at is not None
                recall[hit(found("throughput", rows), at)] += 1
        print(f"  +{plan.slower:.0%} for {plan.lasts_s:g} s: {dict(recall)}")


def straggler(seeds: Sequence[int]) -> None:
    table = Table("straggler")
    for habit in HEALTHY_RANKS:
        for seed in seeds[: max(1, len(seeds) // 3)]:
            rows = ranks(habit, seed)
            table.add(habit, found("straggler", rows, every_rank=True), len(rows) // 8)
    table.show()
    for slower in (0.1, 0.2, 0.5):
        recall = Counter[str]()
        for habit in ("equal", "noisy", "heavy_tailed"):
            for seed in seeds[: max(1, len(seeds) // 5)]:
                rows = ranks(habit, seed, slower)
                recall[hit(found("straggler", rows, every_rank=True), 500)] += 1
        print(f"  a rank +{slower:.0%} for the rest: {dict(recall)}")


def data_mix_drift(seeds: Sequence[int]) -> None:
    table = Table("data_mix_drift")
    for habit in HEALTHY_MIX:
        for seed in seeds:
            rows, _ = mixture(habit, seed)
            table.add(habit, found("data_mix_drift", rows), len(rows))
    table.show()
    for fault in ("slide", "after_resume", "jump"):
        recall = Counter[str]()
        for habit in ("constant", "resumes"):
            for seed in seeds:
                items, at = mixture(habit, seed, fault)
                assert at is not None
                recall[hit(found("data_mix_drift", items), at)] += 1
        print(f"  {fault}: {dict(recall)}")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seeds", type=int, nargs="+", default=list(range(1_000, 1_010)))
    parser.add_argument("--only", choices=[one.__name__ for one in SCORES])
    arguments = parser.parse_args()
    for score in SCORES:
        if arguments.only in (None, score.__name__):
            score(arguments.seeds)


SCORES = (throughput, straggler, data_mix_drift)

if __name__ == "__main__":
    main()
