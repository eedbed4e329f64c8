"""``stabilityboard keys``: keys of one project, and who made and ended which."""

from __future__ import annotations

import io
import json
import sys

import pytest

from support.cli_program import Program


def test_a_key_is_made_for_a_project_and_its_life_is_written_down(program: Program) -> None:
    code, key, said = program("keys", "create", "llm job", "--scope", "agent", "--project", "llm")
    key_id = key.split("_")[1]
    assert (code, f"key {key_id} (agent, project llm) for 'llm job'" in said) == (0, True)
    _, listed, _ = program("keys", "list")
    assert [word in listed for word in (key_id, "llm job", "agent", "works")] == [True] * 4
    assert program("keys", "revoke", key_id, "--yes")[0] == 0
    _, log, _ = program("keys", "audit")
    lines = [line for line in log.splitlines() if key_id in line]
    assert ["key.revoke" in lines[0], "key.create" in lines[1]] == [True, True]
    assert key.strip() not in log


def test_a_key_of_which_nothing_is_said_deletes_nothing(program: Program) -> None:
    _, _, said = program("keys", "create", "anna")
    assert "(agent, read, command)" in said
    code, _, said = program("keys", "create", "bob", "--scope", "owner")
    assert (code, "expected some of agent, read, propose, command, admin" in said) == (1, True)


def test_a_role_is_a_name_for_scopes_and_the_list_has_it(program: Program) -> None:
    assert "(read, command)" in program("keys", "create", "anna", "--role", "operator")[2]
    keys = json.loads(program("keys", "list", "--json")[1])["keys"]
    assert [(key["name"], key["role"], key["scopes"]) for key in keys] == [("anna", "operator", ["read", "command"])]
    assert not {"sha256", "key"} & keys[0].keys()
    code, _, said = program("keys", "create", "bob", "--role", "owner")
    assert (code, "expected one of viewer, operator, admin, agent, assistant" in said) == (1, True)
    assert program("keys", "create", "bob", "--role", "viewer", "--scope", "admin")[0] == 1


def test_the_last_key_goes_only_with_a_yes_and_the_way_back_is_named(
    program: Program, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO("n\n"))
    first, last = (program("keys", "create", name)[1].split("_")[1] for name in ("first", "last"))
    assert program("keys", "revoke", first)[0] == 0
    code, _, said = program("keys", "revoke", last)
    assert (code, "the last key that works" in said) == (1, True)
    assert program("keys", "open")[0] == 1
    code, _, said = program("keys", "revoke", last, "--json")
    assert (code, "add --yes" in said) == (2, True)
    code, _, said = program("keys", "revoke", last, "--yes")
    assert (code, "stabilityboard keys open" in said) == (0, True)
    code, said, _ = program("keys", "open")
    assert (code, "need no key now" in said) == (0, True)
    assert "key.open" in program("keys", "audit")[1]
