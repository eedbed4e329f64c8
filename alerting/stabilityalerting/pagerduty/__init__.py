"""PagerDuty both ways: pages and changes go out, acknowledgements come back. Prose: docs/alerting.md."""

from .channel import PAGERDUTY_URL, PagerDutySink
from .webhooks import BadWebhook, WebhookResult, Webhooks

__all__ = ["PAGERDUTY_URL", "BadWebhook", "PagerDutySink", "WebhookResult", "Webhooks"]
