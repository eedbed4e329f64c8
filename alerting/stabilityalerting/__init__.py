"""Stabilityboard's alerting: incident events in, messages to Slack, PagerDuty and webhooks out, each change once."""

from .alert import Alert, Notice, Severity
from .courier import Patience
from .errors import AlertingError, BadAlert, SendError, SettingsError
from .heartbeat import Heartbeat
from .registry import heartbeat_url, register, sinks_from_env
from .service import AlertingService
from .sink import HttpSink, Outgoing, RecordingSink, Sink
from .variables import Variables

__all__ = [
    "Alert",
    "AlertingError",
    "AlertingService",
    "BadAlert",
    "Heartbeat",
    "HttpSink",
    "Notice",
    "Outgoing",
    "Patience",
    "RecordingSink",
    "SendError",
    "SettingsError",
    "Severity",
    "Sink",
    "Variables",
    "heartbeat_url",
    "register",
    "sinks_from_env",
]
