"""Changes that the ranks' rollback handlers can make, and other commands they obey. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from stabilitybackend.base.stateful import Stateful
from stabilitybackend.schema.json_data import MAX_RANKS

__all__ = ["AT_BOUNDARY", "CHANGES", "Handlers"]

#: Changes besides the step -> label.
CHANGES: Mapping[str, str] = {
    "lr_scale": "changes the learning rate",
    "seed": "takes a new seed",
    "skip_batches": "leaves out batches",
    "skip_range": "leaves out the batches of a range of steps",
}
#: Changes newer than a client that reports no list.
_SINCE_LISTS = ("skip_range",)
#: Commands of ranks besides a rollback -> effect.
AT_BOUNDARY: Mapping[str, str] = {"stop": "ends it", "checkpoint_now": "saves a checkpoint"}
#: Longest reason of a rank, characters.
_MAX_WHY_CHARS = 300


@dataclass
class Handlers(Stateful):
    """The newest report of each rank (the event ``handler``)."""

    #: Started ranks of clients that report the commands they obey; unknown for others.
    _started: set[int] = field(default_factory=set)
    #: Rank -> its changes; None: a handler that promised only the step.
    _can: dict[int, tuple[str, ...] | None] = field(default_factory=dict)
    #: Ranks whose client can't return to a discarded branch, nor report the commands it obeys.
    _old: set[int] = field(default_factory=set)
    #: Rank -> the commands besides a rollback that it obeys (the event ``obeys``).
    _obeys: dict[int, tuple[str, ...]] = field(default_factory=dict)
    #: Rank -> kind of command -> why it does not obey.
    _why: dict[int, dict[str, str]] = field(default_factory=dict)

    def event(self, kind: str, rank: int | None, data: Mapping[str, Any]) -> None:
        """Take an event of a rank: ``handler``, ``obeys``, or ``start``, which resets both."""
        if rank is None:
            return
        if kind == "start":
            if data.get("says_orders") and len(self._started) < MAX_RANKS:
                self._started.add(rank)
            self._can.pop(rank, None)
            self._obeys.pop(rank, None)
            self._why.pop(rank, None)
            self._old.discard(rank)
        else:
            (self._take if kind == "handler" else self._take_obeyed)(rank, data)

    def _take(self, rank: int, data: Mapping[str, Any]) -> None:
        if len(self._can) >= MAX_RANKS and rank not in self._can:
            return
        can = data.get("can")
        self._can[rank] = None if can is None else tuple(name for name in CHANGES if name in can)
        (self._old.discard if data.get("branches") else self._old.add)(rank)

    def _take_obeyed(self, rank: int, data: Mapping[str, Any]) -> None:
        if len(self._obeys) < MAX_RANKS or rank in self._obeys:
            self._obeys[rank] = tuple(kind for kind in AT_BOUNDARY if kind in data["orders"])
            why = data.get("why") or {}
            self._why[rank] = {kind: str(why[kind])[:_MAX_WHY_CHARS] for kind in AT_BOUNDARY if kind in why}

    def no_rollback(self, world_size: int) -> str:
        """Return why the job would not roll back, half a sentence; "" for no reason."""
        ranks = [rank for rank in range(world_size) if rank in self._started]
        if deaf := [rank for rank in ranks if rank not in self._obeys and rank not in self._old]:
            return _takes_none(deaf, world_size)
        if without := [rank for rank in ranks if rank not in self._can]:
            return f"{_who(without, world_size)} has no rollback handler (@run.on_rollback, run.can_roll_back)"
        return ""

    def not_obeyed(self, kind: str, world_size: int) -> str:
        """Return why the job would not carry out a command, half a sentence; "" for no reason."""
        if deaf := [rank for rank in range(world_size) if rank not in self._obeys]:
            return _takes_none(deaf, world_size)
        if all(kind in self._obeys[rank] for rank in range(world_size)):
            return ""
        unable = (self._why.get(rank, {}).get(kind) for rank in range(world_size) if kind not in self._obeys[rank])
        return next(
            filter(None, unable), f"the job has no function that {AT_BOUNDARY[kind]} on order (@run.on_checkpoint)"
        )

    @property
    def is_old(self) -> bool:
        """Whether a rank's client is too old to return to a discarded branch."""
        return bool(self._old)

    def no_return(self, world_size: int) -> str:
        """Return why the job can't return to a discarded branch, half a sentence; "" for no reason."""
        if not self._old:
            return self.no_rollback(world_size)
        who = _who(sorted(self._old), len(self._can))
        return f"the stabilityclient of {who} is older than the one that goes back to a discarded branch: update it"

    def declares(self) -> bool:
        """Return whether every rank with a handler listed its changes."""
        return bool(self._can) and None not in self._can.values()

    def can(self) -> list[str]:
        """Return the changes that every rank can make."""
        return [name for name in CHANGES if all(name in (can or ()) for can in self._can.values())]

    def cannot(self) -> dict[str, str]:
        """Return the other changes -> reason."""
        if not self._can:
            old = "the job's stabilityclient is older than the one that {}: update it"
            return {name: old.format(CHANGES[name]) for name in _SINCE_LISTS}
        missing = {name: what for name, what in CHANGES.items() if name not in self.can()}
        if self.declares():
            return {
                name: f"the job does not say that it {what}: @run.on_rollback(can=...), run.can_roll_back(...)"
                for name, what in missing.items()
            }
        return dict.fromkeys(missing, "the job promises only the step: @run.on_rollback(can=...)")


def _who(ranks: Sequence[int], size: int) -> str:
    return "the job" if len(ranks) == size else f"rank {ranks[0]}"


def _takes_none(ranks: Sequence[int], world_size: int) -> str:
    who = _who(ranks, world_size)
    return f"{who} has not said that it looks for orders, as a loop over run.steps() or with run.boundary() does"
