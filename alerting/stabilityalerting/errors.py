"""All errors of alerting in one tree.

AlertingError
├── AlertingSettingsError   a setting is wrong; alerting does not start
├── BadAlert                an event is no incident; it is counted and skipped
└── SendError               a receiver did not take a message; ``recoverable``: the same again can help
"""

from __future__ import annotations

__all__ = ["AlertingError", "AlertingSettingsError", "BadAlert", "SendError"]


class AlertingError(Exception):
    """The root: all errors that alerting raises. No message holds a secret."""


class AlertingSettingsError(AlertingError):
    """A setting is wrong. Names the setting, never its value."""


class BadAlert(AlertingError):
    """An event that is not an incident in the expected shape."""


class SendError(AlertingError):
    """A receiver did not take a message.

    Attributes:
        recoverable: True when sending the same again later can help.
        retry_after_s: wait that the receiver asked for, seconds, or None.
        status: code of its answer, None without one.
        code: the receiver's name of the error, "" without one.
    """

    def __init__(
        self,
        message: str,
        *,
        recoverable: bool,
        retry_after_s: float | None = None,
        status: int | None = None,
        code: str = "",
    ) -> None:
        super().__init__(message)
        self.code = code
        self.recoverable = recoverable
        self.retry_after_s = retry_after_s
        self.status = status
