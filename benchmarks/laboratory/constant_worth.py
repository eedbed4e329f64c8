"""What each constant of the detectors is worth: what changes when it is 0.7 or 1.4 times as large, or is left out.

    python benchmarks/laboratory/constant_worth.py FOLDER [FOLDER...] [--only detectors/curve/flat.py ...]
    python benchmarks/laboratory/constant_worth.py FOLDER [FOLDER...] --only detectors/curve/flat.py --without
    python benchmarks/laboratory/constant_worth.py FOLDER --set detectors/curve/engine.py:MOST_OF_PROOF=1.0

The folders hold labelled logs; the recorded traces of ``tests/traces`` are judged as well. One constant is changed at a
time; integers by at least one, the numbers of a tuple all at once. Prints a table: in how many logs an alarm changes
(step, kind, recovery, data set), in how many anything changes that people read (onset, peak, severity), and F1 and
false alarms then. ``--without`` makes each 0 and a billion instead: at one of the two a threshold says nothing, or
what is within it always counts. Where neither leaves a rule out, ``--set`` gives the values that do, several constants
of one rule at once. What was judged is kept (``rule_pass.py``), so that the program can be stopped and started again.
"""

from __future__ import annotations

import argparse
import ast
import gzip
import itertools
import math
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from chosen_on import detector_constants
from detection import RECORDED
from detection_score import Alarm, Score, judge, recall_by_cluster, total_of
from labelled_logs import Labelled, logs_of
from rule_pass import RulePass, Variant

__all__ = ["main", "scaled", "shortened"]

Logs = Sequence[tuple[Path, Labelled]]
Answers = Sequence[Sequence[Alarm]]

#: How many times as large a constant is made.
FACTORS = (0.7, 1.4)
#: What a constant is without its rule.
WITHOUT = ("0", "10**9")
#: Numbers that bound memory or hold a law, not what is found.
NOT_RULES = ("detectors/engine/",)


def scaled(value: str, factor: float) -> str:
    """Return a number, or a tuple of numbers, times a factor; an integer stays one and moves by at least one.

    Args:
        value: as it stands in the source.
    """
    return ast.unparse(_scaled(ast.parse(value, mode="eval").body, factor))


def _scaled(node: ast.expr, factor: float) -> ast.expr:
    if isinstance(node, ast.Tuple):
        return ast.Tuple([_scaled(one, factor) for one in node.elts], ast.Load())
    number = eval(compile(ast.Expression(node), "constant", "eval"), {"__builtins__": {}})  # of our own source
    if isinstance(number, int):
        moved = round(number * factor)
        step = 1 if factor > 1 else -1
        return ast.Constant(moved if moved != number else number + step)
    return ast.Constant(number * factor)


def shortened(logs: Sequence[tuple[Path, Labelled]], rows: int, folder: Path) -> list[tuple[Path, Labelled]]:
    """Return the beginnings of logs, as files in ``folder``: a pass over whole ones takes four times as long.

    Args:
        rows: of each log, at most.
    """
    cut = []
    for number, (path, log) in enumerate(logs):
        with gzip.open(path, "rb") if path.suffix == ".gz" else path.open("rb") as lines:
            kept = list(itertools.islice(lines, rows))
        file = folder / f"{number}.jsonl"
        file.write_bytes(b"".join(kept))
        last = max(row["step"] for row in log.rows[:rows])
        events = [event for event in log.events if event.onset <= last]
        cut.append((file, replace(log, rows=log.rows[:rows], events=events)))
    return cut


def _alarms(said: Sequence[Alarm]) -> list[tuple[object, ...]]:
    return [(one.step, one.kind, one.recovery, one.dataset, one.rank, one.loud) for one in said]


def _scores(logs: Sequence[tuple[Path, Labelled]], answers: Sequence[Sequence[Alarm]]) -> dict[str, list[Score]]:
    scores: dict[str, list[Score]] = {}
    for (_, log), said in zip(logs, answers, strict=True):
        scores.setdefault(log.cluster, []).append(judge(log, said))
    return scores


