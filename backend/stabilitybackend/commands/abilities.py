"""What the ranks' rollback handlers can change beside the step, and which other orders they obey. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from stabilitybackend.schema.json_data import MAX_RANKS
from stabilitybackend.stateful import Stateful

__all__ = ["CHANGES", "Handlers"]

#: What an order may ask for beside the step -> what that is, in words.
CHANGES: Mapping[str, str] = {
    "lr_scale": "changes the learning rate",
    "seed": "takes a new seed",
    "skip_batches": "leaves out batches",
    "skip_range": "leaves out the batches of a range of steps",
}
#: Of these, what no client knew that reports no list.
_SINCE_LISTS = ("skip_range",)
#: Orders beside a rollback -> what carries them out.
ORDERS: Mapping[str, str] = {"stop": "ends it", "checkpoint_now": "saves a checkpoint"}
#: Longest reason of a rank for what it does not obey, characters.
_MAX_WHY_CHARS = 300


@dataclass
class Handlers(Stateful):
    """The newest value of each rank (the event ``handler``)."""

    #: Rank -> what it can change; None: it has a handler and promised only the step.
    _can: dict[int, tuple[str, ...] | None] = field(default_factory=dict)
    #: Ranks whose client is too old to go back to a branch that was left.
    _old: set[int] = field(default_factory=set)
    #: Rank -> the orders beside a rollback that it obeys (the event ``obeys``).
    _obeys: dict[int, tuple[str, ...]] = field(default_factory=dict)
    #: Rank -> kind of order -> why it does not obey that one.
    _why: dict[int, dict[str, str]] = field(default_factory=dict)

    def take(self, rank: int | None, data: Mapping[str, Any]) -> None:
        """A rank registered its handler."""
        if rank is None or (len(self._can) >= MAX_RANKS and rank not in self._can):
            return
        can = data.get("can")
        self._can[rank] = None if can is None else tuple(name for name in CHANGES if name in can)
        (self._old.discard if data.get("branches") else self._old.add)(rank)

    def obeys(self, rank: int | None, data: Mapping[str, Any]) -> None:
        """A rank said which orders it carries out."""
        if rank is not None and (len(self._obeys) < MAX_RANKS or rank in self._obeys):
            self._obeys[rank] = tuple(kind for kind in ORDERS if kind in data["orders"])
            why = data.get("why") or {}
            self._why[rank] = {kind: str(why[kind])[:_MAX_WHY_CHARS] for kind in ORDERS if kind in why}

    def not_obeyed(self, kind: str, world_size: int) -> str:
        """Return why the job would not carry out such an order, half a sentence; "" where it would."""
        silent = [rank for rank in range(world_size) if rank not in self._obeys]
        if silent:
            whose = "" if len(silent) == world_size else f" of rank {silent[0]}"
            return (
                f"the job{whose} has not said that it looks for orders: its loop runs over run.steps() or calls "
                "run.boundary() with a stabilityclient that knows them"
            )
        if all(kind in self._obeys[rank] for rank in range(world_size)):
            return ""
        unable = (self._why.get(rank, {}).get(kind) for rank in range(world_size) if kind not in self._obeys[rank])
        return next(filter(None, unable), f"the job has no function that {ORDERS[kind]} on order (@run.on_checkpoint)")

    def no_return(self) -> str:
        """Return why the job can't go back to a branch that was left, half a sentence; "" where it can."""
        if self.any_declared() and not self._old:
            return ""
        whose = "" if len(self._old) in (0, len(self._can)) else f" of rank {min(self._old)}"
        return f"the job's stabilityclient{whose} is older than the one that goes back to a discarded branch: update it"

    def any_declared(self) -> bool:
        """Return whether any rank reported some: older clients report none, and everything is offered to them."""
        return bool(self._can)

    def declares(self) -> bool:
        """Return whether every rank that has a handler listed what it can change."""
        return self.any_declared() and None not in self._can.values()

    def can(self) -> list[str]:
        """Return what every rank can change."""
        return [name for name in CHANGES if all(name in (can or ()) for can in self._can.values())]

    def cannot(self) -> dict[str, str]:
        """Return what is not to be offered -> why, in words."""
        if not self.any_declared():
            old = "the job's stabilityclient is older than the one that {}: update it"
            return {name: old.format(CHANGES[name]) for name in _SINCE_LISTS}
        missing = {name: what for name, what in CHANGES.items() if name not in self.can()}
        if self.declares():
            return {
                name: f"the job does not say that it {what}: @run.on_rollback(can=...), run.can_roll_back(...)"
                for name, what in missing.items()
            }
        return dict.fromkeys(missing, "the job promises only the step: @run.on_rollback(can=...)")
