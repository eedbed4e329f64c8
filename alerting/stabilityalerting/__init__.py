"""Stabilityboard's alerting: incident events in, messages to Slack, PagerDuty and webhooks out, each change once."""

from .actions import ActionRefused, Actions, Branch, CommandNews, Curve, Facts, Order, RollbackNow, fingerprint
from .alert import Alert, Notice, Severity
from .errors import AlertingError, AlertingSettingsError, BadAlert, SendError
from .heartbeat import Heartbeat
from .notifier import RetryPolicy
from .registry import heartbeat_url, register, sinks_from_env
from .service import AlertingService
from .sink import HttpSink, Outgoing, RecordingSink, Sink
from .variables import Variables

__all__ = [
    "ActionRefused",
    "Actions",
    "Alert",
    "AlertingError",
    "AlertingService",
    "AlertingSettingsError",
    "BadAlert",
    "Branch",
    "CommandNews",
    "Curve",
    "Facts",
    "Heartbeat",
    "HttpSink",
    "Notice",
    "Order",
    "Outgoing",
    "RecordingSink",
    "RetryPolicy",
    "RollbackNow",
    "SendError",
    "Severity",
    "Sink",
    "Variables",
    "fingerprint",
    "heartbeat_url",
    "register",
    "sinks_from_env",
]
