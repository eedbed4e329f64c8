"""Decision of a rank that reads a command at a step boundary. Pure: time, disk and job are handed in."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Any

__all__ = [
    "ENDED_STATES",
    "INFERRED",
    "KINDS",
    "NO_SAVER",
    "SHOW_BATCHES",
    "Rewind",
    "Rollback",
    "Situation",
    "Stop",
    "checkpoint_path",
    "judge",
]

#: Kinds of command that a job can obey. The others are answered with "not supported by this job yet".
KINDS = frozenset({"rollback", "stop", "checkpoint_now"})
#: Kind of command that each rank answers for itself, with the content of its ring of batches.
SHOW_BATCHES = "show_batches"
#: Why a job saves no checkpoint on command, where no other reason is given.
NO_SAVER = "the job has no function that saves a checkpoint on order (@run.on_checkpoint)"
#: Final states of a command.
ENDED_STATES = frozenset({"acted", "done", "rejected", "failed", "expired"})
#: The greatest step there is.
MAX_STEP = 2**53 - 1
#: Prefix of the keys that the server gives to segments which it inferred by itself: the ranks do not know them.
INFERRED = "u-"


class Rollback:
    """Argument of the handler of ``@run.on_rollback`` and result of ``run.boundary``; immutable.

    Attributes:
        to_step: step whose state to restore; training continues with ``to_step + 1``.
        lr_scale: factor on the rate of the restored checkpoint's schedule at each step, or None to leave it.
        seed: new seed for the data order, or None to keep it.
        skip_batches: batches to leave out after the restored position, or None.
        skip_range: ``(first, last)``: leave out the batches that these steps had before, and train on those between
            ``to_step`` and ``first`` again; None for none. Never with ``skip_batches``.
        reason: free text of the issuer.
        command_id: the command; also the key of the new segment.
        checkpoint: path of the checkpoint to load, or None where the job announced none.
        issuer: its issuer.
        branch: the discarded segment whose checkpoint it is, ``(number, key)``: a rollback is undone, and
            ``to_step`` may lie above the present step. None: ``to_step`` is one of the path that the job is on.
    """

    # A dataclass would do, but importing dataclasses or typing costs half of our import budget.
    __slots__ = (
        "branch", "checkpoint", "command_id", "issuer", "lr_scale", "reason", "seed", "skip_batches", "skip_range",
        "to_step",
    )  # fmt: skip

    to_step: int
    lr_scale: float | None
    seed: int | None
    skip_batches: int | None
    skip_range: tuple[int, int] | None
    reason: str
    command_id: str
    checkpoint: str | None
    issuer: str
    branch: tuple[int, str] | None

    def __init__(
        self,
        to_step: int,
        lr_scale: float | None = None,
        seed: int | None = None,
        skip_batches: int | None = None,
        reason: str = "",
        command_id: str = "",
        checkpoint: str | None = None,
        issuer: str = "",
        skip_range: tuple[int, int] | None = None,
        branch: tuple[int, str] | None = None,
    ) -> None:
        given = locals()
        for name in self.__slots__:
            object.__setattr__(self, name, given[name])

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"{name} can't be set: a Rollback is what was commanded")

    def __delattr__(self, name: str) -> None:
        raise AttributeError(f"{name} can't be deleted: a Rollback is what was commanded")

    def __repr__(self) -> str:
        return f"Rollback({', '.join(f'{name}={getattr(self, name)!r}' for name in sorted(self.__slots__))})"

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Rollback):
            return NotImplemented
        return all(getattr(self, name) == getattr(other, name) for name in self.__slots__)

    def __hash__(self) -> int:
        return hash((self.command_id, self.to_step))

    def __reduce__(self) -> tuple[Any, ...]:
        # A job may send it to other processes.
        facts = (self.to_step, self.lr_scale, self.seed, self.skip_batches, self.reason, self.command_id)
        return (Rollback, (*facts, self.checkpoint, self.issuer, self.skip_range, self.branch))

    @classmethod
    def of(cls, command: Mapping[str, Any]) -> Rollback:
        """Return the rollback that a command (docs/api.md) asks for."""
        return cls(
            to_step=int(command["to_step"]),
            lr_scale=_optional(float, command.get("lr_scale")),
            seed=_optional(int, command.get("seed")),
            skip_batches=_optional(int, command.get("skip_batches")),
            reason=str(command.get("reason") or ""),
            command_id=str(command["command_id"]),
            checkpoint=checkpoint_path(command),
            issuer=str(command.get("issuer") or ""),
            skip_range=_range(command.get("skip_range")),
            branch=_branch(command.get("branch")),
        )

    def skips(self, number: int) -> bool:
        """Return whether the ``number``-th batch behind the restored position is left out; the first one has number 1.

        A range of steps is counted from ``to_step`` on, so where batches had been left out between the two before, the
        loader adds how many those were.
        """
        first, last = self.skip_range or (self.to_step + 1, self.to_step + (self.skip_batches or 0))
        return first <= self.to_step + number <= last

    def changes(self) -> dict[str, Any]:
        """Return the differences from the run before, for the segment's record."""
        given = {
            "lr_scale": self.lr_scale,
            "seed": self.seed,
            "skip_batches": self.skip_batches,
            "skip_range": None if self.skip_range is None else list(self.skip_range),
        }
        return {name: value for name, value in given.items() if value is not None}


