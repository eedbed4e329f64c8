"""A job that comes up again reads its plan: the same on all ranks of a node, until it has served."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest

from stabilityclient import SettingError, read_plan
from stabilityclient.plan import MAX_PLAN_AGE_S, mark_used, write_plan


def _plan(**more: Any) -> dict[str, Any]:
    now = time.time()
    plan = {"version": 1, "run_id": "r", "written": now, "received": now, "action": "relaunch"}
    return plan | {"checkpoint": {"step": 40, "path": "c"}} | more


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("STABILITY_RUN_ID", "STABILITY_DIR", "STABILITY_PLAN", "STABILITY_MODE"):
        monkeypatch.delenv(name, raising=False)
    (tmp_path / "r").mkdir()
    return tmp_path


def test_every_rank_reads_the_same_plan_however_often_it_asks(folder: Path) -> None:
    plan = _plan()
    write_plan(str(folder / "r"), plan)
    assert [read_plan(folder, "r"), read_plan(folder, "r")] == [plan, plan]
    assert read_plan(folder, "other") is None


def test_a_plan_has_served_when_a_process_that_started_after_it_saved_a_checkpoint(folder: Path) -> None:
    plan = _plan(received=time.time() - 100)
    write_plan(str(folder / "r"), plan)
    mark_used(str(folder / "r"), plan["received"] - 1)  # the old process, whose checkpoint came late
    assert read_plan(folder, "r") == plan
    mark_used(str(folder / "r"), plan["received"] + 5)
    mark_used(str(folder / "r"), plan["received"] - 1)
    assert read_plan(folder, "r") is None
    newer = _plan()
    write_plan(str(folder / "r"), newer)
    assert read_plan(folder, "r") == newer


def test_a_job_on_more_nodes_than_before_finds_the_newest_plan(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STABILITY_NODE", "n7")
    (folder / "r@n7").mkdir()
    write_plan(str(folder / "r"), _plan(received=time.time() - 50))
    newest = _plan()
    newest["written"] += 1
    write_plan(str(folder / "r@n7"), newest)
    assert read_plan(folder, "r") == newest


def test_the_newest_of_the_launchers_file_and_the_nodes_counts_and_serves_once_as_well(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    launched = _plan(text="of the launcher", written=time.time() - 10)
    write_plan(str(folder / "r"), _plan(text="of the node", written=time.time() - 20))
    del launched["received"]
    file = folder / "shared.json"
    file.write_text(json.dumps(launched))
    monkeypatch.setenv("STABILITY_PLAN", str(file))
    monkeypatch.setenv("STABILITY_RUN_ID", "r")
    monkeypatch.setenv("STABILITY_DIR", str(folder))
    assert read_plan() == launched
    mark_used(str(folder / "r"), time.time())
    assert read_plan() is None


@pytest.mark.parametrize(
    "plan",
    [
        _plan(version=2),
        _plan(action="stop"),
        _plan(run_id="x"),
        _plan(received=time.time() - MAX_PLAN_AGE_S - 60),
        [1, 2],
    ],
)
def test_a_plan_that_is_not_for_this_job_is_no_plan(folder: Path, plan: Any) -> None:
    (folder / "r" / "plan.json").write_text(json.dumps(plan))
    assert read_plan(folder, "r") is None


def test_a_torn_plan_is_an_error_in_tests_and_no_plan_in_training(
    folder: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    (folder / "r" / "plan.json").write_bytes(b'{"version": 1, "run')
    with pytest.raises(ValueError, match="Unterminated"):
        read_plan(folder, "r")
    monkeypatch.delenv("PYTEST_CURRENT_TEST")
    monkeypatch.delenv("PYTEST_VERSION", raising=False)
    assert read_plan(folder, "r") is None
    assert "read_plan()" in caplog.text


@pytest.mark.parametrize("used", [b"{", b'{"started": [1]}', b'{"started": 1e999}', b"[" * 100_000])
def test_a_damaged_mark_takes_no_plan_away_and_is_written_anew(
    folder: Path, monkeypatch: pytest.MonkeyPatch, used: bytes
) -> None:
    for name in ("PYTEST_CURRENT_TEST", "PYTEST_VERSION"):
        monkeypatch.delenv(name, raising=False)
    plan = _plan(received=time.time() - 100)
    write_plan(str(folder / "r"), plan)
    (folder / "r" / "plan.used").write_bytes(used)
    monkeypatch.setenv("STABILITY_PLAN", str(folder / "r" / "plan.used"))
    assert read_plan(folder, "r") == plan
    mark_used(str(folder / "r"), plan["received"] + 5)
    assert read_plan(folder, "r") is None


def test_nobody_gets_a_plan_of_an_unknown_run(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(SettingError, match="STABILITY_RUN_ID"):
        read_plan(folder)
    monkeypatch.setenv("STABILITY_MODE", "disabled")
    assert read_plan(folder) is None
