"""Scores the detectors, and the rules that frameworks ship, on labelled logs: precision, recall, F1, delay, kinds.

    python benchmarks/laboratory/detection.py FOLDER       labelled logs (labels.json) or logs of the laboratory
    python benchmarks/laboratory/detection.py              the recorded laboratory runs in tests/traces (or --recorded)
    python benchmarks/laboratory/detection.py --train --seeds 104   trains each fault with each seed, scores that
    python benchmarks/laboratory/detection.py --report 3            the same with seeds that follow from the newest rule
    python benchmarks/laboratory/detection.py --made 2              logs made of seeds drawn anew, or of --seeds
    python benchmarks/laboratory/detection.py --cross FOLDER...     one repository left out at a time (cross.py)

Ours goes through ``stabilityplugins.backtest``, the code that judges live runs; an alarm is an incident of severity
warning or above. The rules in use are those of ``detection_rules.py``. How it is scored: ``detection_score.py``.
"""

from __future__ import annotations

import argparse
import random
import statistics
import sys
import tempfile
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).resolve().parents[2] / "examples" / "laboratory"))

from detection_rules import RULES
from detection_score import LOSS_KINDS, Alarm, Score, interval, judge, total_of
from family_report import advice_line, advice_task, families
from labelled_logs import Labelled, logs_of, read_trace
from made_logs import made, written
from rule_pass import LOUD

from seeds import CHECK_SEEDS, TUNING_SEEDS, newest_rule, report_seeds

REPOSITORY = Path(__file__).resolve().parents[2]
RECORDED = REPOSITORY / "tests" / "traces"

__all__ = ["TUNING_SEEDS", "Judged", "judge", "main", "ours", "read_trace"]


@dataclass
class Judged:
    """One detector's scores by cluster of logs."""

    name: str
    scores: dict[str, list[Score]] = field(default_factory=dict)

    @property
    def total(self) -> Score:
        """Return the sum."""
        return total_of([score for scores in self.scores.values() for score in scores])


def ours(path: Path) -> list[Alarm]:
    """Return what people would have seen of one log; what is no alarm is marked as quiet."""
    from stabilitybackend.runs.backtest import backtest
    from stabilityplugins.backtest.sources import read_files

    log = next(iter(read_files([path])))
    return [
        Alarm(i.step, i.kind, i.recovery, i.dataset, i.rank, i.severity in LOUD)
        for i in backtest(log.frames(), run_id=path.name).incidents
    ]


def advice(folder: Path, processes: int = 1) -> str:
    """Return how many of the advised checkpoints of the logs in a folder are clean."""
    with ProcessPoolExecutor(processes) as pool:
        return advice_line(list(pool.map(advice_task, logs_of(folder))))


def _judge_all(task: tuple[Path, Labelled]) -> tuple[str, dict[str, Score]]:
    path, log = task
    scores = {"ours": judge(log, ours(path))}
    for rule in RULES:
        scores[rule.name] = judge(log, [Alarm(step) for step in rule.alarms(log.rows)])
    return log.cluster, scores


def score_logs(logs: Iterable[tuple[Path, Labelled]], processes: int = 1) -> list[Judged]:
    """Return the scores of ours and of every rule, in the order of the tables."""
    judged = {name: Judged(name) for name in ("ours", *(rule.name for rule in RULES))}
    runner: Callable[..., Any] = map
    pool = ProcessPoolExecutor(processes) if processes > 1 else None
    if pool is not None:
        runner = pool.map
    for cluster, scores in runner(_judge_all, logs):
        for name, score in scores.items():
            judged[name].scores.setdefault(cluster, []).append(score)
    if pool is not None:
        pool.shutdown()
    return list(judged.values())


def train(seeds: Sequence[int], folder: Path) -> None:
    """Train every fault of the laboratory with each seed into ``folder``, except for what is there already."""
    from gallery import FAULTS
    from run import experiment, write

    for seed in seeds:
        for name in FAULTS:
            path = folder / f"{name}-{seed}.jsonl"
            if path.with_suffix(".truth.json").exists():
                continue
            rows, truth, _ = experiment(name, seed)
            write(path, rows, truth)
            print(f"trained {name} with seed {seed}", file=sys.stderr, flush=True)


def table(judged: Sequence[Judged]) -> str:
    """Return the main table as markdown."""
    head = (
        "| detector | F1, loss kinds (95 %) | F1, all kinds | precision | recall | false alarms per 10,000 points "
        "| quiet events violated | delay: median, p95 (points) |\n|---|---|---|---|---|---|---|---|"
    )
    lines = [head]
    for one in judged:
        score = one.total
        low, high = interval(one.scores, lambda score: score.f1(LOSS_KINDS))
        delays = sorted(delay for kind in score.delays.values() for delay in kind)
        late = (
            f"{statistics.median(delays):.0f}, {delays[int(0.95 * (len(delays) - 1))]:.0f}" if delays else "none found"
        )
        lines.append(
            f"| {one.name} | **{score.f1(LOSS_KINDS):.2f}** ({low:.2f} to {high:.2f}) | {score.f1():.2f} | "
            f"{score.precision():.2f} | {score.recall():.2f} | {score.false_per_10k():.2f} | "
            f"{len(score.quiet_violations)} | {late} |"
        )
    return "\n".join(lines)


