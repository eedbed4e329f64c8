"""Stabilityboard's alerting: incident events in, messages to Slack, PagerDuty and webhooks out, each change once."""

from .alert import Alert, Notice, Severity
from .errors import AlertingError, AlertingSettingsError, BadAlert, SendError
from .heartbeat import Heartbeat, heartbeat_from_env
from .notifier import RetryPolicy
from .outcomes import HEARTBEAT, WATCHDOG, Outcome, Outcomes
from .registry import register, sinks_from_env
from .service import AlertingService
from .sink import HttpSink, Outgoing, RecordingSink, Sink
from .variables import Variables

__all__ = [
    "HEARTBEAT",
    "WATCHDOG",
    "Alert",
    "AlertingError",
    "AlertingService",
    "AlertingSettingsError",
    "BadAlert",
    "Heartbeat",
    "HttpSink",
    "Notice",
    "Outcome",
    "Outcomes",
    "Outgoing",
    "RecordingSink",
    "RetryPolicy",
    "SendError",
    "Severity",
    "Sink",
    "Variables",
    "heartbeat_from_env",
    "register",
    "sinks_from_env",
]
