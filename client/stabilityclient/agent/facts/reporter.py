"""Reports the facts of each launch once: of the first rank of the node, as soon as its process is there."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Collection, Iterable
from typing import Any

from stabilityclient.agent.facts.launch import launch_facts
from stabilityclient.agent.sources import Source

__all__ = ["FactsReporter"]

#: Seconds between two looks for a new launch.
POLL_S = 0.5


class FactsReporter:
    """Sends an event ``launch`` for each start of the node's first rank.

    Args:
        ranks: returns the node's training processes.
        event: sends an event: its type and data.
        log: takes a text when something fails.
        known: ids of the processes that an earlier agent reported.
        reported: called after each report.
    """

    def __init__(
        self,
        ranks: Callable[[], Iterable[Source]],
        event: Callable[[str, dict[str, Any]], None],
        log: Callable[[str], None],
        known: Collection[str],
        reported: Callable[[], None],
    ) -> None:
        self._ranks = ranks
        self._event = event
        self._log = log
        self._known = set(known)
        self._reported = reported
        #: Whether the facts of a launch are being collected: the agent does not leave before they are sent.
        self.busy = False

    def state(self) -> list[str]:
        """Return the ids of the processes that need no report any more."""
        return sorted(self._known & {source.info.source for source in self._ranks()})

    async def run(self) -> None:
        """Report until cancelled."""
        while True:
            for source in self._due():
                self.busy = True
                self._known.add(source.info.source)
                await self._report(source)
                self.busy = False
            await asyncio.sleep(POLL_S)

    def _due(self) -> list[Source]:
        return [
            source
            for source in self._ranks()
            if not source.info.local_rank and source.alive and source.facts and source.info.source not in self._known
        ]

    async def _report(self, source: Source) -> None:
        try:
            # Of a process in another container the pid means nothing here.
            facts = {} if source.elsewhere else await asyncio.to_thread(launch_facts, source.info.pid)
        except Exception as error:  # whatever /proc or git say: the launch is reported without it
            self._log(f"facts of {source.info.source}: {type(error).__name__}: {error}")
            facts = {}
        info, facts = source.info, facts or {}
        facts.setdefault("host", info.node or os.uname().nodename)
        known = {"source": info.source, "rank": info.rank or 0, "world_size": info.world_size, "node": info.node}
        self._event("launch", {**facts, **known})
        self._reported()
