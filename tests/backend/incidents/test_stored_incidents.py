"""Incidents as version 62f28c5 stored them, one for each kind and state, are read and written as they were."""

from __future__ import annotations

from pathlib import Path

import msgspec
import orjson
import pytest

from stabilitybackend.schema.evidence import CurveFacts, Nearby, facts
from stabilitybackend.schema.incidents import as_json, decoded, encoded
from stabilitybackend.schema.kinds import kind_of
from stabilitybackend.schema.reading import Misfit
from support.stored.incident import stored

#: What an advice has since, as it is for one of then.
SINCE = {"until_step": None, "fix_first": "", "leads": ""}
#: What an incident has since.
TRAIN = {"train": "", "nth": 1, "notify_at": 0.0, "recurring": False, "caused_by": ""}
STORED = (Path(__file__).parents[2] / "stored" / "incidents.jsonl").read_bytes().splitlines()


@pytest.mark.parametrize("data", STORED, ids=range(len(STORED)))
def test_a_stored_incident_is_written_again_with_nothing_but_its_kinds_words_and_fields_since(data: bytes) -> None:
    incident = decoded(data)
    kind = kind_of(incident.kind)
    words = {"label": kind.label, "about": kind.about, "alarm": incident.alarm}
    words |= {"status": incident.status, "status_word": incident.appearance.word}
    then = orjson.loads(data)
    if then["suggestion"] is not None:
        words["suggestion"] = SINCE | then["suggestion"]
    assert orjson.loads(encoded(incident)) == then | TRAIN | words


@pytest.mark.parametrize("data", [one for one in STORED if b'"verdict"' in one])
def test_a_stored_verdict_has_the_fields_of_its_type_and_no_other(data: bytes) -> None:
    incident = decoded(data)
    assert msgspec.to_builtins(incident.verdict) == incident.evidence["verdict"]


def test_what_a_plug_in_writes_under_a_name_of_ours_counts_as_not_there_where_it_is_something_else() -> None:
    evidence = {
        "gradients": "?",
        "explained_by": 3,
        "nearby": [7, {"what": "fork", "distance": "NaN"}],
        "level_after": 2,
    }
    assert facts(evidence, CurveFacts) == CurveFacts(nearby=[Nearby(what="fork")], level_after=2.0)
    assert facts({"nearby": [7] * 30}, CurveFacts) == CurveFacts()


def test_a_fact_that_there_is_none_of_stands_in_no_evidence() -> None:
    assert as_json(stored("hang"))["evidence"] == {"key": "", "detector": "", "now_step": 100}


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"[]",
        b"7",
        b'{"kind": "process_death"}',
        b'{"kind": "hang", "evidence": 3}',
        STORED[0].replace(b'"open"', b'"ajar"'),
    ],
)
def test_what_is_no_incident_is_refused_with_its_beginning(data: bytes) -> None:
    with pytest.raises(Misfit, match="came, expected an incident"):
        decoded(data)
