"""One run as lists show it: its current state, sent to browsers and stored for the time without a worker."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Any

import msgspec
from msgspec import structs
from redis.exceptions import RedisError

from stabilitybackend.base.errors import BadRequest, Conflict
from stabilitybackend.base.keys import RunKeys
from stabilitybackend.base.quiet_log import QuietLog
from stabilitybackend.runs.feed.pubsub import Channel
from stabilitybackend.runs.index import RunIndex, announced, changed
from stabilitybackend.runs.ownership.fence import Fence, Write
from stabilitybackend.schema.fleet import RunNames
from stabilitybackend.schema.job.about import MAX_TAGS, AboutEdit
from stabilitybackend.schema.runs import Run, RunStatus, RunView, listed
from stabilitybackend.storage.redis_link import answer_of
from stabilityclient.wire import Hello

__all__ = ["AboutChange", "RunListing", "stored_view"]

#: Interval of storing mere counts, such as the last step, which changes with every row, seconds; they are not worked
#: out more often either while no browser looks.
SAVE_EVERY_S = 5.0
#: Interval of noting its last report in the index while only counts change, seconds: lists look further back.
NOTE_EVERY_S = 10.0
#: Fields that are stored on every change: a starting server decides by them, and lists show them.
_at_once = attrgetter("status", "open_incidents", "worst_incident", "head", "agents", "rollbacks", "undo")

#: Every run of a full Redis reports that once a second.
_log = QuietLog(logging.getLogger(__name__))


@dataclass(frozen=True)
class AboutChange:
    """User-edited fields of a run; null leaves one unchanged.

    Attributes:
        name: "": the job's own again. tags: all of them. add_tags, remove_tags: to and from those that it has then.
        notes_before: the notes that the new ones were written over, null to write over any.
    """

    name: str | None = None
    tags: list[str] | None = None
    add_tags: Sequence[str] = ()
    remove_tags: Sequence[str] = ()
    notes: str | None = None
    notes_before: str | None = None


class RunListing:
    """Entry of a run in the list of runs.

    Args:
        channel: of the run's browsers.
        overview: of the browsers that see the list of runs.

    Attributes:
        run: as it was shown or stored last.
        updated: time of the run's last frame, unix seconds.
        changed: a frame arrived, or the points moved, since the last report; another view is seen without it.
    """

    def __init__(self, run_id: str, index: RunIndex, fence: Fence, channel: Channel, overview: Channel) -> None:
        self.run = Run(run_id=run_id, project="", name=run_id, config={}, created=0.0, updated=0.0)
        self.updated = 0.0
        self.changed = False
        self._run_id = run_id
        self._index = index
        self._fence = fence
        self._channel = channel
        self._overview = overview
        self._reported: RunView | None = None
        self._saved: tuple[RunView | None, float] = (None, 0.0)
        self._saved_at = self._noted_at = self._shown_at = float("-inf")
        self._news = True
        self._pushed_metrics = 0
        self._edit: AboutEdit | None = None
        self._editing = asyncio.Lock()

    def touch(self) -> None:
        """Note that something is new, and that it does not just count on."""
        self.changed = self._news = True

    def frame_stored(self, stored: float, now: float) -> None:
        """Note that a frame is taken in: one that was stored before a restart is not from now.

        Args:
            stored: when Redis took it in, by its own clock; now: unix seconds.
        """
        self.changed = True
        self.updated = max(self.updated, min(stored, now))

    async def load(self) -> None:
        """Begin with the stored run. Raises RedisError when Redis is away."""
        self.run = await self._index.stored(self._run_id)
        _, self._edit = await self._index.about(self._run_id)
        self.updated = self.run.updated

    async def is_listed(self) -> bool:
        """Return whether the index still has the run."""
        return await self._index.exists(self._run_id)

    def rename(self, hello: Hello) -> None:
        """Take over an announcement that the index has stored; edits of users stay."""
        self.run = structs.replace(self.run, **announced(hello) | changed(self._edit))

    async def about(self) -> tuple[str, AboutEdit | None]:
        """Return the job's notes, and the edits of users. Raises RedisError when Redis is away."""
        notes, self._edit = await self._index.about(self._run_id)
        return notes, self._edit

    async def edit(self, who: str, now: float, change: AboutChange) -> None:
        """Change name, tags or notes; those that are null stay.

        Raises:
            BadRequest: it would have too many tags.
            Conflict: the notes were changed by another user meanwhile.
            RedisError: Redis is away; the edit may be stored nevertheless.
        """
        async with self._editing:  # two concurrent edits would each write a state without the other
            notes, before = await self.about()
            edit = before or AboutEdit(who, now)
            found = notes if edit.notes is None else edit.notes
            # Those that were sent are there already where their answer got lost.
            if change.notes is not None and found not in (
                change.notes,
                found if change.notes_before is None else change.notes_before,
            ):
                raise Conflict(
                    f"{edit.who} changed these notes meanwhile: {found!r:.300}",
                    hint="put both together, and send them once more",
                    code="notes_changed",
                )
            tags = edit.tags if change.tags is None else change.tags
            if change.add_tags or change.remove_tags:
                known = self.run.tags if tags is None else tags
                tags = [one for one in dict.fromkeys([*known, *change.add_tags]) if one not in change.remove_tags]
            if len(tags or ()) > MAX_TAGS:
                raise BadRequest(f"the run would have {len(tags or ())} tags, expected at most {MAX_TAGS}")
            name = edit.name if change.name is None else change.name or None
            kept = edit.notes if change.notes is None else change.notes
            edit = AboutEdit(who, now, name=name, tags=tags, notes=kept)
            await self._index.edit(self._run_id, edit)
            self._edit = edit
            stored = await self._index.stored(self._run_id)
            self.run = structs.replace(self.run, name=stored.name, tags=stored.tags)
            self.touch()

    @property
    def status(self) -> RunStatus:
        """The status that was shown or stored last."""
        return self.run.status

    @property
    def names(self) -> RunNames:
        """Return how the run is called."""
        return RunNames(self._run_id, self.run.name, self.run.project)

    def shown(self, view: RunView) -> Run:
        """Return the run with the current ``RunState.view``."""
        self.run = structs.replace(self.run, **_fields(view), updated=self.updated)
        return self.run

    def is_due(self, status: RunStatus, now: float) -> bool:
        """Return whether ``publish`` is due: a browser looks, not only counts are new, or it is time to store those.

        Args:
            status: of the run now.
        """
        looked_at = len(self._channel) > 0 or len(self._overview) > 0
        waits = 0 <= now - self._shown_at < SAVE_EVERY_S
        reported = self._reported.status if self._reported is not None else ""  # ``run`` may have been asked for since
        return looked_at or self._news or not waits or status != reported

    async def publish(self, view: RunView, now: float, metrics: Callable[[], list[str]]) -> None:
        """Publish and store the run where it changed, at ``now``, unix seconds.

        Args:
            metrics: returns the names of its metrics in their order: those that are new are published, too.
        """
        self._news, self._shown_at = False, now
        run = self.shown(view)
        pushed = structs.asdict(run)
        if self._pushed_metrics != view.metric_count:
            pushed["metrics"] = metrics()[min(self._pushed_metrics, view.metric_count) :]
        self._pushed_metrics = view.metric_count
        changed = self.changed or view != self._reported
        self.changed, self._reported = False, view
        if changed or self._channel:
            self._channel.publish({"type": "run", "run": pushed})
        if changed:
            self._overview.publish({"type": "run", "run": structs.asdict(listed(run))})
        await self._save(view, now)

    async def _save(self, view: RunView, now: float) -> None:
        if (view, self.updated) == self._saved:
            return
        saved, _ = self._saved
        counts_only = saved is not None and _at_once(view) == _at_once(saved)
        if counts_only and 0 <= now - self._saved_at < SAVE_EVERY_S:
            return
        try:
            await self._fence.write(stored_view(self._run_id, view, self.updated))
            if not counts_only or not 0 <= now - self._noted_at < NOTE_EVERY_S:
                await self._index.note_reported(self._run_id, self.updated)
                self._noted_at = now
            self._saved, self._saved_at = (view, self.updated), now
        except (RedisError, OSError) as error:
            self._news = True
            _log.log(logging.WARNING, f"run {self._run_id}: summary not stored: {answer_of(error)}")


def stored_view(run_id: str, view: RunView, updated: float) -> Write:
    """Return the write of the worker's view, for the time without a worker."""
    return ("HSET", RunKeys(run_id).meta, "view", msgspec.json.encode(view), "updated", repr(updated))


def _fields(view: RunView) -> dict[str, Any]:
    """Return the run shown by ``view``, also where it is a whole Run."""
    return {name: getattr(view, name) for name in RunView.__struct_fields__}
