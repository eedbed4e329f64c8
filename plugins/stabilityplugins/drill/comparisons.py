"""Verdict on each thing restored or lost: the state of the first resumed round against the right one.

The stopped leg's own state is the measure wherever it can be (weights, optimizer): it is exact however noisy the job
is. Facts of the moment before a step (rates, random numbers, batch) are compared with the straight leg, and only where
two straight starts agree on it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from stabilityplugins.drill.alignment import Alignment, label, state_after
from stabilityplugins.drill.trace import LegTrace, RankTrace, Round

__all__ = ["Check", "Legs", "check_state"]

#: Two rates that a schedule computes by other orders of operations may differ by so much, relative.
_RATE_TOLERANCE = 1e-9


class Check(msgspec.Struct):
    """One thing that a checkpoint has to bring back.

    Args:
        name: of the thing. restored: None where it was not seen, or can't be judged. detail: in words.
        follows: the thing that this difference follows from; empty where it is one of its own.
    """

    name: str
    restored: bool | None
    detail: str = ""
    follows: str = ""


class Legs(msgspec.Struct):
    """The legs of a drill that are compared.

    Args:
        straight, again: two straight starts; ``again`` may be shorter. stopped: the one that was ended.
        resumed: the one that went on from it. at: how they lie on each other.
    """

    straight: LegTrace
    again: LegTrace
    stopped: LegTrace
    resumed: LegTrace
    at: Alignment

    def pairs(self) -> list[tuple[int, RankTrace, RankTrace, RankTrace]]:
        """Return (rank, straight, stopped, resumed) of each rank that all three have."""
        ranks = sorted({*self.straight.ranks} & {*self.stopped.ranks} & {*self.resumed.ranks})
        found = [
            (rank, self.straight.ranks[rank], self.stopped.ranks[rank], self.resumed.ranks[rank]) for rank in ranks
        ]
        return found if self.same_world else found[:1]

    @property
    def same_world(self) -> bool:
        """Whether the job was resumed on as many ranks."""
        return len(self.stopped.ranks) == len(self.resumed.ranks)

    def right(self, straight: RankTrace, number: int) -> Round | None:
        """Return the straight leg's round that the resumed leg's round ``number`` (from 0) should be."""
        at = self.at.resumed + number
        return straight.rounds[at] if at < len(straight.rounds) else None

    def steady(self, rank: int, what: Callable[[Round], Any]) -> bool:
        """Whether two straight starts agree on something in all rounds that both have."""
        one, other = self.straight.ranks.get(rank), self.again.ranks.get(rank)
        if one is None or other is None:
            return False
        return all(what(a) == what(b) for a, b in zip(one.rounds, other.rounds, strict=False))

    def step(self, number: int) -> int:
        """Return the right step number of the resumed leg's round ``number`` (from 0)."""
        lead = self.stopped.lead
        named = None if lead is None else label(lead, self.at.resumed)
        return (self.at.resumed if named is None else named) + 1 + number


def check_state(legs: Legs) -> list[Check]:
    """Return the checks of weights, optimizer, GradScaler, rate, random numbers and step counter."""
    checks = [_weights(legs), _optimizer(legs), _settings(legs), _scaler(legs), _rate(legs), _random(legs)]
    return [*(check for check in checks if check is not None), _steps(legs)]


def _weights(legs: Legs) -> Check:
    at, lead = legs.at, legs.stopped.lead
    assert lead is not None
    right = legs.step(-1)
    if at.weights == "right":
        older = max(0, at.saved - at.resumed)  # below 0: it was ended between a save and its report
        note = f"those of step {right}" + (f", a checkpoint {older} steps older than the newest" if older else "")
        return Check("weights", True, note)
    if at.weights == "initial":
        return Check("weights", False, f"those of a fresh start in place of those of step {right}")
    if at.weights == "older":
        rounds = at.weights_of or 0
        named = label(lead, rounds)
        return Check(
            "weights", False, f"those of step {rounds if named is None else named} in place of those of step {right}"
        )
    return Check("weights", False, f"not those of step {right} nor of any other: {_changed_weights(legs)}")


def _changed_weights(legs: Legs) -> str:
    _, _, stopped, resumed = legs.pairs()[0]
    old, new = state_after(stopped, legs.at.resumed), resumed.begin
    if old is None or new is None or len(old.weights) != len(new.weights):
        return "another number of parameters"
    changed = [at for at, (a, b) in enumerate(zip(old.weights, new.weights, strict=True)) if a != b]
    names = [stopped.names[at] for at in changed if at < len(stopped.names) and stopped.names[at]][:2]
    shown = f" ({', '.join(names)}{' ...' if len(changed) > len(names) else ''})" if names else ""
    return (
        f"{len(changed)} of {len(old.weights)} tensors differ{shown}, "
        f"norm {new.weights_norm:.6g} in place of {old.weights_norm:.6g}"
    )


