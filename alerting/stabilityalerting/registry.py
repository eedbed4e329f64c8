"""The channels, one line each. Each reads its own settings from the environment."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from .alertmanager import AlertmanagerSink
from .errors import AlertingSettingsError
from .sink import Sink
from .slack import SlackSink
from .variables import Variables
from .webhook import WebhookSink

__all__ = ["CHANNELS", "sinks_from_env"]

_NAME = re.compile(r"[a-z][a-z0-9_]{0,39}")
CHANNELS: tuple[type[Sink], ...] = (
    SlackSink,
    WebhookSink,
    AlertmanagerSink,
)


def sinks_from_env(env: Mapping[str, str], added: Sequence[type[Sink]] = ()) -> list[Sink]:
    """Return the receivers that an environment sets up.

    Args:
        added: further channels, of plug-ins.

    ``STABILITY_RECEIVERS=lead=pagerduty,vision=slack`` names further ones; the variables of the first end in ``_LEAD``.

    Raises:
        AlertingSettingsError: a value has the wrong form, or two channels have one name.
    """
    channels: dict[str, type[Sink]] = {}
    for channel in (*CHANNELS, *added):
        if channels.setdefault(channel.name, channel) is not channel:
            named = f"{channel.__module__}.{channel.__name__}"
            raise AlertingSettingsError(f"there is a channel {channel.name!r} already, give {named} another name")
    made = [channel.from_variables(Variables(env)) for channel in channels.values()]
    return [sink for sink in made if sink is not None] + [_named(entry, env) for entry in _further(env, channels)]


def _further(env: Mapping[str, str], channels: Mapping[str, type[Sink]]) -> list[tuple[str, type[Sink]]]:
    found: dict[str, type[Sink]] = {}
    for entry in filter(None, (one.strip() for one in env.get("STABILITY_RECEIVERS", "").split(","))):
        name, _, channel = entry.partition("=")
        if not _NAME.fullmatch(name) or channel not in channels:
            raise AlertingSettingsError(
                f"STABILITY_RECEIVERS has {entry!r}, expected NAME=CHANNEL: a name of a-z, 0-9 and _, and "
                f"one of {', '.join(channels)}"
            )
        if name in channels or name in found:
            raise AlertingSettingsError(f"STABILITY_RECEIVERS has {name!r}, which is taken: give it another name")
        found[name] = channels[channel]
    return list(found.items())


def _named(entry: tuple[str, type[Sink]], env: Mapping[str, str]) -> Sink:
    name, channel = entry
    sink = channel.from_variables(Variables(env, name))
    if sink is None:
        raise AlertingSettingsError(
            f"STABILITY_RECEIVERS names {name}={channel.name}, and nothing sets it up: "
            f"expected the variables of {channel.name} with _{name.upper()} at the end (docs/alerting.md)"
        )
    return sink.rename(name)
