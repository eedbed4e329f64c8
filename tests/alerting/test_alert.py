"""Stored incidents as alerts, and entries that earlier versions left in Redis."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from redis.asyncio import Redis

from stabilityalerting import Alert, BadAlert
from stabilityalerting.due import DueLater
from stabilitybackend.schema.incidents import encoded
from support.incident_stream import incident
from support.stored.incident import stored


def test_a_stored_incident_is_an_alert() -> None:
    alert = Alert.from_json(encoded(stored("hang")))
    assert (alert.kind, alert.label, alert.about, alert.status) == ("hang", "Hang", "process", "open")
    assert (alert.acknowledged_by, alert.acknowledged, alert.project) == ("", 0.0, "")


def test_evidence_of_a_plug_in_under_another_shape_counts_as_absent() -> None:
    evidence = {"verdict": "bad", "class": 7, "exception": ["E"]}
    alert = Alert.from_json(msgspec.json.encode(incident(evidence=evidence)))
    assert (alert.verdict, alert.cause) == (None, "")


@pytest.mark.parametrize(
    "changes", [{"severity": "grave"}, {"version": "1"}, {"title": None}, {"text": 7}, {"suggestion": "wait"}]
)
def test_a_field_of_another_type_is_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(BadAlert, match="incident event can't be read"):
        Alert.from_json(msgspec.json.encode(incident() | changes))


async def test_an_incident_that_an_earlier_version_put_into_the_list_leaves_it(redis: Redis) -> None:
    await redis.zadd("sb:alerting:due:lead", {'["stream", "run-1", "i-1"]': 1.0})
    due = DueLater(redis, "lead")
    assert await due.ripe(2.0) == [("stream", "run-1", "i-1")]
    await due.drop("stream", "run-1", "i-1")
    assert await due.ripe(2.0) == []
