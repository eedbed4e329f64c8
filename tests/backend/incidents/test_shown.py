"""What the API says of an incident beside what is stored: where it ended, and what people can do about it."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from stabilitybackend.judging.incidents.suggestion import over
from stabilitybackend.schema.incidents import Incident, Suggestion, encoded, shown

BACK = Suggestion(action="roll_back", to_step=150)
WAIT = Suggestion(action="wait")


def incident(kind: str = "spike", **more: Any) -> Incident:
    """Return an open incident since step 200, seen at step 203, at its worst at step 210."""
    facts: dict[str, Any] = {
        "incident_id": "i-1", "run_id": "r", "segment": 0, "opened": 1.0, "updated": 2.0, "version": 1, "evidence": {},
        "kind": kind, "severity": "critical", "state": "open", "title": "", "text": "", "onset_step": 200, "step": 203,
        "peak_step": 210, "now_step": 230,
    }  # fmt: skip
    return Incident(**facts | more)


@pytest.mark.parametrize(
    ("one", "until_step"),
    [
        (incident(), None),
        (incident(recovered_step=220, state="recovered"), 220),
        (incident(state="resolved"), 210),
        (incident(state="resolved", dead=True), None),
        (incident("alert", state="resolved"), 200),
    ],
    ids=["open", "recovered", "resolved", "its branch was discarded", "raised by the job"],
)
def test_where_an_incident_ended_is_known_as_soon_as_it_can_not_grow(one: Incident, until_step: int | None) -> None:
    assert shown(one).until_step == until_step


@pytest.mark.parametrize(
    ("one", "actions"),
    [
        (incident(), ["acknowledge", "roll_back", "show_batches"]),
        (incident(acknowledged_by="ada"), ["roll_back", "show_batches"]),
        (incident(dead=True), ["acknowledge", "show_batches"]),
        (incident(state="resolved"), ["show_batches"]),
        (incident("hang", suggestion=WAIT), ["acknowledge", "restart", "dump_stacks"]),
        (incident("hang", suggestion=BACK), ["acknowledge", "roll_back", "restart", "dump_stacks"]),
        (incident("hang", state="resolved"), ["dump_stacks"]),
    ],
    ids=["open", "acknowledged", "discarded", "resolved", "a hang", "a hang to roll back for", "a hang that is over"],
)
def test_what_can_be_done_about_an_incident_follows_from_its_kind_and_state(one: Incident, actions: list[str]) -> None:
    assert shown(one).actions == actions


ACKED = {"acknowledged_by": "ada"}
OVER = {"state": "resolved"}


@pytest.mark.parametrize(
    ("one", "status", "word"),
    [
        (incident(), "open", "open"),
        (incident(**ACKED), "acknowledged", "acknowledged"),
        (incident(state="recovered", **ACKED), "recovered", "recovered"),
        (incident("hang", recovered_step=9, **OVER), "resolved", "resolved"),
        (incident("hang", **OVER), "ended", "ended"),
        (incident("throughput", **OVER), "accepted", "has not come back"),
        (incident("resume_artifact", **OVER), "accepted", "has not come back"),
        (incident("level_shift", severity="info", **OVER), "accepted", "Accepted as the new level"),
        (incident("level_shift", evidence={"regained": True}, **OVER), "resolved", "resolved"),
        (incident(dead=True, **OVER), "discarded", "discarded by rollback"),
        (incident("hang", dead=True, **OVER), "ended", "ended"),
    ],
)
def test_what_became_of_an_incident_is_one_word_for_all_who_show_it(one: Incident, status: str, word: str) -> None:
    assert (shown(one).status, shown(one).status_word) == (status, word)


@pytest.mark.parametrize(
    ("one", "words"),
    [
        (incident(state="recovered"), "Nothing to do: it came back."),
        (incident("hang", recovered_step=9, **OVER), "Nothing to do: it is resolved."),
        (incident("hang", **OVER), "Nothing to do for this one: the job ended with it."),
        (incident("throughput", **OVER), "It has not come back; its level counts as the usual one since."),
    ],
)
def test_advice_about_what_is_over_calls_it_resolved_only_where_it_is(one: Incident, words: str) -> None:
    assert over(one).text.startswith(words)


@pytest.mark.parametrize(
    ("one", "since"),
    [
        (incident("hang", evidence={"verdict": {"since": 0.5}, "since": 0.7}), 0.5),
        (incident("gpu_fault", evidence={"since": 0.7}), 0.7),
        (incident("gpu_fault", evidence={"since": "long"}), 1.0),
        (incident("data_mix_drift", evidence={"since": 200}), 1.0),
    ],
    ids=["last progress", "first sign", "nonsense", "a step is no time"],
)
def test_since_when_an_incident_lasts_is_the_best_that_is_known(one: Incident, since: float) -> None:
    assert shown(one).since == since


def test_neither_is_stored() -> None:
    stored = msgspec.json.decode(encoded(incident()))

    assert msgspec.to_builtins(shown(incident())).keys() - stored.keys() == {"until_step", "actions", "since"}
