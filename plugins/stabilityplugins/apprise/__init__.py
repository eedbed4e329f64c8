"""Mail, Teams, Discord, ntfy and others, by addresses of Apprise. Prose: README.md."""

from __future__ import annotations

from typing import TYPE_CHECKING

from stabilitybackend.hooks import hook

if TYPE_CHECKING:
    from stabilityalerting import Sink


@hook
def channels() -> list[type[Sink]]:
    from stabilityplugins.apprise.channel import AppriseSink

    return [AppriseSink]
