"""A policy is read whole or not at all: what is wrong is said with file, line, the given and the allowed values."""

from __future__ import annotations

import contextlib
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stabilitybackend.acting.autopilot.policy import Limit, Policy, read_policy
from stabilitybackend.base.yaml_file import MAX_YAML_CHARS, BadYaml


def test_what_a_policy_does_not_name_has_its_default() -> None:
    assert read_policy("dry_run: true") == Policy(dry_run=True)
    text = """
        act_on: [spike]
        wait_steps: 30
        changes: [skip_batches]
        checkpoints: announced
        limit: {actions: 1, in_steps: 500}
    """
    expected = Policy(
        act_on=("spike",), wait_steps=30, changes=("skip_batches",), checkpoints="announced", limit=Limit(1, 500)
    )
    assert read_policy(text) == expected


@pytest.mark.parametrize(
    ("text", "line", "says"),
    [
        ("wait_steps: 40\nact_on: [spike, level_shift]", 2, "'level_shift', expected one of spike, divergence, nonf"),
        ("dry_run: on_monday", 1, "'on_monday', expected true or false"),
        ("limit:\n  in_steps: 1000\n  actions: 11", 3, "limit.actions is 11, expected a whole number from 1 to 10"),
        ("wait_steps: true", 1, "wait_steps is True, expected a whole number from 0 to 10,000"),
        ("\n\nwait_step: 3", 3, "'wait_step' is not known"),
        ("checkpoints: [verified]", 1, "checkpoints is a list, expected one of verified, announced"),
        ("changes: [seed, seed]", 1, "each once"),
        ("act_on: []", 1, "expected some of"),
        ("dry_run: true\ndry_run: false", 2, "first in line 1"),
        ("a: &x 1\nb: *x", 1, "anchor"),
        ("dry_run: [", 1, "no YAML"),
        ("- dry_run", 1, "the file holds a list"),
        ("", 1, "the policy is empty"),
        ("dry_run: !!python/object/apply:os.getcwd []", 1, "a tag (tag:yaml.org,2002:python/object/apply:os.getcwd)"),
    ],
)
def test_what_is_wrong_is_said_with_its_line(text: str, line: int, says: str) -> None:
    with pytest.raises(BadYaml, match=re.escape(says)) as error:
        read_policy(text, "night.yaml")
    assert error.value.message.startswith(f"night.yaml, line {line}: ")
    assert error.value.hint


def test_a_text_without_end_is_refused_before_it_is_read() -> None:
    with pytest.raises(BadYaml, match="expected at most"):
        read_policy("#" * (MAX_YAML_CHARS + 1))


@given(st.text(max_size=200))
def test_whatever_somebody_types_is_a_policy_or_an_error_with_a_line(text: str) -> None:
    with contextlib.suppress(BadYaml):
        read_policy(text)
