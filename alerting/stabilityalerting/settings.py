"""Alerting's settings: one table, each with its environment variable. No value of a secret is ever shown."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from urllib.parse import urlsplit

from .alert import SEVERITIES, Severity
from .errors import SettingsError
from .pagerduty import PAGERDUTY_URL, PagerDutySink
from .sink import Sink
from .slack import SlackSink
from .webhook import WebhookSink

__all__ = ["AlertingSettings", "sinks_from_env"]


#: Environment variable of each setting.
_VARIABLES = {
    "slack_webhook_url": "STABILITY_SLACK_WEBHOOK_URL",
    "slack_min_severity": "STABILITY_SLACK_MIN_SEVERITY",
    "pagerduty_routing_key": "STABILITY_PAGERDUTY_ROUTING_KEY",
    "pagerduty_url": "STABILITY_PAGERDUTY_URL",
    "pagerduty_min_severity": "STABILITY_PAGERDUTY_MIN_SEVERITY",
    "webhook_url": "STABILITY_WEBHOOK_URL",
    "webhook_secret": "STABILITY_WEBHOOK_SECRET",
    "webhook_min_severity": "STABILITY_WEBHOOK_MIN_SEVERITY",
    "heartbeat_url": "STABILITY_HEARTBEAT_URL",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class AlertingSettings:
    """Where alerts go. A receiver whose address or key is not set gets nothing.

    Args:
        slack_webhook_url: incoming webhook of a Slack channel (``STABILITY_SLACK_WEBHOOK_URL``), a secret.
        slack_min_severity: mildest severity that Slack hears of (``STABILITY_SLACK_MIN_SEVERITY``).
        pagerduty_routing_key: Events v2 integration key (``STABILITY_PAGERDUTY_ROUTING_KEY``), a secret.
        pagerduty_url: where events are posted (``STABILITY_PAGERDUTY_URL``).
        pagerduty_min_severity: mildest severity that pages (``STABILITY_PAGERDUTY_MIN_SEVERITY``).
        webhook_url: receiver of signed JSON (``STABILITY_WEBHOOK_URL``), treated as a secret.
        webhook_secret: key of the signature, needed with ``webhook_url`` (``STABILITY_WEBHOOK_SECRET``).
        webhook_min_severity: mildest severity that is posted (``STABILITY_WEBHOOK_MIN_SEVERITY``).
        heartbeat_url: asked for every 30 s while all is well (``STABILITY_HEARTBEAT_URL``), treated as a secret.

    Raises:
        SettingsError: a value has the wrong form.
    """

    slack_webhook_url: str | None = field(default=None, repr=False)
    slack_min_severity: Severity = "info"
    pagerduty_routing_key: str | None = field(default=None, repr=False)
    pagerduty_url: str = PAGERDUTY_URL
    pagerduty_min_severity: Severity = "warning"
    webhook_url: str | None = field(default=None, repr=False)
    webhook_secret: str | None = field(default=None, repr=False)
    webhook_min_severity: Severity = "info"
    heartbeat_url: str | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        for name, variable in _VARIABLES.items():
            value = getattr(self, name)
            if name.endswith("_url") and value is not None:
                parts = urlsplit(value)
                if parts.scheme not in ("http", "https") or not parts.hostname:
                    raise SettingsError(f"{variable} is not an address, expected https://host/path")
            if name.endswith("_min_severity") and value not in SEVERITIES:
                raise SettingsError(f"{variable} is {value!r}, expected one of {', '.join(SEVERITIES)}")
        if self.webhook_url is not None and not self.webhook_secret:
            raise SettingsError(
                "STABILITY_WEBHOOK_URL is set without STABILITY_WEBHOOK_SECRET: "
                "set a secret of your own, the receiver checks the signature with it"
            )

    @classmethod
    def from_env(cls, env: Mapping[str, str]) -> AlertingSettings:
        """Return the settings that an environment holds; an empty variable counts as not set.

        Raises:
            SettingsError: a value has the wrong form.
        """
        given = {name: env.get(variable, "").strip() for name, variable in _VARIABLES.items()}
        return cls(**{name: value for name, value in given.items() if value})  # type: ignore[arg-type]

    def sinks(self, clock: Callable[[], float]) -> list[Sink]:
        """Return the receivers that are set up.

        Args:
            clock: unix seconds now.
        """
        sinks: list[Sink] = []
        if self.slack_webhook_url is not None:
            sinks.append(SlackSink(self.slack_webhook_url, self.slack_min_severity))
        if self.pagerduty_routing_key is not None:
            sinks.append(PagerDutySink(self.pagerduty_routing_key, self.pagerduty_url, self.pagerduty_min_severity))
        if self.webhook_url is not None and self.webhook_secret is not None:
            sinks.append(WebhookSink(self.webhook_url, self.webhook_secret, clock, self.webhook_min_severity))
        return sinks


def sinks_from_env(env: Mapping[str, str], clock: Callable[[], float] = time.time) -> list[Sink]:
    """Return the receivers that an environment sets up, none where it names none.

    Raises:
        SettingsError: a value has the wrong form.
    """
    return AlertingSettings.from_env(env).sinks(clock)
