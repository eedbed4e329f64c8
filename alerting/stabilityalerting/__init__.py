"""Stabilityboard's alerting: incident events in, messages to Slack, PagerDuty and webhooks out, each change once."""

from .alert import Alert, Notice
from .courier import Patience
from .errors import AlertingError, BadAlert, SendError, SettingsError
from .heartbeat import Heartbeat
from .service import AlertingService
from .settings import AlertingSettings, sinks_from_env
from .sink import HttpSink, Outgoing, RecordingSink, Sink

__all__ = [
    "Alert",
    "AlertingError",
    "AlertingService",
    "AlertingSettings",
    "BadAlert",
    "Heartbeat",
    "HttpSink",
    "Notice",
    "Outgoing",
    "Patience",
    "RecordingSink",
    "SendError",
    "SettingsError",
    "Sink",
    "sinks_from_env",
]
