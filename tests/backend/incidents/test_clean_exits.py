"""Whom the others wait for because it left the job in order is known by fields."""

from __future__ import annotations

from typing import Any

import pytest

from stabilitybackend.acting.commands.restart_plan import RestartFacts, make_plan
from stabilitybackend.fleet.interruptions import JobStop, judge
from stabilitybackend.judging.incidents.rollback_target import UsableOf
from stabilitybackend.judging.incidents.suggest import suggest
from stabilitybackend.schema.incidents import Incident
from support.jobs.watched_job import Job, source
from support.stored.incident import stored

NOW = 1_000.0
VERDICT = {"class": "peer_missing", "culprits": [3], "nodes": ["n1"], "confidence": "high", "text": "Rank 3 is gone."}
#: Evidence of a rank that was done first.
DONE_FIRST = {"finished": [3], "left": [], "why": "rank 3 was through"}
#: Evidence of ranks that were not, though words may sound like it.
NOT_DONE = [
    {"finished": [], "left": [], "why": "it has finished, while the others still wait for it"},
    {"finished": [], "left": [3], "why": "it has left, while the others still wait for it"},
    {"why": "never joined all_reduce #7 of default_pg, in which rank 0 waits"},
    {},
]


def hang(evidence: dict[str, Any], **more: Any) -> Incident:
    return stored("hang", opened=NOW, rank=3, node="n1", evidence={"verdict": VERDICT, **evidence}, **more)


def advised(evidence: dict[str, Any]) -> str:
    found = suggest(hang(evidence), UsableOf([]), 100, ())
    assert found is not None
    return found.text


def excluded(evidence: dict[str, Any]) -> list[str]:
    incidents = [hang(evidence), hang(evidence, incident_id="before", state="resolved")]
    return make_plan("run", RestartFacts("stalled", "", incidents, [], {"n0", "n1"}, 0), NOW + 99.0).exclude_nodes


@pytest.mark.parametrize(("end", "state"), [("finish", "finished"), ("left", "left")])
def test_a_hang_says_in_a_field_which_suspects_left_in_order(end: str, state: str) -> None:
    job = Job(nodes={"a": [0, 1], "b": [2, 3]})
    job.run(60)
    job.event(end, 1, {"source": source(1), "rank": 1})
    job.stuck[1] = {"alive": False, "state": state}
    (found,) = [one for one in job.run(15, moving=False) if one.kind == "hang"][-1:]
    assert {name: found.evidence[name] for name in ("suspects", "finished", "left")} == {
        "suspects": [1],
        "finished": [],
        "left": [],
        state: [1],
    }


def test_of_a_rank_that_only_stands_no_field_says_that_it_left() -> None:
    job = Job(nodes={"a": [0, 1], "b": [2, 3]})
    job.run(60)
    job.stuck[1] = {"phase": "data"}
    (found,) = [one for one in job.run(15, moving=False) if one.kind == "hang"][-1:]
    assert (found.evidence["suspects"], found.evidence["finished"], found.evidence["left"]) == ([1], [], [])


def test_who_was_done_first_has_unequal_data_whatever_the_words() -> None:
    category = judge(JobStop(hangs=[hang(DONE_FIRST)])).category
    assert ("as many batches" in advised(DONE_FIRST), category) == (True, "software_bug")


@pytest.mark.parametrize("evidence", NOT_DONE)
def test_nobody_is_called_done_by_words_beside_a_field_or_by_other_words(evidence: dict[str, Any]) -> None:
    category = judge(JobStop(hangs=[hang(evidence)])).category
    assert ("as many batches" in advised(evidence), category) == (False, "nccl_timeout")


@pytest.mark.parametrize(
    ("evidence", "left_out"),
    [(DONE_FIRST, []), (NOT_DONE[0], ["n1"]), (NOT_DONE[1], []), (NOT_DONE[2], ["n1"])],
)
def test_a_node_is_not_left_out_because_its_rank_left_in_order_twice(
    evidence: dict[str, Any], left_out: list[str]
) -> None:
    assert excluded(evidence) == left_out
