"""Parts of a resume that its processes report: random numbers, loader, environment."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from stabilitybackend.judging.resumes.overlap import ForkMeasures
from stabilitybackend.judging.resumes.reported import RandomStates
from stabilitybackend.schema.resumes import Changed, Known, PartSeen, PositionCheck, ResumeVerdict, Went

__all__ = ["Reports", "changes_text", "environment_of", "loader_of", "rng_of"]

#: Entries of the environment named in a sentence; the API has them all.
NAMED = 6
#: Named ranks.
RANKS = 4
#: Position of the loader -> state of the part.
_WENT: Mapping[Went, Known] = {
    "goes_on": "equal", "began_again": "different", "skipped": "different", "repeats": "different",
    "elsewhere": "different", "not_seen": "not_seen",
}  # fmt: skip
_WENT_WORDS: Mapping[Went, str] = {
    "goes_on": "its position goes on",
    "began_again": "its position began again",
    "skipped": "its position skips ahead",
    "repeats": "its position lies behind",
    "elsewhere": "its position is another",
}


@dataclass(frozen=True, slots=True)
class Reports:
    """Reports of both sides of a fork.

    Attributes:
        changes: of the environment, None without reports of one side. same_process: it did not end in between.
        random: None where no rank reported its random states at the checkpoint and at restoring it.
        position: None without reports of the loader.
    """

    changes: Sequence[Changed] | None
    same_process: bool
    random: RandomStates | None
    position: PositionCheck | None


def environment_of(reports: Reports) -> PartSeen:
    """Return the state of the environment."""
    if reports.same_process:
        return PartSeen("environment", "equal", "the same process")
    if reports.changes is None:
        return PartSeen("environment", "not_seen", "not reported on both sides: the client is older, or did not train")
    if not reports.changes:
        return PartSeen("environment", "equal", "versions, devices, settings and commit are the same")
    return PartSeen("environment", "different", changes_text(reports.changes))


def changes_text(changes: Sequence[Changed]) -> str:
    """Return the differences in one line."""
    named = "; ".join(f"{one.name} {_short(one.before)} → {_short(one.since)}" for one in changes[:NAMED])
    return named + (f"; {len(changes) - NAMED} more" if len(changes) > NAMED else "")


def _short(value: str) -> str:
    return value[:12] if len(value) == 40 and value.isalnum() else value


def rng_of(reports: Reports) -> PartSeen:
    """Return the state of random numbers, as ranks reported it."""
    random = reports.random
    if random is None:
        return PartSeen("rng", "not_seen", "no states reported with this checkpoint; else bit-equal losses show it")
    at = f"of the checkpoint of step {random.step} on {random.ranks} {'rank' if random.ranks == 1 else 'ranks'}"
    idle = f"; {_listed(random.idle)} differs, but nothing drew from it" if random.idle else ""
    if random.differing:
        differing = "; ".join(f"{name} on {_ranks(ranks)}" for name, ranks in sorted(random.differing.items()))
        return PartSeen("rng", "different", f"not the state {at}: {differing}")
    if not random.equal:
        return PartSeen("rng", "equal", f"nothing draws from {_listed(random.idle)}")
    return PartSeen("rng", "equal", f"{_listed(random.equal)}: the state {at}{idle}")


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names)


def _ranks(ranks: Sequence[int]) -> str:
    shown = ", ".join(map(str, ranks[:RANKS]))
    more = f" and {len(ranks) - RANKS} more" if len(ranks) > RANKS else ""
    return f"rank{'' if len(ranks) == 1 else 's'} {shown}{more}"


def loader_of(seen: ForkMeasures | None, verdict: ResumeVerdict, position: PositionCheck | None) -> PartSeen:
    """Return the state of the loader, by its batches, else by its own position."""
    by_batches = _by_batches(seen, verdict)
    if position is None or position.went == "not_seen":
        return by_batches
    if by_batches.known == "not_seen":
        return PartSeen("loader", _WENT[position.went], position.why, position.ordered)
    why = f"{by_batches.why}; {_WENT_WORDS[position.went]}"
    if position.went == "goes_on" and verdict == "other_order":
        why += ": another shuffle"
    return PartSeen("loader", by_batches.known, why, by_batches.ordered)


def _by_batches(seen: ForkMeasures | None, verdict: ResumeVerdict) -> PartSeen:
    if seen is None:
        return PartSeen("loader", "not_seen", "nothing was logged since")
    if verdict in ("identical", "same_data"):
        why = "the same batches at the same steps"
        if seen.ids is not None and seen.ids.same:
            why = f"{seen.ids.same} of {seen.ids.points} batch ids are at the step at which they were"
        return PartSeen("loader", "equal", why)
    if verdict in ("repeated", "skipped"):
        why = f"the batches of {'earlier' if verdict == 'repeated' else 'later'} steps came"
        return PartSeen("loader", "different", why, verdict == "skipped" and seen.skip is not None)
    if verdict in ("other_order", "other_data"):
        ordered = seen.skip is not None or seen.declared.get("seed") is not None
        return PartSeen("loader", "different", "other batches came at the same steps", ordered)
    return PartSeen("loader", "not_seen", "too few points to tell batches by their loss, and no batch ids")
