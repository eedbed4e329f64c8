"""One process is one rank under every launcher, or it does not say ready."""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from stabilityclient.identity import RankIdentity, Ranks, hand_down
from stabilityclient.rollback.arbiter import MemoryArbiter
from stabilityclient.rollback.boundary import Boundary
from stabilityclient.settings import ClientSettings


class _Store:
    """torch's store as far as it is asked: the first value stands."""

    def __init__(self) -> None:
        self._values: dict[str, str] = {}

    def compare_set(self, key: str, expected: str, value: str) -> bytes:
        return self._values.setdefault(key, value).encode()


def _torch(monkeypatch: pytest.MonkeyPatch, rank: int, world_size: int, store: _Store | None = None) -> None:
    said = SimpleNamespace(
        is_available=lambda: True, is_initialized=lambda: True, get_rank=lambda: rank, get_world_size=lambda: world_size
    )
    monkeypatch.setitem(sys.modules, "torch.distributed", said)  # type: ignore[arg-type]
    core = SimpleNamespace(_get_default_store=lambda: store or _Store())
    monkeypatch.setitem(sys.modules, "torch.distributed.distributed_c10d", core)  # type: ignore[arg-type]


def _resolve(environ: dict[str, str]) -> ClientSettings:
    return ClientSettings({"project": "p"}, environ, lambda: str(time.time_ns()))


LAUNCHERS = [
    pytest.param({"RANK": "3", "WORLD_SIZE": "4", "LOCAL_RANK": "1"}, (3, 4, 1, False), id="torchrun"),
    pytest.param({"LOCAL_RANK": "1", "NODE_RANK": "0", "WORLD_SIZE": "2"}, (1, 2, 1, False), id="lightning"),
    pytest.param({"LOCAL_RANK": "1", "NODE_RANK": "1", "WORLD_SIZE": "4"}, (1, 4, 1, True), id="lightning-node-1"),
    pytest.param({"NODE_RANK": "1"}, (0, 1, 0, True), id="lightning-node-1-before-fit"),
    pytest.param({"WORLD_SIZE": "2"}, (0, 2, 0, True), id="spawn-with-world-size"),
    pytest.param({"SLURM_PROCID": "5", "SLURM_NTASKS": "8", "SLURM_LOCALID": "1"}, (5, 8, 1, False), id="srun"),
    pytest.param({}, (0, 1, 0, False), id="one-process"),
]


@pytest.mark.parametrize(("environ", "who"), LAUNCHERS)
def test_a_rank_is_what_the_launcher_says_and_a_guess_is_called_one(
    environ: dict[str, str], who: tuple[int, int, int, bool]
) -> None:
    ranks = Ranks(environ)
    assert (ranks.rank, ranks.world_size, ranks.local_rank, ranks.guessed) == who


def test_where_torch_is_initialised_before_init_it_says_the_rank_and_its_store_the_run_id(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    store, found = _Store(), []
    for rank in (0, 1):
        _torch(monkeypatch, rank, 2, store)
        found.append(_resolve({}))
    assert [(one.ranks.rank, one.ranks.world_size) for one in found] == [(0, 2), (1, 2)]
    assert found[0].run_id == found[1].run_id


def test_a_further_rank_takes_run_and_folder_of_the_process_that_started_it(monkeypatch: pytest.MonkeyPatch) -> None:
    environ = {"LOCAL_RANK": "1", "NODE_RANK": "0", "WORLD_SIZE": "2"}
    hand_down(environ, "theirs", "/spool/theirs")
    parent = os.getpid()
    monkeypatch.setattr(os, "getppid", lambda: parent)
    found = _resolve(environ)
    assert (found.run_id, found.folder) == ("theirs", "/spool/theirs")


def test_a_process_of_its_own_below_another_run_takes_nothing_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    environ: dict[str, str] = {}
    hand_down(environ, "theirs", "/spool/theirs")
    parent = os.getpid()
    monkeypatch.setattr(os, "getppid", lambda: parent)
    assert _resolve(environ).run_id != "theirs"


def _answer(folder: Path, ranks: Ranks, world_size: int, twin: int | None = None) -> tuple[list[tuple[str, str]], Any]:
    """Return what a rank says to an order for ``world_size`` ranks, and the arbiter afterwards."""
    said: list[tuple[str, str]] = []
    arbiter = MemoryArbiter()
    boundary = Boundary(
        str(folder), ranks.rank, ranks.world_size, lambda command_id, attempt: arbiter,
        lambda c, state, detail, step: said.append((state, detail)), identity=RankIdentity(ranks, lambda: twin),
    )  # fmt: skip
    boundary.offer(rollbacks=True)
    now = time.time()
    command = {
        "command_id": "c1", "kind": "rollback", "to_step": 3, "issued": now, "expires": now + 600, "attempt": 1,
        "fence": {"segment": 0, "segment_key": ""}, "apply_at_step": 8, "world_size": world_size, "state": "pending",
    }  # fmt: skip
    (folder / "commands").mkdir()
    (folder / "commands" / "c1.json").write_text(json.dumps(command))
    boundary.check(5, None)
    boundary.close()
    return said, arbiter


def test_a_rank_that_torch_calls_another_refuses_and_says_both_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _torch(monkeypatch, 1, 2)
    said, arbiter = _answer(tmp_path, Ranks({}), 1)
    assert said[0][0] == "rejected"
    assert "calls itself rank 0 of 1, torch.distributed says rank 1 of 2" in said[0][1]
    assert arbiter.decision() == "abort"


def test_a_rank_that_became_one_of_two_after_init_is_ready_for_an_order_to_two(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _torch(monkeypatch, 0, 2)
    said, arbiter = _answer(tmp_path, Ranks({}), 2)
    assert [state for state, _ in said] == ["ready"]
    assert not arbiter.all_ready(2)


@pytest.mark.parametrize(
    ("environ", "twin", "why"),
    [({"WORLD_SIZE": "2"}, None, "no launcher gave"), ({}, 4711, "process 4711 of this node")],
    ids=["guessed", "twin"],
)
def test_a_rank_that_is_a_guess_or_has_a_twin_refuses(
    environ: dict[str, str], twin: int | None, why: str, tmp_path: Path
) -> None:
    ranks = Ranks(environ)
    said, arbiter = _answer(tmp_path, ranks, ranks.world_size, twin)
    assert said[0][0] == "rejected"
    assert why in said[0][1]
    assert arbiter.decision() == "abort"
