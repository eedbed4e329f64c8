"""Parts of a report on fresh seeds: whether advised checkpoints are clean, and each fault beside the rules in use."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from advice_score import Advised, advice_of, is_clean
from detection_score import Score, total_of
from labelled_logs import Labelled

if TYPE_CHECKING:
    from detection import Judged

__all__ = ["advice_line", "advice_task", "families"]


def advice_task(task: tuple[Path, Labelled]) -> tuple[Labelled, list[Advised]]:
    """Return the rollbacks that were advised in one log."""
    path, log = task
    return log, advice_of(path)


def advice_line(advised: Sequence[tuple[Labelled, list[Advised]]]) -> str:
    """Return in how many incidents every advised checkpoint was clean, and where one was not."""
    every = [(log, one) for log, several in advised for one in several]
    sick = [(log, one) for log, one in every if not is_clean(log, one)]
    lines = [f"Advised checkpoint clean: {len(every) - len(sick)} of {len(every)} incidents with a rollback advised."]
    lines += [
        f"  {log.name}: {one.kind} at {one.onset_step} advised {', '.join(str(to) for _, to in one.steps)}, fault from "
        f"{min(event.first for event in log.events)}"
        for log, one in sick
    ]
    return "\n".join(lines)


def families(judged: Sequence[Judged]) -> str:
    """Return for each fault F1 of every detector, and false alarms where the family has no events."""
    names = " | ".join(one.name for one in judged)
    lines = [f"| family | events | {names} |", "|---" * (len(judged) + 2) + "|"]
    for cluster in sorted(judged[0].scores):
        totals = [total_of(one.scores[cluster]) for one in judged]
        events = sum(totals[0].events.values())
        lines.append(f"| `{cluster}` | {events} | {' | '.join(_cell(one, events) for one in totals)} |")
    return "\n".join(lines)


def _cell(score: Score, events: int) -> str:
    false = len(score.false_alarms)
    if not events:
        return f"{false} false" if false else "silent"
    return f"{score.f1():.2f}" + (f", {false} false" if false else "")
