"""PagerDuty both ways: pages and changes go out, what people do there comes back."""

from .receiver import PAGERDUTY_URL, PagerDutySink
from .webhooks import BadWebhook, WebhookResult, Webhooks

__all__ = ["PAGERDUTY_URL", "BadWebhook", "PagerDutySink", "WebhookResult", "Webhooks"]
