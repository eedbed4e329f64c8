"""Scores small learned models of single points against the rules, one repository left out at a time.

    python benchmarks/laboratory/learned.py FOLDER [FOLDER...] [--laboratory TUNED] [--fresh UNSEEN]

FOLDER holds labelled public logs. A model is fitted to all other repositories, to events planted into their healthy
logs (``planted.py``) and to the laboratory's tuning runs; its threshold is the one that does best on the others. It
alarms wherever its figure is above, and at the first value that is not finite. Notes on single odd points are those of
the rules for all. Scored on the logs left out, on events planted there with another seed, and on laboratory runs that
neither has seen. Where in doubt the model is favoured: the threshold comes from figures of models that did not see
those logs, but were fitted to the one left out.
"""

from __future__ import annotations

import argparse
import gzip
import json
import math
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from detection_score import LOSS_KINDS, Alarm, Score, judge, recall_by_cluster, total_of
from labelled_logs import Labelled, logs_of
from learned_inputs import inputs_of, targets_of
from learned_models import MODELS, Model
from planted import plant
from rule_pass import RulePass

__all__ = ["main"]

#: Seeds of events that models are fitted to, and of those that they are scored on.
PLANTED_FIT, PLANTED_SCORED = (1, 2), 1_000
#: Points without an event that a log lends to a fit at most, and the weight of an event in such points.
QUIET_POINTS, EVENT_WEIGHT = 3_000, 10.0
#: Logs that the rules judge at once; what they reported is kept for each such part.
LOGS_A_PASS = 8
#: Thresholds that are tried, in points above them per 10,000 points of healthy logs.
CANDIDATES = (0.2, 0.5, 1, 2, 4, 8, 15, 30, 60, 120, 250)


