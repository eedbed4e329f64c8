"""A cause comes before its consequence, and the consequence names it, in whatever order they are seen."""

from __future__ import annotations

from typing import Any

import pytest

from stabilitybackend.judging.detectors.engine.base import Finding
from stabilitybackend.judging.incidents.incidents import IncidentBook
from stabilitybackend.judging.incidents.rollback_target import UsableOf
from stabilitybackend.schema.incidents import Incident
from stabilitybackend.schema.runs import WorstIncident

ON_GPU = {"gpu": {"uuid": "GPU-5", "index": 2, "node": "n0", "ranks": [5]}, "ranks": [5], "since": 90.0}


def found(kind: str, evidence: dict[str, Any], severity: Any = "critical", **more: Any) -> Finding:
    given: dict[str, Any] = {
        "detector": "liveness", "key": kind, "kind": kind, "state": "open", "severity": severity, "title": f"A {kind}",
        "text": "", "onset_step": 100, "step": 100, "now_step": 100, "evidence": evidence,
    }  # fmt: skip
    return Finding(**given | more)


def hang(culprit: int = 5, since: float = 100.0, gpu: str | None = "GPU-5") -> Finding:
    gpus = [] if gpu is None else [{"rank": culprit, "uuid": gpu}]
    return found("hang", {"verdict": {"culprits": [culprit], "nodes": ["n0"], "gpus": gpus, "since": since}})


def xid(severity: Any = "critical") -> Finding:
    return found("gpu_fault", ON_GPU, severity)


def death(hung: str | None = None) -> Finding:
    deaths = [{"source": "r7-1-1", "rank": 7, "node": "n0", "step": 100, "time": 95.0}]
    return found("process_death", {"deaths": deaths, "hung": None if hung is None else {"key": hung}, "since": 95.0})


def slow(severity: Any) -> Finding:
    return found("straggler", {"slow": [2], "since": 95.0}, severity, detector="straggler")


def book_of(*findings: Finding) -> IncidentBook:
    book = IncidentBook("run")
    for at, finding in enumerate(findings):
        book.apply(finding, segment=0, time=100.0 + at, checkpoints=UsableOf(()))
    return book


def causes(book: IncidentBook) -> dict[str, str]:
    """Return the kind of each incident that follows from another -> the kind of that."""
    kinds = {one.incident_id: one.kind for one in book.all()}
    return {one.kind: kinds[one.caused_by] for one in book.all() if one.caused_by}


@pytest.mark.parametrize(
    ("findings", "expected"),
    [
        ([xid(), hang()], {"hang": "gpu_fault"}),
        ([hang(), xid()], {"hang": "gpu_fault"}),
        ([xid(), hang(culprit=3, gpu="GPU-3")], {}),
        ([xid(), hang(gpu=None)], {"hang": "gpu_fault"}),
        ([xid("info"), hang()], {}),
        ([slow("info"), found("throughput", {}, "warning")], {"throughput": "straggler"}),
        ([found("throughput", {}, "warning"), slow("info")], {"throughput": "straggler"}),
        ([death(), hang()], {"hang": "process_death"}),
        ([hang(), death(hung="hang")], {"process_death": "hang"}),
        ([hang(since=2_000.0), death()], {}),
        ([xid("warning"), found("throughput", {"since": 95.0}, "warning")], {"throughput": "gpu_fault"}),
    ],
    ids=[
        "on its GPU", "the kernel log came later", "of another GPU", "of its rank", "only worth knowing",
        "a slow rank is waited for", "a slow rank was seen later",
        "a process died and the others wait", "the watchdog ended what hung", "long after", "it throttles",
    ],
)  # fmt: skip
def test_an_incident_names_what_it_follows_from(findings: list[Finding], expected: dict[str, str]) -> None:
    assert causes(book_of(*findings)) == expected


def test_a_consequence_that_is_known_later_to_have_a_cause_is_news() -> None:
    book = book_of(hang())
    changed = book.apply(xid(), segment=0, time=101.0, checkpoints=UsableOf(()))
    assert [(one.kind, one.version) for one in changed] == [("gpu_fault", 1), ("hang", 2)]


def test_a_run_is_as_ill_as_the_worst_and_is_called_by_its_cause() -> None:
    book = book_of(xid("warning"), hang())
    fault: Incident = book.of({"gpu_fault"})[0]
    assert book.worst() == WorstIncident(fault.incident_id, "gpu_fault", "critical", "A gpu_fault", 90.0, advice="wait")


def test_a_cause_that_is_over_leaves_the_consequence_as_the_worst() -> None:
    book = book_of(xid(), hang(), found("gpu_fault", ON_GPU, state="resolved", now_step=101))
    worst = book.worst()
    assert worst is not None
    assert (worst.kind, causes(book)) == ("hang", {"hang": "gpu_fault"})
