"""What each constant of the detectors is worth: F1 and false alarms when it is half and twice as large, or left out.

    python benchmarks/laboratory/constant_worth.py [--only judging/detectors/curve/engine.py ...] [--seeds 1 2 3]
    python benchmarks/laboratory/constant_worth.py --only judging/detectors/curve/detector.py --without
    python benchmarks/laboratory/constant_worth.py --set judging/detectors/curve/engine.py:MOST_OF_PROOF=1.0

The logs are made of seeds (``made_logs.py``), which are printed; ``--folders`` adds labelled ones. One constant is
changed at a time; integers by at least one, the numbers of a tuple all at once. ``--without`` makes each 0 and a
billion instead: at one of the two a threshold says nothing, or what is within it always counts. Where neither leaves a
rule out, ``--set`` gives the values that do, several constants of one rule at once. Only logs that execute a line which
reads the constant are judged, and what was judged is kept (``rule_pass.py``): the program can be stopped and started.
"""

from __future__ import annotations

import argparse
import ast
import tempfile
from collections.abc import Sequence
from pathlib import Path

from chosen_on import constant_texts
from detection_score import Alarm, Score, judge, total_of
from labelled_logs import Labelled, logs_of
from made_logs import made, written
from rule_pass import RulePass, Variant

__all__ = ["main", "scaled"]

Logs = Sequence[tuple[Path, Labelled]]
Answers = Sequence[Sequence[Alarm]]

#: How many times as large a constant is made.
FACTORS = (0.5, 2.0)
#: What a constant is without its rule.
WITHOUT = ("0", "10**9")
#: Numbers that bound memory or hold a law, not what is found.
NOT_RULES = ("judging/detectors/engine/",)
#: Characters of what a constant is.
TEXT_CHARS = 70


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


def _is_free(name: str, value: str) -> bool:
    """Return whether a constant is one of a rule and derived of no other one."""
    return not name.startswith(NOT_RULES) and not any(isinstance(one, ast.Name) for one in ast.walk(ast.parse(value)))


def _sets(given: Sequence[str]) -> list[Variant]:
    """Return the variants of ``--set``: NAME=VALUE, several with commas between them.

    Raises:
        SystemExit: one has no value.
    """
    variants = []
    for text in given:
        pairs = [one.partition("=") for one in text.split(",")]
        if not all(value for _, _, value in pairs):
            raise SystemExit(
                f"--set {text}: expected NAME=VALUE, as judging/detectors/curve/engine.py:MOST_OF_PROOF=1.0"
            )
        variants.append({name: value for name, _, value in pairs})
    return variants


def _total(logs: Logs, answers: Answers) -> Score:
    return total_of([judge(log, said) for (_, log), said in zip(logs, answers, strict=True)])


def _cell(logs: Logs, usual: Answers, now: Answers) -> str:
    """Return what changes: F1, false alarms, and in how many logs anything that people read; "." for nothing at all."""
    if not now:
        return "breaks"
    changed = sum(a != b for a, b in zip(usual, now, strict=True))
    if not changed:
        return "."
    before, after = _total(logs, usual), _total(logs, now)
    return f"{after.f1() - before.f1():+.3f}, {len(after.false_alarms) - len(before.false_alarms):+d} ({changed})"


def main() -> None:
    """Parse the command line, judge, print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--only", nargs="+", default=["judging/detectors/"], help="files, by how their path begins")
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--folders", type=Path, nargs="+", default=[], help="labelled logs beside those made")
    parser.add_argument("--without", action="store_true", help="each constant 0 and a billion, not half and twice")
    parser.add_argument("--set", nargs="+", default=[], metavar="NAME=VALUE", help="these values, and no others")
    parser.add_argument("--processes", type=int, default=1)
    arguments = parser.parse_args()
    scratch = Path(tempfile.gettempdir()) / "stabilityboard-made-logs"  # kept passes know their logs by content
    scratch.mkdir(exist_ok=True)
    logs = written(list(made(arguments.seeds)), scratch)
    logs += [one for folder in arguments.folders for one in logs_of(folder)]
    rules = RulePass([path for path, _ in logs], arguments.processes)
    texts = constant_texts(("judging/detectors", "judging/detection"))
    names = [one for one, (value, _) in texts.items() if one.startswith(tuple(arguments.only)) and _is_free(one, value)]
    variants = _sets(arguments.set) or [
        {name: one}
        for name in names
        for one in (WITHOUT if arguments.without else [scaled(texts[name][0], factor) for factor in FACTORS])
    ]
    (usual,) = rules.judge([{}])
    total = _total(logs, usual)
    print(
        f"{len(logs)} logs made of the seeds {' '.join(map(str, arguments.seeds))}, {total.points:,} points, "
        f"{sum(total.events.values())} events. As the rules stand: F1 {total.f1():.3f}, {len(total.false_alarms)} "
        "false alarms. Cells: change of F1, of false alarms (logs in which anything changes); a dot: in none.\n"
    )
    heads = [next(iter(one.values())) for one in variants] if arguments.set else ["x 0.5", "x 2"]
    heads = list(WITHOUT) if arguments.without else heads
    print(f"| constant | value | what it is | {' | '.join(heads)} |\n|{'---|' * (3 + len(heads))}")
    row: list[str] = []
    each = len(variants) if arguments.set else 2
    for variant, now in zip(variants, rules.judge(variants, only_readers=True), strict=True):
        row.append(_cell(logs, usual, now))
        if len(row) == each:
            own = ", ".join(f"`{one.removeprefix('judging/detectors/')}`" for one in variant)
            value, text = texts[next(iter(variant))]
            print(f"| {own} | {value} | {text[:TEXT_CHARS]} | {' | '.join(row)} |", flush=True)
            row = []


if __name__ == "__main__":
    main()
