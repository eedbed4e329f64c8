"""Tells a run's browsers what its agents say: at most once a second, however many agents there are."""

from __future__ import annotations

from typing import Any

from stabilitybackend.runs.live import Channel

__all__ = ["HealthFeed"]


class HealthFeed:
    """Collects the newest word of each agent between two looks.

    Args:
        channel: of the run's browsers.
    """

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self._due: dict[str, dict[str, Any]] = {}

    def put(self, agent: dict[str, Any]) -> None:
        """Take an AgentHealth of docs/api.md."""
        if self._channel:
            self._due[str(agent["agent"])] = agent

    def flush(self) -> None:
        """Publish what came since the last call, if anything did."""
        if self._due:
            self._channel.publish({"type": "health", "agents": list(self._due.values())})
            self._due = {}
