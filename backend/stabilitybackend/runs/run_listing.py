"""The Run of docs/api.md for one run: as it is now, told to browsers and stored for the time when nobody follows it."""

from __future__ import annotations

import logging
from typing import Any

from redis.exceptions import RedisError

from stabilitybackend.runs.feed.pubsub import Channel
from stabilitybackend.runs.index import RunIndex, announced
from stabilitybackend.schema.fleet import RunNames
from stabilityclient.wire import Hello

__all__ = ["RunCard"]

#: What only counts on, as the last step does with every row, is stored at most this often, seconds.
SAVE_EVERY_S = 5.0
#: What is stored as soon as it changes: a server that starts decides by it, and lists show it.
_SAVED_AT_ONCE = ("status", "open_incidents", "worst_incident", "head", "agents", "rollbacks")

_log = logging.getLogger(__name__)


class RunCard:
    """What the list of runs shows of a run.

    Args:
        run_id: the run.
        index: stores it.
        channel: of the run's browsers.
        overview: of the browsers that see the list of runs.

    Attributes:
        updated: when the run's last frame came, unix seconds.
        changed: a frame came, or where the points are, since it was reported; another view is seen without it.
    """

    def __init__(self, run_id: str, index: RunIndex, channel: Channel, overview: Channel) -> None:
        self.updated = 0.0
        self.changed = False
        self._run_id = run_id
        self._index = index
        self._channel = channel
        self._overview = overview
        self._shown: dict[str, Any] = {}
        self._told: dict[str, Any] = {}
        self._saved: dict[str, Any] = {}
        self._saved_at = float("-inf")
        self._pushed_metrics = -1

    def touch(self) -> None:
        """Note that something is new."""
        self.changed = True

    def heard(self, stored: float, now: float) -> None:
        """Note that a frame is taken in: one that was stored before a restart is not from now.

        Args:
            stored: when Redis took it in, by its own clock; now: unix seconds.
        """
        self.changed = True
        self.updated = max(self.updated, min(stored, now))

    async def load(self) -> None:
        """Begin with what is stored. Raises RedisError when Redis is away."""
        self._shown = await self._index.stored(self._run_id)
        self.updated = self._shown["updated"]

    async def is_listed(self) -> bool:
        """Return whether the index still has the run."""
        return await self._index.exists(self._run_id)

    def rename(self, hello: Hello) -> None:
        """Take over the name, project and config that an agent announced and the index has stored."""
        self._shown = {**self._shown, **announced(hello)}

    @property
    def status(self) -> str:
        """The status that was shown or stored last."""
        return str(self._shown.get("status") or "")

    @property
    def names(self) -> RunNames:
        """Return how the run is called."""
        return RunNames(self._run_id, str(self._shown.get("name") or ""), str(self._shown.get("project") or ""))

    def shown(self, view: dict[str, Any]) -> dict[str, Any]:
        """Return the Run with what ``RunState.view`` says now."""
        self._shown = {**self._shown, **view, "updated": self.updated}
        return self._shown

    async def tell(self, view: dict[str, Any], now: float) -> None:
        """Publish and store the Run where it changed.

        Args:
            view: of the run's state.
            now: unix seconds.
        """
        run = self.shown(view)
        pushed = run
        if self._pushed_metrics == len(run["metrics"]):
            pushed = {name: value for name, value in run.items() if name != "metrics"}
        self._pushed_metrics = len(run["metrics"])
        changed = self.changed or view != self._told
        self.changed, self._told = False, view
        if changed or self._channel:
            self._channel.publish({"type": "run", "run": pushed})
        if changed:
            self._overview.publish({"type": "run", "run": pushed})
        await self._save(view, now)

    async def _save(self, view: dict[str, Any], now: float) -> None:
        run = {**view, "updated": self.updated}
        if run == self._saved:
            return
        counts_only = all(run.get(name) == self._saved.get(name) for name in _SAVED_AT_ONCE)
        if counts_only and 0 <= now - self._saved_at < SAVE_EVERY_S:
            return
        try:
            await self._index.save_view(self._run_id, view, self.updated)
            self._saved, self._saved_at = run, now
        except (RedisError, OSError) as error:
            _log.warning("run %s: summary not stored: %s", self._run_id, error)