def _optimizer(legs: Legs) -> Check:
    for rank, _, stopped, resumed in legs.pairs():
        old, new = state_after(stopped, legs.at.resumed), resumed.begin
        if old is None or new is None:
            return Check("optimizer state", None, "not seen")
        if not old.optim and not new.optim:
            return Check("optimizer state", True, "it keeps none")
        if not legs.same_world and old.sharded:
            return Check("optimizer state", None, "sharded over another number of ranks: not compared")
        if not new.optim:
            return Check("optimizer state", False, f"empty: {', '.join(old.optim)} begin at zero again")
        changed = [name for name, value in old.optim.items() if new.optim.get(name) != value]
        if changed:
            norms = ", ".join(
                f"{name} has norm {new.optim_norm.get(name, 0.0):.4g} in place of {old.optim_norm[name]:.4g}"
                for name in changed[:2]
            )
            return Check("optimizer state", False, f"{', '.join(changed)} differ{_on(legs, rank)}: {norms}")
    return Check("optimizer state", True)


def _settings(legs: Legs) -> Check | None:
    for rank, straight, _, resumed in legs.pairs():
        right = legs.right(straight, 0)
        if right is not None and resumed.rounds and resumed.rounds[0].hyper != right.hyper:
            return Check("optimizer settings", False, f"betas, decay or others differ{_on(legs, rank)}")
    return None


def _scaler(legs: Legs) -> Check | None:
    for rank, straight, _, resumed in legs.pairs():
        right = legs.right(straight, 0)
        if right is None or not right.scalers or not resumed.rounds:
            return None
        if not legs.steady(rank, lambda one: one.scaler):
            return Check("GradScaler", None, "two straight starts differ")
        if resumed.rounds[0].scaler != right.scaler:
            return Check("GradScaler", False, f"scale or growth differ{_on(legs, rank)}")
    return Check("GradScaler", True)


def _rate(legs: Legs) -> Check:
    _, straight, _, resumed = legs.pairs()[0]
    seen = 0
    for number, round_ in enumerate(resumed.rounds):
        right = legs.right(straight, number)
        if right is None:
            break
        seen += 1
        if _same_rates(round_.rates, right.rates):
            continue
        detail = f"{_shown(round_.rates)} at step {legs.step(number)} in place of {_shown(right.rates)}"
        if round_.schedules != right.schedules and round_.schedules:
            detail += f"; the scheduler is at {round_.schedules[0]} in place of {_first(right.schedules)}"
        error = legs.at.step_error or 0
        moved = [legs.right(straight, at + error) for at in range(number, len(resumed.rounds)) if error]
        both = [(one, other) for one, other in zip(resumed.rounds[number:], moved, strict=False) if other is not None]
        follows = bool(both) and all(_same_rates(one.rates, other.rates) for one, other in both)
        return Check("learning rate", False, detail, "step counter" if follows else "")
    return Check("learning rate", True if seen else None, "" if seen else "not seen")


def _random(legs: Legs) -> Check:
    if not legs.same_world:
        return Check("random numbers", None, "another number of ranks draws other amounts")
    unsteady: set[str] = set()
    changed: dict[str, int] = {}
    same: set[str] = set()
    for rank, straight, _, resumed in legs.pairs():
        right = legs.right(straight, 0)
        if right is None or not resumed.rounds:
            continue
        for name, value in right.rng.items():
            if not legs.steady(rank, lambda one, name=name: one.rng.get(name)):  # type: ignore[misc]
                unsteady.add(name)
            elif resumed.rounds[0].rng.get(name) != value:
                changed.setdefault(name, rank)
            else:
                same.add(name)
    if changed:
        return Check("random numbers", False, f"{', '.join(changed)}: another state{_on(legs, min(changed.values()))}")
    unjudged = f"{', '.join(sorted(unsteady))}: not judged, two straight starts differ" if unsteady else ""
    return Check("random numbers", True if same else None, unjudged)


def _steps(legs: Legs) -> Check:
    error = legs.at.step_error
    if error is None:
        return Check("step counter", None, "the job logs no steps")
    if not error:
        return Check("step counter", True)
    return Check("step counter", False, f"the first step is called {legs.step(0) + error} in place of {legs.step(0)}")


def _on(legs: Legs, rank: int) -> str:
    return f" on rank {rank}" if len(legs.resumed.ranks) > 1 and rank else ""


def _same_rates(one: list[float], other: list[float]) -> bool:
    return len(one) == len(other) and all(
        abs(a - b) <= _RATE_TOLERANCE * max(abs(a), abs(b)) for a, b in zip(one, other, strict=True)
    )


def _shown(rates: list[float]) -> str:
    return ", ".join(f"{rate:.4g}" for rate in dict.fromkeys(rates)) or "none"


def _first(values: list[int]) -> str:
    return str(values[0]) if values else "none"