def _p95(ordered: Sequence[float]) -> float:
    return ordered[int(0.95 * (len(ordered) - 1))]


def by_kind(judged: Sequence[Judged]) -> str:
    """Return found of all by kind as markdown, with the delay of the first detector."""
    kinds = sorted({kind for one in judged for kind in one.total.events})
    names = " | ".join(one.name for one in judged)
    lines = [f"| kind | {names} | delay of {judged[0].name}, median (points) |", "|---" * (len(judged) + 2) + "|"]
    for kind in kinds:
        cells = [f"{one.total.found.get(kind, 0)} of {one.total.events.get(kind, 0)}" for one in judged]
        delays = judged[0].total.delays.get(kind)
        cells.append(f"{statistics.median(delays):.0f}" if delays else "")
        lines.append(f"| `{kind}` | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def main() -> None:
    """Parse the command line, score, print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("folder", type=Path, nargs="?", help="labelled logs")
    parser.add_argument(
        "--recorded", action="store_true", help="the recorded traces of tests/traces, as without a folder"
    )
    parser.add_argument("--train", action="store_true", help="train the laboratory afresh with --seeds")
    parser.add_argument("--seeds", type=int, nargs="+", default=[], help="101 and above: the others are for tuning")
    parser.add_argument("--report", type=int, metavar="N", help="train N seeds that follow from the newest rule")
    parser.add_argument("--made", type=int, metavar="N", help="logs made of N seeds, drawn anew without --seeds")
    parser.add_argument("--cross", type=Path, nargs="+", metavar="FOLDER", help="leave out one repository at a time")
    parser.add_argument(
        "--grid", type=Path, nargs="?", const=True, help="with --cross: numbers to choose (none: sensitivities)"
    )
    parser.add_argument("--keep", type=Path, help="with --train: the folder that the logs are kept in")
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--markdown", action="store_true", help="tables only, for a page")
    parser.add_argument("--verbose", action="store_true", help="name each miss, false alarm and wrong word of ours")
    arguments = parser.parse_args()
    if arguments.cross:
        import cross

        grid = cross.sensitivities() if arguments.grid is True else {}
        grid = grid if arguments.grid in (None, True) else cross.read_grid(arguments.grid)
        cross.report(arguments.cross, grid, arguments.processes)
        return
    if arguments.made:
        _made(arguments.seeds or [random.SystemRandom().randrange(10**6) for _ in range(arguments.made)], arguments)
        return
    if arguments.report:
        arguments.train, arguments.seeds = True, report_seeds(arguments.report)
        print(f"seeds {arguments.seeds} follow from {newest_rule()}, the newest commit that touched a rule\n")
    known = [seed for seed in arguments.seeds if seed < CHECK_SEEDS.stop]
    if known:
        print(f"warning: {known} are seeds that people have looked at: figures on them are no claim", file=sys.stderr)
    with tempfile.TemporaryDirectory() as scratch:
        folder = arguments.keep or Path(scratch)
        if arguments.train:
            if not arguments.seeds:
                parser.error("--train was given without --seeds, expected at least one, from 101")
            train(arguments.seeds, folder)
        else:
            folder = arguments.folder or RECORDED
        judged = score_logs(logs_of(folder), arguments.processes)
        _print(judged, arguments)
        if not (folder / "labels.json").exists():
            print(f"{advice(folder, arguments.processes)}\n\n{families(judged)}")


def _made(seeds: Sequence[int], arguments: argparse.Namespace) -> None:
    """Score logs made of seeds."""
    with tempfile.TemporaryDirectory() as scratch:
        judged = score_logs(written(list(made(seeds)), Path(scratch)), arguments.processes)
    print(f"logs made of the seeds {' '.join(map(str, seeds))}\n")
    _print(judged, arguments)


def _print(judged: Sequence[Judged], arguments: argparse.Namespace) -> None:
    mine = judged[0].total
    print(table(judged))
    print()
    print(by_kind(judged))
    print()
    print(
        f"Ours names rightly, of the events that it found: kind {mine.share('kind')} (of the effect, where the cause "
        f"has a kind of its own: {mine.share('effect')}), recovery {mine.share('recovery')}, data set "
        f"{mine.share('dataset')}, that no one data set is to blame {mine.share('none to blame')}, rank "
        f"{mine.share('rank')}. {mine.points:,} points, {sum(mine.events.values())} events, {mine.alarms_in_events} "
        f"alarms on {sum(mine.found.values())} found ones; {mine.told_quietly} of the missed ones are told as info."
    )
    if arguments.verbose and not arguments.markdown:
        for title, lines in (("missed", mine.missed), ("false", mine.false_alarms), ("wrong", mine.wrong)):
            print("\n".join([f"{title}:", *(f"  {line}" for line in lines)]))


if __name__ == "__main__":
    main()