@dataclass
class Seen:
    """A log, what a model sees of it, and what the rules reported.

    Args:
        log: with its labels. rules: alarms and notes. group: ``real``, ``planted`` or ``laboratory``.
    """

    log: Labelled
    rules: list[Alarm]
    group: str
    inputs: np.ndarray = field(init=False)
    targets: np.ndarray = field(init=False)

    def __post_init__(self) -> None:
        self.inputs, self.targets = inputs_of(self.log), targets_of(self.log)

    def sample(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return (inputs, targets, weights) of all points within events and of some others."""
        dice = np.random.default_rng(len(self.log.rows))
        inside, quiet = np.flatnonzero(self.targets == 1), np.flatnonzero(self.targets == 0)
        quiet = quiet if len(quiet) <= QUIET_POINTS else dice.choice(quiet, QUIET_POINTS, replace=False)
        events = sum(event.alarm for event in self.log.events)
        weights = [np.full(len(inside), EVENT_WEIGHT * events / max(1, len(inside))), np.ones(len(quiet))]
        rows = np.concatenate([inside, quiet])
        return self.inputs[rows], self.targets[rows].astype(float), np.concatenate(weights)

    def judged(self, figures: np.ndarray, threshold: float, and_rules: bool) -> Score:
        """Return the score of a model's figures above a threshold, with the notes of the rules or all they report."""
        alarms = [Alarm(self.log.rows[at]["step"]) for at in np.flatnonzero(figures > threshold)]
        loss = [row.get("loss") for row in self.log.rows]
        broken = [at for at, value in enumerate(loss) if isinstance(value, float) and not math.isfinite(value)]
        first = [at for at in broken if at - 1 not in broken]
        alarms += [Alarm(self.log.rows[at]["step"], "nonfinite") for at in first]
        return judge(self.log, alarms + [one for one in self.rules if and_rules or not one.loud])


def main() -> None:
    """Parse the command line, fit, score, print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("folders", type=Path, nargs="+", help="labelled public logs")
    parser.add_argument("--laboratory", type=Path, help="runs of tuning seeds, which the models are fitted to as well")
    parser.add_argument("--fresh", type=Path, help="laboratory runs that nobody has seen")
    parser.add_argument(
        "--most-false", type=float, default=math.inf, help="per 10,000 points, which thresholds may give"
    )
    parser.add_argument("--keep", type=Path, help="folder for figures of fitted models, to stop and start again")
    arguments = parser.parse_args()
    real = _seen([one for folder in arguments.folders for one in logs_of(folder)], "real")
    healthy = [one.log for one in real if not one.log.events]
    fitted_to = [Seen(plant(log, seed), [], "planted") for log in healthy for seed in PLANTED_FIT]
    tuned = _seen(list(logs_of(arguments.laboratory)), "laboratory") if arguments.laboratory else []
    fresh = _seen(list(logs_of(arguments.fresh)), "laboratory") if arguments.fresh else []
    with tempfile.TemporaryDirectory() as scratch:
        planted = _seen([_written(plant(log, PLANTED_SCORED), Path(scratch)) for log in healthy], "planted")
    scored = [*real, *planted]
    clusters = sorted({one.log.cluster for one in real})
    print("| judge | numbers | real logs, left out | planted, left out | fresh laboratory |\n|---|---|---|---|---|")
    rules = [judge(one.log, one.rules) for one in [*scored, *fresh]]
    print(_row("rules, with all real logs in sight", "", [*scored, *fresh], rules))
    for name, fit in MODELS.items():
        figures: dict[str, np.ndarray] = {}
        for cluster in clusters:
            there = [one for one in scored if one.log.cluster == cluster]
            file = arguments.keep and arguments.keep / f"{name.replace(' ', '-')}-{cluster}.npz"
            if file and file.exists():
                figures |= dict(np.load(file))
                continue
            model = _fitted(fit, [one for one in [*real, *fitted_to] if one.log.cluster != cluster] + tuned)
            fresh_figures = {one.log.name: model.score(one.inputs) for one in there}
            figures |= fresh_figures
            if file:
                file.parent.mkdir(parents=True, exist_ok=True)
                np.savez(file, **fresh_figures)
        model = _fitted(fit, [*real, *fitted_to, *tuned])
        figures |= {one.log.name: model.score(one.inputs) for one in fresh}
        for and_rules in (False, True):
            title = f"the rules or {name}" if and_rules else name
            answers = _with_thresholds(real, scored, fresh, figures, and_rules, arguments.most_false)
            print(_row(title, f"{model.numbers:,}", [*scored, *fresh], answers), flush=True)


def _with_thresholds(
    real: Sequence[Seen],
    scored: Sequence[Seen],
    fresh: Sequence[Seen],
    figures: Mapping[str, np.ndarray],
    both: bool,
    most_false: float,
) -> list[Score]:
    """Return the score of each log above the threshold that does best on the logs of all other clusters."""
    thresholds = _thresholds(real, figures)
    tried = {at: [one.judged(figures[one.log.name], at, both) for one in scored] for at in thresholds}

    def best(left_out: str) -> float:
        return max(tried, key=lambda at: _worth(scored, tried[at], left_out, most_false))

    chosen = {one.log.cluster: best(one.log.cluster) for one in scored}
    answers = [tried[chosen[one.log.cluster]][place] for place, one in enumerate(scored)]
    return answers + [one.judged(figures[one.log.name], best(""), both) for one in fresh]


def _seen(logs: Sequence[tuple[Path, Labelled]], group: str) -> list[Seen]:
    paths = [path for path, _ in logs]
    parts = [RulePass(paths[at : at + LOGS_A_PASS]).judge([{}]) for at in range(0, len(paths), LOGS_A_PASS)]
    rules = [said for part in parts for (every,) in [list(part)] for said in every]
    return [Seen(log, said, group) for (_, log), said in zip(logs, rules, strict=True)]


def _written(log: Labelled, folder: Path) -> tuple[Path, Labelled]:
    """Write a planted log for the rules."""
    path = folder / f"{log.name}.jsonl.gz"
    text = "".join(json.dumps(row) + "\n" for row in log.rows)
    path.write_bytes(gzip.compress(text.encode(), 1, mtime=0))  # the same bytes each time: what was judged is kept
    return path, log


def _fitted(fit: object, logs: Sequence[Seen]) -> Model:
    inputs, targets, weights = (np.concatenate(parts) for parts in zip(*(one.sample() for one in logs), strict=True))
    return fit(inputs, targets, weights)  # type: ignore[operator]


def _thresholds(real: Sequence[Seen], figures: Mapping[str, np.ndarray]) -> list[float]:
    """Return the thresholds that are tried, from the figures of points without an event."""
    quiet = np.concatenate([figures[one.log.name][one.targets == 0] for one in real])
    return [float(np.quantile(quiet, 1 - rate / 1e4)) for rate in CANDIDATES]


def _by_cluster(logs: Sequence[Seen], scores: Sequence[Score]) -> dict[str, list[Score]]:
    clusters: dict[str, list[Score]] = {}
    for one, score in zip(logs, scores, strict=True):
        clusters.setdefault(one.log.cluster, []).append(score)
    return clusters


def _worth(logs: Sequence[Seen], scores: Sequence[Score], left_out: str, most_false: float) -> float:
    """Return what a threshold is chosen by, as in ``cross.py``: F1 and recall over clusters, each half; less what the
    false alarms per 10,000 points are above a limit.
    """
    others = {name: several for name, several in _by_cluster(logs, scores).items() if name != left_out}
    total = total_of([score for several in others.values() for score in several])
    over = max(0.0, total.false_per_10k() - most_false)
    return (total.f1() + recall_by_cluster(others)) / 2 - over


def _row(name: str, numbers: str, logs: Sequence[Seen], scores: Sequence[Score]) -> str:
    cells = []
    for group in ("real", "planted", "laboratory"):
        mine = [(one, score) for one, score in zip(logs, scores, strict=True) if one.group == group]
        if not mine:
            cells.append("")
            continue
        total = total_of([score for _, score in mine])
        kinds = LOSS_KINDS if group == "laboratory" else None
        even = recall_by_cluster(_by_cluster([one for one, _ in mine], [score for _, score in mine]))
        cells.append(
            f"F1 {total.f1(kinds):.2f}, recall {total.recall(kinds):.2f} (by cluster {even:.2f}), "
            f"{total.false_per_10k():.2f} false per 10k"
        )
    return f"| {name} | {numbers} | {' | '.join(cells)} |"


if __name__ == "__main__":
    main()
