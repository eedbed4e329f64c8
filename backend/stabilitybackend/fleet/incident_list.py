"""The incidents of all runs in one list, in memory, for pages and search.

A server that starts reads the stored incidents once, in the background; then each run reports changes. So an answer
needs no Redis, for any number of runs.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, get_args

import msgspec
from msgspec import structs

from stabilitybackend.base.errors import BadRequest
from stabilitybackend.schema.fleet import IncidentCounts, IncidentPage, ListedIncident, RunNames
from stabilitybackend.schema.incidents import Incident, State
from stabilitybackend.schema.kinds import KINDS, kind_of
from stabilitybackend.schema.severity import INCIDENT_APPEARANCES, IncidentStatus, Severity

__all__ = ["IncidentFilter", "IncidentList"]

#: Closed incidents kept here, newest ones, besides all open ones. 1 KB each.
MAX_OVER = 50_000
#: Dropped together: finding the oldest scans all.
_DROPPED_AT_ONCE = 1_000
_SEVERITIES = get_args(Severity)[::-1]

Key = tuple[int, int, int, int, float, str, str]


@dataclass(frozen=True, slots=True)
class IncidentFilter:
    """Filter of incidents; empty fields match all.

    Args:
        run, project: of the incident's run.
        kinds, severities, states: one of these. since: opened since then, unix seconds.
        acknowledged: by a person, or not.
    """

    run: str | None = None
    project: str | None = None
    kinds: frozenset[str] = frozenset()
    severities: frozenset[str] = frozenset()
    states: frozenset[str] = frozenset()
    since: float | None = None
    acknowledged: bool | None = None

    def __post_init__(self) -> None:
        """Raise BadRequest for an unknown word."""
        for name, given, known in (
            ("severity", self.severities, _SEVERITIES),
            ("state", self.states, get_args(State)),
        ):
            if unknown := given - set(known):
                raise BadRequest(f"{name} is {sorted(unknown)[0]!r:.80}, expected one of {', '.join(known)}")
        if self.since is not None and not math.isfinite(self.since):
            raise BadRequest(f"since is {self.since}, expected unix seconds")

    def lets_through(self, one: ListedIncident) -> bool:
        """Return whether an incident matches, in any state."""
        return (
            (self.run is None or one.run_id == self.run)
            and (not self.kinds or one.kind in self.kinds)
            and (not self.severities or one.severity in self.severities)
            and (self.since is None or one.opened >= self.since)
            and (self.acknowledged is None or (one.acknowledged_by is not None) is self.acknowledged)
        )


class IncidentList:
    """All incidents of one server.

    Args:
        names: returns the present names of a run.
        publish: sends a message to the browsers that see all runs.
        clock: unix seconds now.
    """

    def __init__(
        self, names: Callable[[str], RunNames], publish: Callable[[dict[str, Any]], None], clock: Callable[[], float]
    ) -> None:
        self._names = names
        self._publish = publish
        self._clock = clock
        #: Run -> its incidents by id.
        self._open: dict[str, dict[str, ListedIncident]] = {}
        self._over: dict[str, dict[str, ListedIncident]] = {}
        self._over_count = 0
        self._left_out = 0
        #: Whether the whole store was read.
        self.complete = False

    def stored(self, run_id: str, stored: Iterable[bytes]) -> None:
        """Take the stored incidents of a run; newer reports win, unreadable ones are ignored."""
        for data in stored:
            try:
                one = listed_of(data)
            except (ValueError, msgspec.MsgspecError):
                continue  # it is on its run's own page
            if one.run_id == run_id and self._known(run_id, one.incident_id) is None:
                self._put(one)

    def reported(self, run_id: str, incidents: Iterable[Incident]) -> None:
        """Take just stored incidents of a run, and publish the changed ones."""
        for incident in incidents:
            one = listed(incident)
            if self._known(run_id, one.incident_id) != one:
                self._put(one)
                self._publish({"type": "incident", "incident": self._named(one)})

    def stored_elsewhere(self, run_id: str, events: Iterable[bytes]) -> None:
        """Take incidents of a run stored by another process, oldest first, and publish them."""
        newest: dict[str, ListedIncident] = {}
        for data in events:
            try:
                one = listed_of(data)
            except (ValueError, msgspec.MsgspecError):
                continue  # it is on its run's own page
            newest[one.incident_id] = one
        for one in newest.values():
            if one.run_id == run_id and self._known(run_id, one.incident_id) != one:
                self._put(one)
                self._publish({"type": "incident", "incident": self._named(one)})

    def forget(self, run_id: str) -> None:
        self._open.pop(run_id, None)
        self._over_count -= len(self._over.pop(run_id, ()))

    def page(self, wanted: IncidentFilter, limit: int, cursor: str | None = None) -> IncidentPage:
        """Return ``limit`` incidents: the first ones, or those after ``cursor``.

        Raises:
            BadRequest: an invalid cursor.
        """
        after = None if cursor is None else _key_of(cursor)
        counts = IncidentCounts()
        fitting: list[ListedIncident] = []
        for one in self._every(wanted):
            _count(counts, one)
            if not wanted.states or one.state in wanted.states:
                fitting.append(one)
        rest = fitting if after is None else [one for one in fitting if _key(one) > after]
        found = heapq.nsmallest(limit + 1, rest, _key) if limit else []
        shown = found[:limit]
        return IncidentPage(
            incidents=[self._named(one) for one in shown],
            total=len(fitting),
            counts=counts,
            next=_cursor(shown[-1]) if len(found) > limit > 0 else None,
            complete=self.complete,
            left_out=self._left_out,
            now=self._clock(),
        )

    def all(self, project: str | None = None) -> Iterator[ListedIncident]:
        """Yield every incident, open ones first; with a project only those of its runs."""
        return map(self._named, self._every(IncidentFilter(project=project)))

    def _every(self, wanted: IncidentFilter) -> Iterator[ListedIncident]:
        for half in (self._open, self._over):
            for run_id in [wanted.run] if wanted.run is not None else list(half):
                if wanted.project is not None and self._names(run_id).project != wanted.project:
                    continue
                yield from (one for one in list(half.get(run_id, {}).values()) if wanted.lets_through(one))

    def _named(self, one: ListedIncident) -> ListedIncident:
        run = self._names(one.run_id)
        return structs.replace(one, run_name=run.name or one.run_id, project=run.project)

    def _known(self, run_id: str, incident_id: str) -> ListedIncident | None:
        return self._open.get(run_id, {}).get(incident_id) or self._over.get(run_id, {}).get(incident_id)

    def _put(self, one: ListedIncident) -> None:
        of_run = self._over.get(one.run_id, {})
        if of_run.pop(one.incident_id, None) is not None:
            self._over_count -= 1
        if one.state == "open":
            self._open.setdefault(one.run_id, {})[one.incident_id] = one
            return
        self._open.get(one.run_id, {}).pop(one.incident_id, None)
        self._over.setdefault(one.run_id, {})[one.incident_id] = one
        self._over_count += 1
        if self._over_count > MAX_OVER:
            self._drop_oldest()

    def _drop_oldest(self) -> None:
        every = (one for of_run in self._over.values() for one in of_run.values())
        for one in heapq.nsmallest(_DROPPED_AT_ONCE, every, lambda one: (one.opened, one.incident_id)):
            del self._over[one.run_id][one.incident_id]
            self._over_count -= 1
            self._left_out += 1


def listed(incident: Incident) -> ListedIncident:
    """Return an incident as listed; the names of its run are added when it is shown."""
    suggestion = incident.suggestion
    shared = {name: getattr(incident, name) for name in _SHARED}
    kind = kind_of(incident.kind)
    advice = "" if suggestion is None or suggestion.action == "none" else suggestion.action
    return ListedIncident(
        **shared,
        run_name="",
        project="",
        label=kind.label,
        about=kind.about,
        stops_job=kind.stops_job,
        alarm=incident.alarm,
        status=incident.status,
        since=incident.since,
        advice=advice,
    )


_SHARED = tuple(name for name in ListedIncident.__struct_fields__ if name in Incident.__struct_fields__)


class _ListedAdvice(msgspec.Struct):
    action: str = ""


class _Evidence(msgspec.Struct):
    since: Any = None
    verdict: Any = None


class _StoredIncident(msgspec.Struct, kw_only=True):
    """The fields read of a stored incident: decoding all of its evidence takes ten times as long."""

    run_id: str
    incident_id: str
    kind: str
    severity: Severity
    state: State
    alarm: bool = True
    dead: bool = False
    title: str
    metric: str | None = None
    dataset: str | None = None
    rank: int | None = None
    node: str | None = None
    onset_step: int
    step: int
    opened: float
    updated: float
    resolved: float | None = None
    acknowledged_by: str | None = None
    acknowledged: float | None = None
    train: str = ""
    nth: int = 1
    caused_by: str = ""
    suggestion: _ListedAdvice | None = None
    evidence: _Evidence = msgspec.field(default_factory=_Evidence)
    status: IncidentStatus | None = None
    version: int = 1


_decoder = msgspec.json.Decoder(_StoredIncident)


def listed_of(data: bytes) -> ListedIncident:
    """Return a stored incident as listed. Raises msgspec's errors."""
    stored = _decoder.decode(data)
    kind = kind_of(stored.kind)
    fields = structs.asdict(stored)
    advice, evidence = fields.pop("suggestion"), fields.pop("evidence")
    if stored.status is None or stored.state == "open":
        fields["status"] = "acknowledged" if stored.state == "open" and stored.acknowledged_by else stored.state
    fields["alarm"] = stored.severity != "info" or kind.about == "user"
    return ListedIncident(
        **fields,
        since=_since(evidence, kind.of_machine) or stored.opened,
        run_name="",
        project="",
        label=kind.label,
        about=kind.about,
        stops_job=kind.stops_job,
        advice="" if advice is None or advice.action == "none" else advice.action,
    )


