"""What an agent reports is of its type when it is followed: what does not fit is left out and named."""

from __future__ import annotations

from typing import Any, cast

from msgspec import UNSET, to_builtins

from stabilitybackend.schema.health import TYPED_HEALTH, RankHealth, TypedHealth, read_health
from stabilityclient.wire import Health, decode_message, encode_message
from support import bad_events


def _read(**changes: Any) -> tuple[RankHealth, list[str]]:
    """Return the first rank of a whole message in which some fields are others, and what was left out."""
    health = bad_events.health()
    health.ranks[0] |= changes
    agent, left_out = read_health(_came(health))
    return agent.ranks[0], left_out


def _came(health: Health) -> Health:
    came: Any = decode_message(encode_message(health))
    return cast(Health, came)


def test_what_a_real_agent_reports_is_shown_as_it_came() -> None:
    came = to_builtins(bad_events.health())
    read, left_out = read_health(bad_events.health())
    shown = to_builtins(read)
    assert ([{**rank, "status": None} for rank in came["ranks"]], came["agent_state"], left_out) == (
        [{**rank, "phases": {"data": [12, 1.5, 0.4]}} for rank in shown["ranks"]], shown["agent_state"], []
    )  # fmt: skip


def test_a_message_that_fits_its_types_says_the_same_as_one_that_is_read_freely() -> None:
    data = encode_message(bad_events.health())
    typed: Any = decode_message(data, TYPED_HEALTH)
    assert isinstance(typed, TypedHealth)
    assert to_builtins(read_health(typed)) == to_builtins(read_health(_came(bad_events.health())))


def test_what_the_server_judges_itself_is_not_taken_from_a_message_that_fits_its_types() -> None:
    health = bad_events.health()
    health.ranks[0] |= {"status": "dead", "budget_s": 5.0}
    typed: Any = decode_message(encode_message(health), TYPED_HEALTH)
    rank = read_health(typed)[0].ranks[0]
    assert (isinstance(typed, TypedHealth), rank.status, rank.budget_s) == (True, None, UNSET)


def test_what_a_newer_agent_reports_beside_is_passed_over_and_the_server_judges_itself() -> None:
    rank, left_out = _read(thermal={"zones": b"bytes"}, proc={"state": "R", "numa": 1}, status="lost", budget_s=-1)
    assert (to_builtins(rank)["proc"], rank.status, to_builtins(rank).get("budget_s"), left_out) == (
        {"state": "R"}, None, None, []
    )  # fmt: skip


def test_a_field_of_another_type_is_left_out_and_named_with_what_came() -> None:
    rank, told = _read(step={"a": 1}, beat=True, phases={"data": [1, "x", 2]})
    assert (rank.step, rank.beat, rank.phases) == (None, None, None)
    assert told[0] == "step: Expected `int | null`, got `object`, {'a': 1} came"
    assert len(told) == 3


def test_a_rank_without_a_name_is_passed_over_and_the_others_are_read() -> None:
    rank, told = _read(rank="zero")
    assert rank.rank == 1
    assert told == ["a rank, rank: Expected `int | null`, got `str`, 'zero' came"]
