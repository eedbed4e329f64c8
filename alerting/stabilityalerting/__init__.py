"""Stabilityboard's alerting: incident events in, messages to Slack, PagerDuty and webhooks out, each change once."""

from .alert import Alert, Notice, Severity
from .errors import AlertingError, AlertingSettingsError, BadAlert, SendError
from .heartbeat import Heartbeat
from .notifier import RetryPolicy
from .preview import Preview, who_gets
from .registry import heartbeat_url, register, sinks_from_env
from .service import AlertingService
from .sink import HttpSink, Outgoing, RecordingSink, Sink
from .variables import Variables

__all__ = [
    "Alert",
    "AlertingError",
    "AlertingService",
    "AlertingSettingsError",
    "BadAlert",
    "Heartbeat",
    "HttpSink",
    "Notice",
    "Outgoing",
    "Preview",
    "RecordingSink",
    "RetryPolicy",
    "SendError",
    "Severity",
    "Sink",
    "Variables",
    "heartbeat_url",
    "register",
    "sinks_from_env",
    "who_gets",
]
