"""Commands are read as servers of before stored them, and are written as they were."""

from __future__ import annotations

from pathlib import Path
from typing import Any, get_args

import msgspec
import orjson
import pytest

from stabilitybackend.schema.commands import END_STATES, KINDS, OPEN_STATES, Command, Kind, State, read_command

#: Written by the server as it was while commands were dicts; the last one by a server that knew no ``unpromised``.
STORED = orjson.loads((Path(__file__).parent / "stored_commands.json").read_bytes())


@pytest.mark.parametrize("stored", STORED, ids=lambda one: f"{one['kind']} {one['state']}")
def test_a_stored_command_is_written_as_it_was(stored: dict[str, Any]) -> None:
    # ``retry`` was a note of the server to itself: it follows from what the ranks report.
    expected = {name: value for name, value in stored.items() if name != "retry"}
    assert orjson.loads(msgspec.json.encode(read_command(stored))) == expected


def test_what_a_newer_server_says_beside_it_is_passed_over() -> None:
    assert read_command(STORED[0] | {"colour": "red"}) == read_command(STORED[0])


def test_a_kind_that_is_not_known_is_no_command() -> None:
    with pytest.raises(msgspec.ValidationError, match="replay_step"):
        read_command(STORED[0] | {"kind": "replay_step"})


def test_every_kind_has_a_line_in_the_table_and_a_struct() -> None:
    leaves = [kind for one in Command.__subclasses__() for kind in (one.__subclasses__() or [one])]
    assert sorted(KINDS) == sorted(get_args(Kind)) == sorted(kind.kind for kind in leaves)


def test_a_state_is_open_or_ended_or_acted() -> None:
    assert OPEN_STATES | END_STATES | {"acted"} == set(get_args(State))
