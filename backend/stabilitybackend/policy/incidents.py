"""Keeps the incidents of one run: findings become one incident per real event, with an advice and a history.

Pure: no I/O and no clock. The worker stores what comes back. Incidents are dicts in the shape of ``docs/api.md``;
what the book needs to go on after a restart (key, detector, newest step judged) stands in their ``evidence``, so
``load`` needs nothing else.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Container, Iterable, Iterator, Mapping
from typing import Any

from stabilitybackend.detectors.contract import SEVERITIES, Finding
from stabilitybackend.policy.advice import has_advice, suggest
from stabilitybackend.policy.going_back import Usable, spoiling
from stabilitybackend.schema.kinds import KINDS, kind_of

#: Incidents kept per run. Beyond it the oldest ones that are over are dropped and counted.
MAX_INCIDENTS = 2_000
#: Entries and characters that evidence may have: it is shown to people and travels in every update.
MAX_EVIDENCE_ENTRIES = 64
MAX_EVIDENCE_CHARS = 2_000
MAX_EVIDENCE_DEPTH = 4

__all__ = ["MAX_INCIDENTS", "IncidentBook"]


class IncidentBook:
    """All incidents of one run.

    Args:
        run_id: the run.
    """

    def __init__(self, run_id: str) -> None:
        self.run_id = run_id
        self._incidents: dict[str, dict[str, Any]] = {}
        self._by_key: dict[str, str] = {}
        #: Incidents dropped because there were more than MAX_INCIDENTS.
        self.dropped = 0

    def load(self, incidents: Iterable[Mapping[str, Any]]) -> None:
        """Take over stored incidents, in any order, instead of what is held."""
        self._incidents.clear()
        self._by_key.clear()
        for incident in sorted(incidents, key=lambda incident: (incident["opened"], incident["incident_id"])):
            self._keep(_copied(incident) | _described(incident["kind"], incident["severity"]))

    def all(self) -> list[dict[str, Any]]:
        """Return copies of all incidents, newest first."""
        newest_first = sorted(
            self._incidents.values(), key=lambda i: (i["opened"], i["onset_step"], i["incident_id"]), reverse=True
        )
        return [_copied(incident) for incident in newest_first]

    def get(self, incident_id: str) -> dict[str, Any] | None:
        """Return a copy of one incident, or None."""
        incident = self._incidents.get(incident_id)
        return None if incident is None else _copied(incident)

    def of(self, kinds: Container[str]) -> list[dict[str, Any]]:
        """Return copies of the incidents of some kinds, in the order in which they were opened."""
        return [_copied(incident) for incident in self._incidents.values() if incident["kind"] in kinds]

    def spoiling(self) -> list[Mapping[str, Any]]:
        """Return the open incidents that one would go back for, to be read only."""
        return spoiling(self._incidents.values())

    def culprits(self) -> set[int]:
        """Return the ranks that the verdicts of open incidents blame."""
        open_ones = (i for i in self._incidents.values() if i["state"] == "open" and not i["dead"])
        verdicts = [i["evidence"].get("verdict") or {} for i in open_ones if kind_of(i["kind"]).blames]
        return {rank for verdict in verdicts for rank in verdict.get("culprits") or ()}

    def segments(self) -> set[int]:
        """Return the segments in which incidents opened."""
        return {incident["segment"] for incident in self._incidents.values()}

    def versions(self, kinds: Container[str]) -> list[tuple[str, int]]:
        """Return (id, version) of the incidents of some kinds: whether anything changed costs no copies."""
        return [(name, one["version"]) for name, one in self._incidents.items() if one["kind"] in kinds]

    def open_count(self) -> int:
        """Return how many incidents are open, without those that are only worth knowing (``info`` of a detector)."""
        return sum(1 for _ in self._open_ones())

    def worst(self) -> dict[str, Any] | None:
        """Return id, kind, severity and title of the worst open incident, the newest where several are as bad."""
        worst = max(self._open_ones(), key=lambda i: (SEVERITIES.index(i["severity"]), i["opened"]), default=None)
        return worst and {name: worst[name] for name in ("incident_id", "kind", "severity", "title")}

    def stopper(self, status: str) -> str | None:
        """Return the id of the open incident that stops the job, the newest of the kind that its status speaks of."""
        every = ((incident, kind_of(incident["kind"])) for incident in self._incidents.values())
        stops = [
            (kind.status != status, list(KINDS).index(kind.name), -incident["opened"], incident["incident_id"])
            for incident, kind in every
            if kind.stops_job and incident["state"] == "open" and not incident["dead"]
            # With most faults of a GPU the job goes on.
            if kind.about != "gpu" or incident["severity"] == "critical"
        ]
        return min(stops)[-1] if stops else None

    def _open_ones(self) -> Iterator[dict[str, Any]]:
        every = self._incidents.values()
        return (i for i in every if i["state"] == "open" and i["alarm"])

    def near(
        self, kinds: Container[str], first_step: float, last_step: float, since: float, until: float, *, but: str
    ) -> list[tuple[int, str, str]]:
        """Return (onset step, kind, title) of the incidents of some kinds near a step or a time, in order of steps.

        Args:
            kinds: which ones.
            first_step, last_step: both inclusive.
            since, until: unix seconds, both inclusive; either the step or the time has to fit.
            but: key of an incident that is left out.
        """
        found = [
            (incident["onset_step"], incident["kind"], incident["title"])
            for incident in self._incidents.values()
            if incident["kind"] in kinds
            and (first_step <= incident["onset_step"] <= last_step or since <= incident["opened"] <= until)
            and incident["evidence"].get("key") != but
        ]
        return sorted(found)

    def apply(self, finding: Finding, *, segment: int, time: float, checkpoints: Usable) -> dict[str, Any] | None:
        """Take a finding and return the incident that it opened or changed.

        A finding of an event that is known already changes that incident; one that says nothing new, or that is older
        than what the incident knows (points fed again), changes nothing.

        Args:
            finding: what a detector or the liveness monitor said.
            segment: segment in which the finding's step lies; an incident keeps the one in which it opened.
            time: unix seconds, of the point or of the server.
            checkpoints: those that can be gone back to, for the suggestion.

        Returns:
            A copy of the incident with its version one higher (1 for a new one), or None if nothing changed.
        """
        old = self._incidents.get(self._by_key.get(finding.key, ""))
        if old is not None and finding.now_step < old["evidence"]["now_step"]:
            return None
        new = self._blank(finding, segment, time) if old is None else _copied(old)
        closed = None if finding.state == "open" else new["evidence"].get("closed_step", finding.now_step)
        for name in _TAKEN_OVER:
            new[name] = getattr(finding, name)
        new |= _described(finding.kind, finding.severity)
        new["score"] = finding.score if math.isfinite(finding.score) else 0.0
        new["resolved"] = None if finding.state == "open" else (new["resolved"] or time)
        new["evidence"] = _clean(finding.evidence) | {
            "key": finding.key,
            "detector": finding.detector,
            "now_step": finding.now_step,
        }
        if closed is not None:
            new["evidence"]["closed_step"] = closed
        new["suggestion"] = suggest(new, checkpoints, finding.now_step, self._incidents.values())
        return self._commit(old, new, time)

    def refresh_suggestions(self, checkpoints: Usable, time: float) -> list[dict[str, Any]]:
        """Make the suggestions of open incidents anew after the checkpoints changed; return what changed.

        Args:
            checkpoints: those that can be gone back to. time: unix seconds.
        """
        every = self._incidents.values()
        concerned = [one for one in every if one["state"] == "open" and not one["dead"] and has_advice(one["kind"])]
        changed = []
        for old in concerned:
            new = _copied(old)
            new["suggestion"] = suggest(new, checkpoints, new["evidence"]["now_step"], every)
            changed.append(self._commit(old, new, time))
        return [incident for incident in changed if incident is not None]

    def rolled_back(
        self, fork_step: int, dead_segments: set[int], time: float, new_segment: int, reason: str
    ) -> list[dict[str, Any]]:
        """Take note that points after ``fork_step`` of ``dead_segments`` are dead; return the incidents that changed.

        Incidents whose onset is dead become dead, and resolved if they were open; so do those that nobody had seen yet
        at the fork. One that was seen before the fork and ended after it is open again. Incidents about processes are
        marked, but what happened has happened.

        Args:
            fork_step: the step whose state the new segment starts from.
            dead_segments: ids of the segments that have points which died now.
            time: unix seconds.
            new_segment: id of the segment that starts.
            reason: why, as given by whoever went back.
        """
        changed = []
        for old in list(self._incidents.values()):
            if old["segment"] not in dead_segments or old["dead"]:
                continue
            of_machine = kind_of(old["kind"]).of_machine
            dies = old["onset_step"] > fork_step or (old["step"] > fork_step and not of_machine)
            if not dies and (of_machine or old["evidence"]["now_step"] <= fork_step):
                continue
            new = _copied(old)
            if dies:
                new["dead"] = True
                if not of_machine:
                    self._die(new, fork_step, time, new_segment, reason)
            else:
                _go_back(new, fork_step)
            changed.append(self._commit(old, new, time))
        return [incident for incident in changed if incident is not None]

    def acknowledge(self, incident_id: str, who: str, time: float) -> dict[str, Any] | None:
        """Write down who has seen an incident and return it, None if there is none such. The first one stands."""
        old = self._incidents.get(incident_id)
        if old is None:
            return None
        if old["acknowledged_by"] is None:
            new = _copied(old)
            new["acknowledged_by"], new["acknowledged"] = who, time
            if kind_of(new["kind"]).about == "user" and new["state"] == "open":
                new["state"], new["resolved"] = "resolved", time  # the job said it once; nothing else will end it
            self._commit(old, new, time)
        return self.get(incident_id)

    def _die(self, incident: dict[str, Any], fork_step: int, time: float, new_segment: int, reason: str) -> None:
        incident["evidence"] |= {
            "rolled_back_to": fork_step,
            "rolled_back_into": new_segment,
            "rolled_back_because": reason,
        }
        if incident["state"] == "open":
            incident["state"] = "resolved"
            incident["resolved"] = time
        incident["suggestion"] = None
        incident["text"] += f" The run went back to step {fork_step}; this happened on the branch that was left."

    def _blank(self, finding: Finding, segment: int, time: float) -> dict[str, Any]:
        incident_id = _incident_id(self.run_id, finding, segment)
        # Seen first after a fork that came later than its onset, and now again: receivers count its versions.
        dead = self._incidents.get(incident_id)
        return {
            "incident_id": incident_id,
            "run_id": self.run_id,
            "segment": segment,
            "opened": time,
            "updated": time,
            "resolved": None,
            "acknowledged_by": None,
            "acknowledged": None,
            "dead": False,
            "version": 0 if dead is None else dead["version"],
            "evidence": {},
        }

    def _commit(self, old: dict[str, Any] | None, new: dict[str, Any], time: float) -> dict[str, Any] | None:
        if old == new:
            return None
        if old is not None and _without_position(old) == _without_position(new):
            self._incidents[new["incident_id"]] = new  # a newer step judged alike: remembered, not news
            return None
        new["version"] += 1
        new["updated"] = time
        self._keep(new)
        return _copied(new)

    def _keep(self, incident: dict[str, Any]) -> None:
        incident_id, key = incident["incident_id"], incident["evidence"].get("key")
        self._incidents[incident_id] = incident
        reachable = key is not None and (not incident["dead"] or kind_of(incident["kind"]).of_machine)
        if reachable:
            self._by_key[key] = incident_id
        elif self._by_key.get(key) == incident_id:
            del self._by_key[key]
        if len(self._incidents) > MAX_INCIDENTS:
            self._drop_one()

    def _drop_one(self) -> None:
        """Drop the oldest incident that is over; the oldest of all when every one is open."""
        oldest = min(self._incidents.values(), key=lambda i: (i["state"] == "open", i["opened"], i["incident_id"]))
        del self._incidents[oldest["incident_id"]]
        key = oldest["evidence"].get("key")
        if self._by_key.get(key) == oldest["incident_id"]:
            del self._by_key[key]
        self.dropped += 1


#: Fields of an incident that are the finding's own.
_TAKEN_OVER = (
    "kind",
    "severity",
    "state",
    "title",
    "text",
    "metric",
    "dataset",
    "rank",
    "node",
    "onset_step",
    "step",
    "peak_step",
    "recovered_step",
    "recovery",
)


def _described(kind: str, severity: str) -> dict[str, Any]:
    """Return what an incident says of its kind, for those who do not have the table, and whether it is an alarm."""
    known = kind_of(kind)
    return {"label": known.label, "about": known.about, "alarm": severity != "info" or known.about == "user"}


def _incident_id(run_id: str, finding: Finding, segment: int) -> str:
    """Return the id that this event has whoever computes it: a second worker or a re-feed names the same incident."""
    parts = (run_id, finding.kind, finding.metric, finding.rank, segment, finding.onset_step, finding.key)
    return "i-" + hashlib.sha256("\0".join(map(str, parts)).encode()).hexdigest()[:16]


def _without_position(incident: Mapping[str, Any]) -> dict[str, Any]:
    return {**incident, "evidence": {**incident["evidence"], "now_step": None}}


def _go_back(incident: dict[str, Any], fork_step: int) -> None:
    """Undo what became known about an incident after the fork; its detector will say anew how it goes on."""
    evidence = incident["evidence"]
    closed = evidence.get("closed_step", evidence["now_step"])
    evidence["now_step"] = fork_step
    if incident["recovery"] is not None:
        recovered = incident["recovered_step"]
        if recovered is None or recovered > fork_step:
            incident["recovery"] = "pending"
    if incident["state"] != "open" and closed > fork_step:
        incident |= {"state": "open", "recovered_step": None, "resolved": None}
        evidence.pop("closed_step", None)
        incident["text"] += f" That was on a branch that was left: the run went back to step {fork_step}."


def _copied(incident: Mapping[str, Any]) -> dict[str, Any]:
    """Return a copy of an incident, in a fifth of the time of ``copy.deepcopy``: it is copied at each change."""
    return {name: _copied_entry(entry) for name, entry in incident.items()}


def _copied_entry(entry: Any) -> Any:
    if isinstance(entry, dict):
        return _copied(entry)
    return [_copied_entry(one) for one in entry] if isinstance(entry, list) else entry


def _clean(value: Any, depth: int = 0) -> Any:
    """Return evidence that is JSON: bounded, string keys, and non-finite numbers as the API spells them."""
    if isinstance(value, bool | int | None):
        return value
    if isinstance(value, float):
        if math.isfinite(value):
            return value
        return "NaN" if math.isnan(value) else ("Infinity" if value > 0 else "-Infinity")
    if isinstance(value, Mapping) and depth < MAX_EVIDENCE_DEPTH:
        entries = list(value.items())[:MAX_EVIDENCE_ENTRIES]
        return {str(name)[:200]: _clean(entry, depth + 1) for name, entry in entries}
    if isinstance(value, list | tuple | set | frozenset) and depth < MAX_EVIDENCE_DEPTH:
        return [_clean(entry, depth + 1) for entry in list(value)[:MAX_EVIDENCE_ENTRIES]]
    return str(value)[:MAX_EVIDENCE_CHARS]
