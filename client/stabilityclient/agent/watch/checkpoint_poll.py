"""Has the watched checkpoints looked at again and again, those on disk and those with a URL each in their own turn."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress

from stabilityclient.agent.watch.checkpoint_survey import Survey
from stabilityclient.agent.watch.checkpoints import CheckpointWatch, Notice
from stabilityclient.agent.watch.visibility_gaps import Gap

__all__ = ["CheckpointPoll"]

#: Seconds between two checks of the checkpoints on disk.
POLL_S = 2.0


class CheckpointPoll:
    """Brings together a watch and what it asks.

    Args:
        watch: which they are. report: takes what is news. over: says whether nobody is left who could write one.
    """

    def __init__(self, watch: CheckpointWatch, report: Callable[[Notice], None], over: Callable[[], bool]) -> None:
        self._watch = watch
        self._report = report
        self._over = over
        #: Of paths, of URLs.
        self._surveys = (Survey(), Survey())
        self._announced = (asyncio.Event(), asyncio.Event())

    def announce(self) -> None:
        """Let all that is new be looked at at once."""
        for announced in self._announced:
            announced.set()

    def gaps(self) -> list[Gap]:
        """Return what can't be seen as a disk or store hangs."""
        return [gap for each in self._surveys for gap in each.gaps()]

    async def run(self) -> None:
        """Look, and report, until it is cancelled."""
        await asyncio.gather(self._poll(urls=False), self._poll(urls=True))

    async def _poll(self, *, urls: bool) -> None:
        survey, announced = self._surveys[urls], self._announced[urls]
        while True:
            with suppress(asyncio.TimeoutError):
                await asyncio.wait_for(announced.wait(), POLL_S)
            announced.clear()
            saw = await survey.of(self._watch.due(urls=urls))
            for notice in self._watch.settle(saw, over=self._over()):
                self._report(notice)
