"""All errors of the backend: one tree, each with a code, a message, a hint and an HTTP status.

    StabilityBoardError
    ├── BadRequest        422  the request is wrong; the same again will not help
    ├── Unauthorized      401  no key, or a wrong one
    ├── Forbidden         403  a good key without the needed scope, or a foreign browser origin
    ├── NotFound          404  no such run, segment, command, ...
    ├── Conflict          409  right in itself, but not now
    ├── Unavailable       503  a part is away for a moment; trying again helps
    │   ├── AgentGone     503  the agent's connection closed while something was sent to it
    │   └── TakesNoPart   503  this process may change nothing: its version is too far from that of the others
    ├── ArchiveError      500  a file of the archive can't be read or written; the message names it
    ├── SnapshotError     500  a stored state can't be taken up; the frames are folded again instead
    └── StartError        500  the server can't start; shown in the terminal, never over HTTP
        ├── SettingsError      a setting is wrong
        ├── FolderInUse        another Stabilityboard works in the data folder
        └── RedisStartError    no usable Redis or Valkey server

A message has the value given and the one expected, the hint has the remedy. Facts that a program may want are
attributes as well (``error.facts["run_id"]``).
"""

from __future__ import annotations

from typing import Any, ClassVar

__all__ = [
    "WRONG_USE",
    "AgentGone",
    "ArchiveError",
    "BadRequest",
    "Conflict",
    "FolderInUse",
    "Forbidden",
    "NotFound",
    "RedisStartError",
    "SettingsError",
    "SnapshotError",
    "StabilityBoardError",
    "StartError",
    "TakesNoPart",
    "Unauthorized",
    "Unavailable",
]


#: Code of a BadRequest about how a command was called: it ends with 2, as a wrong option does.
WRONG_USE = "wrong_use"


class StabilityBoardError(Exception):
    """The root: everything that the backend raises on purpose.

    Args:
        message: the value given and the one expected, one or two sentences.
        hint: the remedy; empty where the message has it.
        code: short snake_case word for programs; the class's own by default.
        status: HTTP status; the class's own by default.
        facts: anything a program may want to read without parsing the message.
    """

    default_code: ClassVar[str] = "internal"
    default_status: ClassVar[int] = 500

    def __init__(
        self, message: str, *, hint: str = "", code: str | None = None, status: int | None = None, **facts: Any
    ) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint
        self.code = code or self.default_code
        self.status = status or self.default_status
        self.facts = facts

    def as_json(self) -> dict[str, dict[str, str]]:
        """Return the body of the HTTP answer: ``{"error": {"code", "message", "hint"}}``."""
        return {"error": {"code": self.code, "message": self.message, "hint": self.hint}}


class BadRequest(StabilityBoardError):
    """The request is wrong; sending the same again will not help."""

    default_code = "bad_request"
    default_status = 422


class Unauthorized(StabilityBoardError):
    """No API key, or one that is unknown or revoked."""

    default_code = "unauthorized"
    default_status = 401


class Forbidden(StabilityBoardError):
    """The key is good but lacks the scope, or a page of another origin asked."""

    default_code = "forbidden"
    default_status = 403


class NotFound(StabilityBoardError):
    """There is no such thing."""

    default_code = "not_found"
    default_status = 404


class Conflict(StabilityBoardError):
    """The request is right in itself but clashes with the present state."""

    default_code = "conflict"
    default_status = 409


class Unavailable(StabilityBoardError):
    """A part that is needed is away for a moment. Nothing was done, or it is safe to do it again."""

    default_code = "unavailable"
    default_status = 503


class AgentGone(Unavailable):
    """The agent's connection closed before the message was out."""

    default_code = "agent_gone"


class TakesNoPart(Unavailable):
    """This process works with others of a version too far from its own: agents, and users, go to another one."""

    default_code = "takes_no_part"


class ArchiveError(StabilityBoardError):
    """A file of the archive can't be read or written; the message names it and the reason, the hint the remedy."""

    default_code = "archive"


class SnapshotError(StabilityBoardError):
    """A stored state of a run is damaged, foreign or of another version: fold the frames again instead."""

    default_code = "snapshot"


class StartError(StabilityBoardError):
    """The server can't start. Its message and hint go to the terminal."""

    default_code = "start_failed"


class SettingsError(StartError):
    """A setting is wrong; the message names it, the value given and the one expected."""

    default_code = "bad_setting"


class FolderInUse(StartError):
    """Another Stabilityboard works in this data folder; ``facts["pid"]`` is its process."""

    default_code = "folder_in_use"


class RedisStartError(StartError):
    """No usable Redis or Valkey server was found, or it did not come up, or it is too old."""

    default_code = "redis_start_failed"
