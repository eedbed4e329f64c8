"""All errors of alerting: one tree.

AlertingError
├── AlertingSettingsError   a setting is wrong; alerting does not start
├── BadAlert                what came is not an incident; it is counted and passed over
└── SendError               a receiver did not take a message; ``recoverable`` says whether the same again can help
"""

from __future__ import annotations

__all__ = ["AlertingError", "AlertingSettingsError", "BadAlert", "SendError"]


class AlertingError(Exception):
    """The root: everything that alerting raises on purpose. No message ever holds a secret."""


class AlertingSettingsError(AlertingError):
    """A setting is wrong. Names the setting, never its value."""


class BadAlert(AlertingError):
    """An event that is not an incident in the expected shape."""


class SendError(AlertingError):
    """A receiver did not take a message.

    Attributes:
        recoverable: True when sending the same again later can help.
        retry_after_s: how long the receiver asked us to wait, seconds, or None.
        status: code of its answer, None where none came.
        code: the receiver's own word for what is wrong, "" where it has none.
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