def _since(evidence: _Evidence, of_machine: bool) -> float | None:
    """Return its start by its evidence, as ``Incident.since`` does."""
    verdict = evidence.verdict if isinstance(evidence.verdict, dict) else {}
    known = [one for one in (verdict.get("since"), evidence.since) if isinstance(one, int | float) and one]
    return known[0] if known and of_machine else None


def _key(one: ListedIncident) -> Key:
    """Return the sort key. It depends on the incident alone, so that others do not move it."""
    if one.state != "open":
        return 1, 0, 0, 0, -one.opened, one.run_id, one.incident_id
    place = list(KINDS).index(one.kind) if one.stops_job and one.kind in KINDS else len(KINDS)
    order = INCIDENT_APPEARANCES[one.severity][one.status].order
    return 0, order, int(bool(one.caused_by)), place, -one.opened, one.run_id, one.incident_id


def _cursor(one: ListedIncident) -> str:
    return ":".join(repr(part) if isinstance(part, float) else str(part) for part in _key(one))


def _key_of(cursor: str) -> Key:
    parts = cursor.split(":")
    try:
        over, order, follows, place, opened, run_id, incident_id = parts
        key = int(over), int(order), int(follows), int(place), float(opened), run_id, incident_id
    except ValueError:
        key = 0, 0, 0, 0, math.nan, "", ""
    if math.isnan(key[4]):
        raise BadRequest(f"cursor is {cursor[:80]!r}, expected the value of 'next' in the page before")
    return key


def _count(counts: IncidentCounts, one: ListedIncident) -> None:
    setattr(counts, one.state, getattr(counts, one.state) + 1)
    if one.state == "open":
        setattr(counts, one.severity, getattr(counts, one.severity) + 1)
        if one.alarm:
            counts.alarms += 1
            counts.unacknowledged += one.acknowledged_by is None