def _figures(scores: dict[str, list[Score]]) -> tuple[float, float, int]:
    total = total_of([one for several in scores.values() for one in several])
    return total.f1(), recall_by_cluster(scores), len(total.false_alarms)


def _cells(logs: Logs, usual: Answers, now: Answers) -> list[str]:
    """Return the cells of one variant: logs in which alarms change, in which anything does, and figures by sort."""
    if not now:
        return ["breaks", "breaks", "", ""]
    alarms = sum(_alarms(a) != _alarms(b) for a, b in zip(usual, now, strict=True))
    anything = sum(a != b for a, b in zip(usual, now, strict=True))
    return [str(alarms), str(anything), *(_change(logs, usual, now, exact) for exact in (False, True))]


def _change(logs: Logs, usual: Answers, now: Answers, exact: bool) -> str:
    own = [at for at, (_, log) in enumerate(logs) if log.exact == exact]
    if not own:
        return ""
    before, after = (_figures(_scores([logs[at] for at in own], [one[at] for at in own])) for one in (usual, now))
    return f"{after[0] - before[0]:+.3f}, {after[1] - before[1]:+.3f}, {after[2] - before[2]:+d}"


def _sets(given: Sequence[str]) -> list[Variant]:
    """Return the variants of ``--set``: NAME=VALUE, several with commas between them.

    Raises:
        SystemExit: one has no value.
    """
    variants = []
    for text in given:
        pairs = [one.partition("=") for one in text.split(",")]
        if not all(value for _, _, value in pairs):
            raise SystemExit(f"--set {text}: expected NAME=VALUE, such as detectors/curve/engine.py:MOST_OF_PROOF=1.0")
        full = {name if name.startswith("detection/") else f"detectors/{name}": value for name, _, value in pairs}
        variants.append(full)
    return variants


def main() -> None:
    """Parse the command line, judge, print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("folders", type=Path, nargs="+")
    parser.add_argument("--only", nargs="+", default=["detectors/"], help="files, by how their path begins")
    parser.add_argument("--without", action="store_true", help="each constant 0 and a billion, not 0.7 and 1.4 times")
    parser.add_argument("--set", nargs="+", default=[], metavar="NAME=VALUE", help="these values, and no others")
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--rows", type=int, default=0, help="only so many rows of each log; 0 for all")
    parser.add_argument("--seconds", type=float, default=math.inf, help="stop then, with 2; what was judged is kept")
    arguments = parser.parse_args()
    until = time.monotonic() + arguments.seconds
    logs = [one for folder in [*arguments.folders, RECORDED] for one in logs_of(folder)]
    scratch = tempfile.TemporaryDirectory()
    if arguments.rows:
        logs = shortened(logs, arguments.rows, Path(scratch.name))
    rules = RulePass([path for path, _ in logs], arguments.processes)
    values = detector_constants(("detectors", "detection"))
    names = {
        name: value
        for name, value in values.items()
        if name.startswith(tuple(arguments.only)) and not name.startswith(NOT_RULES)
    }
    variants = _sets(arguments.set)
    if not variants:
        variants = [
            {name: one}
            for name, value in names.items()
            for one in (WITHOUT if arguments.without else [scaled(value, factor) for factor in FACTORS])
        ]
    (usual,) = rules.judge([{}])
    f1, recall, false = _figures(_scores(logs, usual))
    print(
        f"{len(logs)} logs. As the rules stand: F1 {f1:.3f}, recall by cluster {recall:.3f}, {false} false alarms.\n\n"
        "| constant | value | judged as | alarms change in | anything | public logs: F1, recall by cluster, false "
        "alarms | laboratory |\n|---|---|---|---|---|---|---|"
    )
    for variant, now in zip(variants, rules.judge(variants, only_readers=True), strict=True):
        if time.monotonic() > until:
            sys.exit(2)
        own = ", ".join(f"`{name.removeprefix('detectors/')}`" for name in variant)
        before = ", ".join(values[name] for name in variant)
        cells = [own, before, ", ".join(variant.values()), *_cells(logs, usual, now)]
        print(f"| {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
