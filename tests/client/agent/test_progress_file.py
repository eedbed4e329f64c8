"""What a watchdog outside reads: progress, a pause that was ordered and has an end, a job that is stuck, or nothing."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from stabilityclient.agent.sources import Sources
from stabilityclient.agent.watch.progress_file import PAUSE_S, ProgressFile
from stabilityclient.progress import CODES, STALE_S, main, read, verdict_of
from stabilityclient.rank_state.slot import Slot
from stabilityclient.start import start_ticks

NOW = 1_700_000_000.0


class Node:
    """An agent's file over the slot of one rank, which is this process."""

    def __init__(self, folder: Path, **env: str) -> None:
        self.folder, self.now, self.logged = folder, NOW, list[str]()
        self.file = folder / "progress.json"
        (folder / "run.json").write_text(json.dumps({"run_id": "night"}))
        self.slot = self.rank(NOW - 100)
        self.sources = Sources(folder)
        environ = {"STABILITY_PROGRESS_FILE": str(self.file)} | env
        self.written = ProgressFile(folder, environ, "n0", self.sources, self.logged.append, lambda: self.now)

    def rank(self, started: float) -> Slot:
        pid = os.getpid()
        home = self.folder / "sources" / f"r0-{int(started * 1e9):x}-{pid}"
        home.mkdir(parents=True)
        info = {"source": home.name, "rank": 0, "world_size": 1, "local_rank": 0, "node": "n0", "pid": pid}
        info |= {"started": started, "start_ticks": start_ticks(pid)}
        (home / "source.json").write_text(json.dumps(info))
        return Slot(str(home / "slot"), pid=pid, rank=0, world_size=1, started=started)

    def look(self, now: float) -> dict[str, Any]:
        self.now = now
        self.sources.discover()
        for source in self.sources.ranks():
            source.observe()
        self.written.write(at_once=True)
        found = read(str(self.file))
        assert found is not None
        return found

    def verdict(self, now: float, stuck_after_s: float = 60.0) -> str:
        return verdict_of(self.look(now), now, stuck_after_s)[0]


def test_a_rank_that_goes_back_on_order_pauses_until_its_next_step_and_no_longer_than_it_may(tmp_path: Path) -> None:
    node = Node(tmp_path)
    node.slot.set_step(700, NOW)
    assert [node.verdict(NOW + 30), node.verdict(NOW + 90)] == ["progress", "stuck"]
    node.slot.pause(NOW + 10)
    assert [node.verdict(NOW + late) for late in (90, 10 + PAUSE_S - 1, 10 + PAUSE_S + 1)] == [
        "pause",
        "pause",
        "stuck",
    ]
    node.slot.set_step(601, NOW + 40)  # of less height than before: progress all the same
    assert [node.verdict(NOW + 90), node.verdict(NOW + 110)] == ["progress", "stuck"]


def test_a_phase_may_take_what_was_declared_and_half_as_long_again(tmp_path: Path) -> None:
    node = Node(tmp_path)
    node.slot.set_step(5, NOW)
    node.slot.show(b"eval", NOW, 1_000.0)
    assert [node.verdict(NOW + 1_499), node.verdict(NOW + 1_501)] == ["pause", "stuck"]
    assert node.look(NOW)["state"] == "eval"


def test_a_restart_that_was_ordered_is_a_pause_until_the_new_processes_make_steps(tmp_path: Path) -> None:
    node = Node(tmp_path, STABILITY_PAUSE_S="300")
    node.slot.set_step(700, NOW)
    (tmp_path / "plan.json").write_text(json.dumps({"command_id": "c1", "received": NOW + 10}))
    assert [node.verdict(NOW + 200), node.verdict(NOW + 311)] == ["pause", "stuck"]
    new = node.rank(NOW + 150)
    assert node.look(NOW + 200)["state"] == "restart"
    new.set_step(601, NOW + 210)
    assert node.look(NOW + 220)["state"] == "training"


def test_a_setting_that_is_none_and_a_disk_that_takes_nothing_are_in_the_log_once(tmp_path: Path) -> None:
    node = Node(tmp_path, STABILITY_PAUSE_S="long", STABILITY_PROGRESS_FILE=str(tmp_path / "away" / "p.json"))
    node.written.write(at_once=True)
    node.written.write(at_once=True)
    assert node.logged == [
        "STABILITY_PAUSE_S is 'long', expected seconds > 0: 1800 is used",
        "STABILITY_PROGRESS_FILE: p.json can't be written: No such file or directory",
    ]


GOOD = {"version": 1, "written": NOW, "state": "training", "step": 7, "advanced": NOW - 1, "until": None}


@pytest.mark.parametrize(
    ("progress", "verdict"),
    [
        (GOOD, "progress"),
        (GOOD | {"advanced": NOW - 61}, "stuck"),
        (GOOD | {"advanced": None}, "unknown"),
        (GOOD | {"state": "ended", "advanced": NOW - 600}, "over"),
        (GOOD | {"written": NOW - STALE_S - 1, "advanced": NOW - 600}, "unknown"),
        (GOOD | {"written": NOW - 600, "until": NOW + 5, "state": "restart"}, "pause"),
        (GOOD | {"advanced": NOW - 600, "until": NOW - 5, "state": "rollback"}, "stuck"),
        (GOOD | {"version": 2}, "unknown"),
        (GOOD | {"written": "soon", "advanced": True, "until": float("nan")}, "unknown"),
        ({}, "unknown"),
        (None, "unknown"),
    ],
)
def test_only_a_fresh_word_that_nothing_moves_ends_a_job(progress: dict[str, Any] | None, verdict: str) -> None:
    assert verdict_of(progress, NOW, 60.0)[0] == verdict


def test_the_command_answers_with_exit_codes_and_needs_nothing_but_the_standard_library(tmp_path: Path) -> None:
    file = tmp_path / "p.json"
    now = time.time()
    file.write_text(json.dumps(GOOD | {"written": now, "advanced": now - 600}))
    command = [sys.executable, "-m", "stabilityclient.progress", str(file), "--stuck-after", "60"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert (done.returncode, done.stdout[:30]) == (1, "stuck: nothing has moved for 6")
    file.write_bytes(b"\xff{")
    assert main([str(file)]) == 2
    assert sorted(set(CODES.values())) == [0, 1, 2]