class Situation:
    """A rank at a boundary.

    Args:
        boundary: the step that would begin now.
        stop: first step that this loop does not run, None for no end.
        now: unix seconds on the server's clock.
        segment: key of this rank's segment, "" before it named one, and the unix seconds of this node when it entered
            it (the start of the process for "").
        world_size: ranks in the job.
        has_handler: the job can carry it out (``@run.on_rollback``, ``run.can_roll_back``).
        cannot_save: why no checkpoint can be saved; "" where one can.
        exists: whether a path is on disk.
    """

    def __init__(
        self,
        *,
        boundary: int,
        stop: int | None,
        now: float,
        segment: tuple[str, float],
        world_size: int,
        has_handler: bool,
        exists: Callable[[str], bool],
        cannot_save: str = NO_SAVER,
    ) -> None:
        self.boundary = boundary
        self.stop = stop
        self.now = now
        self.segment_key, self.segment_entered = segment
        self.world_size = world_size
        self.has_handler = has_handler
        self.exists = exists
        self.cannot_save = cannot_save


def judge(command: Mapping[str, Any], at: Situation) -> tuple[str, str]:
    """Return this rank's answer to ``command``, and the reason.

    The answer is ``ready``, ``rejected`` or ``missed``. A rank that is not ready also decides ``abort`` in the arbiter.
    """
    kind = command.get("kind")
    if kind not in KINDS:
        return ("rejected", f"{kind} is not supported by this job yet")
    apply_at = command.get("apply_at_step")
    if not isinstance(apply_at, int):
        return ("rejected", "the command names no step boundary")
    if at.boundary > apply_at:
        return ("missed", f"read at the boundary of step {at.boundary}, the command was for {apply_at}")
    if at.stop is not None and apply_at >= at.stop:
        return ("rejected", f"the loop ends before step {apply_at} (stop is {at.stop})")
    expires = command.get("expires")
    if expires is not None and at.now > float(expires):
        return ("rejected", f"expired {at.now - float(expires):.0f} s ago")
    if int(command.get("world_size") or 0) != at.world_size:
        return ("rejected", f"decided for {command.get('world_size')} ranks, the job has {at.world_size}")
    stale = _stale(command, at)
    if stale:
        return ("rejected", stale)
    if kind == "rollback":
        return _judge_rollback(command, at, apply_at)
    if at.cannot_save and (kind == "checkpoint_now" or command.get("save")):
        return ("rejected", at.cannot_save)
    return ("ready", f"{'stops' if kind == 'stop' else 'saves'} before step {apply_at}")


