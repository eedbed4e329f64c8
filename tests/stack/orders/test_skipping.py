"""Ranks of a real PyTorch job leave out the same updates, although one of them alone met the bad batches."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from support.ports import free_port as another_port
from support.processes import Ranks, Server


@pytest.mark.soak
@pytest.mark.torch
def test_all_ranks_leave_out_the_same_updates_and_their_weights_stay_alike(tmp_path: Path, free_port: int) -> None:
    with Server(tmp_path / "data", free_port) as server:
        meet = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(another_port())}
        with Ranks(
            "orders/skipping_rank.py", [], url=server.url, folder=tmp_path / "spool", run_id="skips", **meet
        ) as ranks:
            first, second = [json.loads(lines[0]) for lines in ranks.outputs()]
        assert first == second
        assert (first["skipped"], first["finite"]) == ([100, 140], True)
        series = server.get("/runs/skips/series", metric="skipped_updates")["series"]
        assert {one["rank"]: one["steps"] for one in series} == {0: [100, 140], 1: [100, 140]}
