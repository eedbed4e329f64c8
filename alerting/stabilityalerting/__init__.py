"""Stabilityboard's alerting: from incident events to messages of many channels, each change once."""

from .actions import (
    ActionRefused,
    Actions,
    Branch,
    CommandNews,
    Curve,
    Facts,
    Proposed,
    RollbackNow,
    RollbackRequest,
    fingerprint,
)
from .alert import Alert, Notice, Severity
from .errors import AlertingError, AlertingSettingsError, BadAlert, SendError
from .heartbeat import Heartbeat, heartbeat_from_env
from .notifier import RetryPolicy
from .outcomes import HEARTBEAT, WATCHDOG, Outcome, Outcomes
from .registry import sinks_from_env
from .server import BoardChange, Server, SinkContext
from .service import AlertingService
from .sink import HttpSink, Outgoing, RecordingSink, Sink
from .stages import Preview, who_gets
from .variables import Variables

__all__ = [
    "HEARTBEAT",
    "WATCHDOG",
    "ActionRefused",
    "Actions",
    "Alert",
    "AlertingError",
    "AlertingService",
    "AlertingSettingsError",
    "BadAlert",
    "BoardChange",
    "Branch",
    "CommandNews",
    "Curve",
    "Facts",
    "Heartbeat",
    "HttpSink",
    "Notice",
    "Outcome",
    "Outcomes",
    "Outgoing",
    "Preview",
    "Proposed",
    "RecordingSink",
    "RetryPolicy",
    "RollbackNow",
    "RollbackRequest",
    "SendError",
    "Server",
    "Severity",
    "Sink",
    "SinkContext",
    "Variables",
    "fingerprint",
    "heartbeat_from_env",
    "sinks_from_env",
    "who_gets",
]