def _judge_rollback(command: Mapping[str, Any], at: Situation, apply_at: int) -> tuple[str, str]:
    to_step = command.get("to_step")
    # On a branch that was left the job may have come further than it has on this one.
    most = apply_at - 1 if command.get("branch") is None else MAX_STEP
    if not isinstance(to_step, int) or not 0 <= to_step <= most:
        return ("rejected", f"to_step is {to_step}, expected 0 to {most}")
    if at.stop is not None and to_step + 1 >= at.stop:
        return ("rejected", f"the loop ends before step {at.stop}, there is none behind step {to_step}")
    skipped = command.get("skip_range")
    if skipped is not None and not _fits(skipped, to_step):
        return ("rejected", f"skip_range is {skipped!r:.80}, expected [first, last] with {to_step} < first <= last")
    if not at.has_handler:
        return (
            "rejected",
            "the job has no rollback handler (@run.on_rollback; with run.boundary(): run.can_roll_back)",
        )
    path = checkpoint_path(command)
    # A path with a scheme lies on a remote store: only the job itself can check whether it is there.
    if path is not None and "://" not in path and not at.exists(path):
        return ("rejected", f"checkpoint {path} is not on this node's disk")
    return ("ready", f"stops at step {apply_at}")


def _stale(command: Mapping[str, Any], at: Situation) -> str:
    """Return why the command was decided on another segment than the one this rank is in, or nothing."""
    received = command.get("received")
    if received is not None and float(received) < at.segment_entered:
        return "the job went on from another point since the command was issued"
    fence = command.get("fence") or {}
    key = str(fence.get("segment_key") or "")
    # Before a rank named a segment, and where the server inferred one, there is no name to compare: the time above
    # decides.
    if not at.segment_key or key == at.segment_key or key.startswith(INFERRED):
        return ""
    return f"decided on segment {key!r}, this rank is in {at.segment_key!r}"


def checkpoint_path(command: Mapping[str, Any]) -> str | None:
    """Return the path of the command's checkpoint, None where it names none."""
    given = command.get("checkpoint")
    if isinstance(given, dict):
        given = given.get("path")
    return str(given) if given else None


def _fits(value: object, to_step: int) -> bool:
    """Return whether a value is a range of steps behind the checkpoint's."""
    span = _range(value)
    return span is not None and to_step < span[0] <= span[1]


def _range(value: object) -> tuple[int, int] | None:
    if not isinstance(value, list | tuple) or [type(one) for one in value] != [int, int]:
        return None
    return value[0], value[1]


def _branch(value: object) -> tuple[int, str] | None:
    if not isinstance(value, dict):
        return None
    return int(value["segment"]), str(value["segment_key"])


def _optional(kind: type[Any], value: object) -> Any:
    return None if value is None else kind(value)


class Stop:
    """The order to end training before a step; all ranks get it at the same boundary.

    Attributes:
        step: the step that is not to begin.
        reason: free text of the issuer.
        command_id: the command.
        issuer: its issuer.
        save: a checkpoint was ordered first; ``@run.on_checkpoint`` has saved it already.
    """

    __slots__ = ("command_id", "issuer", "reason", "save", "step")

    def __init__(self, step: int, reason: str = "", command_id: str = "", issuer: str = "", save: bool = False) -> None:
        self.step = step
        self.reason = reason
        self.command_id = command_id
        self.issuer = issuer
        self.save = save

    def __repr__(self) -> str:
        return f"Stop({', '.join(f'{name}={getattr(self, name)!r}' for name in self.__slots__)})"

    @classmethod
    def of(cls, command: Mapping[str, Any], step: int) -> Stop:
        """Return the stop that a command (docs/api.md) asks for."""
        words = (str(command.get("reason") or ""), str(command["command_id"]), str(command.get("issuer") or ""))
        return cls(step, *words, save=bool(command.get("save")))


class Rewind(BaseException):
    """Raise it to leave the loop of a framework; catch it around them, and restore the state there.

    No ``Exception``: a framework that survives the errors of its callbacks lets it through, as it does Ctrl-C.

    Attributes:
        rollback: returned by ``run.boundary()``.
    """

    def __init__(self, rollback: Rollback) -> None:
        super().__init__(f"back to step {rollback.to_step}")
        self.rollback = rollback

    def __reduce__(self) -> tuple[type[Rewind], tuple[Rollback]]:
        return (Rewind, (self.rollback,))
