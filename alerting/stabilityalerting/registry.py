"""The channels that alerts can be sent to: one line each. Each reads its own settings from the environment."""

from __future__ import annotations

from collections.abc import Mapping

from .pagerduty import PagerDutySink
from .sink import Sink
from .slack import SlackSink
from .slack_app import SlackAppSink
from .variables import Variables
from .webhook import WebhookSink

__all__ = ["CHANNELS", "heartbeat_url", "register", "sinks_from_env"]

CHANNELS: list[type[Sink]] = [SlackSink, SlackAppSink, PagerDutySink, WebhookSink]


def register(channel: type[Sink]) -> type[Sink]:
    """Add a channel. A plug-in has it above its class as a decorator.

    Raises:
        ValueError: there is one of its name.
    """
    if any(each.name == channel.name for each in CHANNELS):
        raise ValueError(f"there is a channel {channel.name!r} already, give this one another name")
    CHANNELS.append(channel)
    return channel


def sinks_from_env(env: Mapping[str, str]) -> list[Sink]:
    """Return the receivers that an environment sets up, none where it names none.

    Raises:
        AlertingSettingsError: a value has the wrong form.
    """
    made = [channel.from_variables(Variables(env)) for channel in CHANNELS]
    return [sink for sink in made if sink is not None]


def heartbeat_url(env: Mapping[str, str]) -> str | None:
    """Return the address that is asked for while all is well (``STABILITY_HEARTBEAT_URL``), None where none is set.

    Raises:
        AlertingSettingsError: it is no address.
    """
    return Variables(env).url("STABILITY_HEARTBEAT_URL")
