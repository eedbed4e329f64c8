"""Boundaries with an agreement that breaks in the middle: no rank is left believing what the others don't."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest

from stabilityclient.rollback.arbiter import ABORT, COMMIT, MemoryArbiter
from stabilityclient.rollback.boundary import Boundary

Said = list[tuple[str, str]]


class LostReceipt(MemoryArbiter):
    """The word arrives, its receipt doesn't: what a connection that breaks in the middle looks like to a rank."""

    def mark_ready(self, rank: int) -> None:
        super().mark_ready(rank)
        raise ConnectionError("the connection was reset")


class Gone(MemoryArbiter):
    """Nothing can be reached, neither to give a word nor to take it back."""

    def mark_ready(self, rank: int) -> None:
        raise ConnectionError("no route to host")

    def decide(self, decision: str) -> str:
        raise ConnectionError("no route to host")


class GoneLater(MemoryArbiter):
    """The word is given, then nothing can be reached."""

    def decision(self) -> str | None:
        raise ConnectionError("no route to host")


def _boundary(folder: Path, arbiter: MemoryArbiter, said: Said) -> Boundary:
    """Return rank 0 of 2 with an order to go back before step 8."""
    boundary = Boundary(
        str(folder),
        0,
        2,
        lambda command_id, attempt: arbiter,
        lambda c, state, detail, step: said.append((state, detail)),
    )
    boundary.offer(rollbacks=True)
    now = time.time()
    command: dict[str, Any] = {
        "command_id": "c1", "kind": "rollback", "to_step": 3, "issued": now, "expires": now + 600, "attempt": 1,
        "fence": {"segment": 0, "segment_key": ""}, "apply_at_step": 8, "world_size": 2, "state": "pending",
    }  # fmt: skip
    (folder / "commands").mkdir()
    (folder / "commands" / "c1.json").write_text(json.dumps(command))
    return boundary


def test_a_word_whose_receipt_is_lost_is_taken_back_before_the_others_act_on_it(tmp_path: Path) -> None:
    arbiter, said = LostReceipt(), []
    boundary = _boundary(tmp_path, arbiter, said)
    assert boundary.check(5, None) is None
    MemoryArbiter.mark_ready(arbiter, 1)
    assert arbiter.all_ready(2)
    assert arbiter.decide(COMMIT) == ABORT
    assert [state for state, _ in said] == ["aborted"]
    assert "the connection was reset" in said[0][1]


def test_an_agreement_that_stood_before_the_lost_receipt_is_reported_as_failed(tmp_path: Path) -> None:
    arbiter, said = LostReceipt(), []
    arbiter.decide(COMMIT)
    boundary = _boundary(tmp_path, arbiter, said)
    assert boundary.check(5, None) is None
    assert [state for state, _ in said] == ["failed"]


@pytest.mark.parametrize(("arbiter", "states"), [(Gone(), ["rejected"]), (GoneLater(), ["ready", "failed"])])
def test_a_store_that_is_gone_is_said_and_training_goes_on(
    arbiter: MemoryArbiter, states: list[str], tmp_path: Path
) -> None:
    said: Said = []
    boundary = _boundary(tmp_path, arbiter, said)
    assert [boundary.check(step, None) for step in (5, 8, 9)] == [None, None, None]
    assert [state for state, _ in said] == states
    assert "no route to host" in said[-1][1]
