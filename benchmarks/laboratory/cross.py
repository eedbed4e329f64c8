"""Leaves one repository out: what is tuned is chosen on the logs of all others, then scored on the one left out.

    python benchmarks/laboratory/detection.py --cross FOLDER [FOLDER...]
    python benchmarks/laboratory/detection.py --cross FOLDER --grid            the sensitivity of each detector
    python benchmarks/laboratory/detection.py --cross FOLDER --grid GRID.json  {"spike.sensitivity": [0.8, 1, 1.25]}

A grid names constants and settings as ``rule_pass.py`` does, with their candidates. For each cluster of logs (the name
up to the first dash) the candidates are tried one number after the other, and the best on all other clusters is kept.
Numbers that no program chooses are the same for every cluster: their left-out score is the plain one by construction.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from chosen_on import chosen_on
from detection_score import Score, interval, judge, recall_by_cluster, total_of
from labelled_logs import Labelled, logs_of
from rule_pass import RulePass, Variant

__all__ = ["CrossScore", "cross", "report", "sensitivities"]

#: Candidates of each detector's sensitivity, where no grid is given. 1 is the default.
_SENSITIVITIES = ("1.0", "0.7", "1.4")
#: Kinds that do not show in the loss are not labelled in public logs: their detectors are no candidates.
_NOT_LABELLED = ("straggler",)

#: Cluster -> scores of its logs.
Scores = Mapping[str, list[Score]]


class CrossScore:
    """Scores of variants on labelled logs, by cluster; each variant is judged once.

    Args:
        folders: of labelled logs.
        processes: variants that are judged at once.
    """

    def __init__(self, folders: Sequence[Path], processes: int = 1) -> None:
        self.logs: list[tuple[Path, Labelled]] = [one for folder in folders for one in logs_of(folder)]
        self.clusters = sorted({log.cluster for _, log in self.logs})
        self._rules = RulePass([path for path, _ in self.logs], processes)
        self._known: dict[tuple[tuple[str, str], ...], Scores] = {}

    def of(self, variants: Sequence[Variant]) -> list[Scores]:
        """Return the scores of each variant."""
        keys = [tuple(sorted(variant.items())) for variant in variants]
        new = [dict(key) for key in dict.fromkeys(keys) if key not in self._known]
        for variant, answers in zip(new, self._rules.judge(new), strict=True):
            scores: dict[str, list[Score]] = {}
            for (_, log), said in zip(self.logs, answers, strict=True):
                scores.setdefault(log.cluster, []).append(judge(log, said))
            self._known[tuple(sorted(variant.items()))] = scores
        return [self._known[key] for key in keys]


def worth(scores: Scores) -> float:
    """Return what candidates are chosen by: F1 over all events and recall over clusters, each half."""
    total = total_of([one for several in scores.values() for one in several])
    return (total.f1() + recall_by_cluster(dict(scores))) / 2


def cross(scores: CrossScore, grid: Mapping[str, Sequence[str]]) -> dict[str, dict[str, str]]:
    """Return for each cluster the values that the logs of all other clusters choose.

    Args:
        grid: number -> its candidates, that of today first: it is kept where others are no better.
    """
    chosen: dict[str, dict[str, str]] = {cluster: {} for cluster in scores.clusters}
    for number, candidates in grid.items():
        tried = [{**own, number: value} for own in chosen.values() for value in candidates]
        scores.of(tried)  # all at once, so that they are judged side by side
        for left_out, own in chosen.items():
            others = [{**own, number: value} for value in candidates]
            values = [
                worth({cluster: several for cluster, several in one.items() if cluster != left_out})
                for one in scores.of(others)
            ]
            own[number] = candidates[values.index(max(values))]
    return chosen


def sensitivities() -> dict[str, Sequence[str]]:
    """Return the grid that fits every version: how sensitive each detector is."""
    from stabilitybackend.judging.detectors.registry import DETECTORS

    return {f"{name}.sensitivity": _SENSITIVITIES for name in DETECTORS if name not in _NOT_LABELLED}


def read_grid(path: Path) -> dict[str, Sequence[str]]:
    """Return a grid of a file: an object of lists of numbers."""
    return {name: [str(value) for value in values] for name, values in json.loads(path.read_text()).items()}


def report(folders: Sequence[Path], grid: Mapping[str, Sequence[str]], processes: int) -> None:
    """Score with one cluster left out at a time, and print it."""
    scores = CrossScore(folders, processes)
    plain = scores.of([{}])[0]
    print(_by_cluster(scores, plain))
    print()
    print(_line("as the rules stand", plain))
    print()
    print(chosen_on([folder.name for folder in folders]))
    if not grid:
        print("No number was chosen by this program: the left-out score is the plain one by construction.")
        return
    chosen = cross(scores, grid)
    left_out = {cluster: scores.of([own])[0][cluster] for cluster, own in chosen.items()}
    names = list(grid)
    print()
    print(f"| left out | {' | '.join(names)} | F1 there |")
    print("|---" * (len(names) + 2) + "|")
    for cluster, own in chosen.items():
        cells = [own[name] if own[name] != grid[name][0] else "." for name in names]
        there = total_of(left_out[cluster])
        score = f"{there.f1():.2f}" if there.events else "no events"
        print(f"| {cluster} | {' | '.join(cells)} | {score} |")
    print()
    print(_line("left out, numbers of the grid chosen on the others", left_out))


def _by_cluster(scores: CrossScore, plain: Scores) -> str:
    lines = ["| cluster | logs | points | events | found | recall | false alarms | per 10k | F1 |", "|---" * 9 + "|"]
    for cluster in scores.clusters:
        one = total_of(plain[cluster])
        events, found = sum(one.events.values()), sum(one.found.values())
        marks = (f"{one.recall():.2f}", f"{one.f1():.2f}") if events else ("", "")
        lines.append(
            f"| {cluster} | {len(plain[cluster])} | {one.points:,} | {events} | {found} | {marks[0]} | "
            f"{len(one.false_alarms)} | {one.false_per_10k():.2f} | {marks[1]} |"
        )
    return "\n".join(lines)


def _line(what: str, scores: Scores) -> str:
    """Return the totals with their bootstrap intervals over clusters."""
    several = dict(scores)
    total = total_of([one for each in several.values() for one in each])

    def between(value: Any) -> str:
        low, high = interval(several, value)
        return f"({low:.2f} to {high:.2f})"

    even = sorted(recall for one in several.values() if (recall := total_of(one).recall()) or total_of(one).events)
    return (
        f"{what}: F1 {total.f1():.3f} {between(lambda one: one.f1())}, recall {total.recall():.2f}, by cluster "
        f"{recall_by_cluster(several):.3f} ({len(even)} clusters with events, worst {even[0]:.2f}), precision "
        f"{total.precision():.2f}, {total.false_per_10k():.2f} {between(lambda one: one.false_per_10k())} false alarms "
        f"per 10,000 points; {sum(total.found.values())} of {sum(total.events.values())} events in {total.points:,} "
        f"points. Intervals: 95 %, clusters drawn with replacement."
    )


if __name__ == "__main__":
    sys.exit("run benchmarks/laboratory/detection.py --cross FOLDER")
