"""What ``run.boundary`` returns beside a rollback, and how a rollback leaves a framework's loop."""

from __future__ import annotations

from stabilityclient.rollback.decision import Rollback

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

__all__ = ["Rewind", "Stop"]


class Stop:
    """The order to end training before a step; all ranks get it at the same boundary.

    Attributes:
        step: the step that is not to begin.
        reason: why, in words of who ordered it.
        command_id: the command.
        issuer: who ordered it.
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
    """Raise it to leave loops that belong to somebody else; catch it around them, and restore the state there.

    No ``Exception``: a framework that survives the errors of its callbacks lets it through, as it does Ctrl-C.

    Attributes:
        rollback: what ``run.boundary()`` returned.
    """

    def __init__(self, rollback: Rollback) -> None:
        super().__init__(f"back to step {rollback.to_step}")
        self.rollback = rollback

    def __reduce__(self) -> tuple[type[Rewind], tuple[Rollback]]:
        return (Rewind, (self.rollback,))
