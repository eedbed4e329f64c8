"""A word of Health is of its type when it is followed: what does not fit is left out, what is new passes."""

from __future__ import annotations

import copy
from typing import Any

from stabilitybackend.schema.health import read_health
from stabilityclient.wire import decode_message, encode_message
from support import bad_events


def _read(**changes: Any) -> tuple[dict[str, Any], list[str]]:
    """Return the first rank of a whole word in which some fields are others, as it was read, and what was left out."""
    health = bad_events.health()
    health.ranks[0] |= changes
    read: Any = decode_message(encode_message(health))
    told = read_health(read)
    return read.ranks[0], told


def test_a_whole_word_of_a_real_agent_is_as_it_came() -> None:
    health = bad_events.health()
    before = copy.deepcopy(health)
    assert read_health(health) == []
    assert health == before


def test_what_a_newer_agent_says_beside_passes() -> None:
    new = {"thermal": {"zones": [1, 2]}, "proc": {"state": "R", "numa": 1}}
    word, told = _read(**new)
    assert ({name: word[name] for name in new}, told) == (new, [])


def test_what_json_can_not_hold_is_left_out_and_named_wherever_it_lies() -> None:
    word, told = _read(thermal=b"bytes", proc={"state": "R", "numa": b"bytes"}, pid=7)
    assert (word["pid"], word["proc"]) == (7, {"state": "R"})
    assert "thermal" not in word
    assert sorted(told) == [
        f"{name} of rank 0 has a value of type bytes, expected what JSON can hold" for name in ("numa", "thermal")
    ]


def test_a_field_of_another_type_is_left_out_and_named_with_what_came() -> None:
    word, told = _read(step={"a": 1}, beat=True, phases={"data": [1, "x", 2]})
    assert not {"step", "beat", "phases"} & word.keys()
    assert told[0] == "step: Expected `int | null`, got `object`, {'a': 1} came"
    assert len(told) == 3


def test_a_rank_without_a_name_is_passed_over_and_the_others_are_read() -> None:
    word, told = _read(rank="zero")
    assert word["rank"] == 1
    assert told == ["a rank, rank: Expected `int | null`, got `str`, 'zero' came"]
