"""Which seeds are for tuning, for checking and for reporting: the one place that says it.

Who changes a rule may look at runs of TUNING_SEEDS. Runs of CHECK_SEEDS are recorded in the repository and judged by
its tests, so everybody has seen them. A figure is reported on seeds that follow from the newest commit that touched a
rule: nobody can have looked at them before the rule was as it is.
"""

from __future__ import annotations

import hashlib
import subprocess
from pathlib import Path

__all__ = ["CHECK_SEEDS", "RULES", "TUNING_SEEDS", "newest_rule", "report_seeds"]

#: Seeds whose logs the detectors' thresholds may be looked up on.
TUNING_SEEDS = range(1, 101)
#: Seeds of recorded traces and of figures that were published once.
CHECK_SEEDS = range(101, 1_001)
#: Where rules live; a change there draws other report seeds.
RULES = tuple(f"backend/stabilitybackend/judging/{room}" for room in ("detectors", "detection", "incidents"))
_REPOSITORY = Path(__file__).resolve().parents[2]
#: Report seeds lie in so many, above CHECK_SEEDS.
_SPAN = 10**8


def report_seeds(count: int, commit: str | None = None) -> list[int]:
    """Return the seeds of a report.

    Args:
        count: how many; the first ones are the same for each count.
        commit: hash of the newest change of a rule, None to ask git.

    Raises:
        RuntimeError: git does not know it, or a rule was changed since and is not committed.
    """
    commit = commit or newest_rule()
    digests = [hashlib.sha256(f"{commit} {number}".encode()).hexdigest() for number in range(count)]
    return [CHECK_SEEDS.stop + int(digest, 16) % _SPAN for digest in digests]


def newest_rule() -> str:
    """Return the hash of the newest commit that touched a rule.

    Raises:
        RuntimeError: git does not know it, or a rule was changed since and is not committed.
    """
    if changed := _git("status", "--porcelain", "--", *RULES):
        raise RuntimeError(f"rules are changed and not committed, so that seeds can't follow them: {changed}")
    commit = _git("log", "-1", "--format=%H", "--", *RULES)
    if not commit:
        raise RuntimeError("no commit touched a rule, expected a clone with its history")
    return commit


def _git(*command: str) -> str:
    done = subprocess.run(["git", *command], cwd=_REPOSITORY, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"git {command[0]} failed: {done.stderr.strip()}")
    return done.stdout.strip()
