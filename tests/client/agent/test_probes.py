"""What another process sees of a rank in each state, and that looking harms none of them.

Does the heart beat, does the main thread run what the heart asks for, does the step move, what does /proc say, do
stacks come on the signal: the fields are those of ``docs/wire.md`` (slot).
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from stabilityclient.agent.watch.probes import tree_cpu_s
from stabilityclient.rank_state.slot import SlotView, read_slot
from support.agent.stuck_rank import STATES, usual_state
from support.waiting import wait_until

_SCRIPT = Path(__file__).parents[2] / "support" / "agent" / "stuck_rank.py"
#: Beats of the healthy rank between the two looks at all of them.
_BEATS = 8
#: State -> (heart beats, main thread runs what is asked, step moves, states in /proc).
_TABLE = {
    "healthy": (True, True, True, "RS"),
    "livelock": (True, True, False, "R"),
    "queue_get": (True, False, False, "S"),
    "c_sleep": (True, False, False, "S"),
    "gil_held": (False, False, False, "S"),
    "stopped": (False, False, False, "T"),
}


class _Rank:
    """A process in one state, and what its slot said first and last."""

    def __init__(self, state: str, folder: Path) -> None:
        self.state = state
        env = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
        self.process = subprocess.Popen(
            [sys.executable, str(_SCRIPT), state, str(folder)],
            env={**env, "STABILITY_MODE": "offline"},
            stdout=subprocess.PIPE,
            text=True,
        )
        self._sources = folder / state / "sources"

    @property
    def home(self) -> Path:
        return next(self._sources.iterdir())

    def slot(self) -> SlotView:
        seen = read_slot(str(self.home / "slot"))
        assert isinstance(seen, SlotView), seen
        return seen

    def look(self) -> tuple[SlotView, str]:
        return self.slot(), usual_state(self.process.pid)


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, _Rank]]:
    """All states at once: the healthy rank's beats are the clock of the others."""
    folder = tmp_path_factory.mktemp("ranks")
    ranks = {state: _Rank(state, folder) for state in STATES}
    try:
        for rank in ranks.values():
            assert rank.process.stdout is not None
            assert rank.process.stdout.readline() == "in\n"
        yield ranks
    finally:
        for rank in ranks.values():
            rank.process.kill()
            rank.process.communicate()


def _wait_beats(rank: _Rank, beats: int, since: int | None = None) -> None:
    until = (rank.slot().beat if since is None else since) + beats
    wait_until(lambda: rank.slot().beat >= until, 30, f"{beats} beats of the rank that is {rank.state}")


@pytest.fixture(scope="module")
def looks(ranks: dict[str, _Rank]) -> dict[str, tuple[tuple[SlotView, str], tuple[SlotView, str]]]:
    _wait_beats(ranks["healthy"], 3)  # a request that was open when the state began may still have been served
    before = {state: rank.look() for state, rank in ranks.items()}
    _wait_beats(ranks["healthy"], _BEATS)
    for state in ("livelock", "queue_get", "c_sleep"):  # on a busy machine a heart is slow
        _wait_beats(ranks[state], 4, before[state][0].beat)
    return {state: (before[state], rank.look()) for state, rank in ranks.items()}


@pytest.mark.parametrize("state", _TABLE)
def test_the_free_probes_tell_the_states_apart(
    looks: dict[str, tuple[tuple[SlotView, str], tuple[SlotView, str]]], state: str
) -> None:
    (before, _), (after, proc) = looks[state]
    assert before.pending is not None
    assert after.pending is not None
    beats, runs, steps = after.beat - before.beat, after.pending - before.pending, after.step - before.step
    assert (beats > 0, runs > 1, steps > 0) == _TABLE[state][:3], (beats, runs, steps)
    assert proc in _TABLE[state][3]


@pytest.mark.parametrize("state", _TABLE)
def test_a_rank_in_any_state_gives_its_stacks_on_the_signal_and_lives_on(
    ranks: dict[str, _Rank],
    looks: dict[str, tuple[tuple[SlotView, str], tuple[SlotView, str]]],
    state: str,
) -> None:
    rank = ranks[state]
    os.kill(rank.process.pid, rank.slot().dump_signal)
    if state == "stopped":
        assert (rank.home / "stacks").read_bytes() == b""
        os.kill(rank.process.pid, signal.SIGCONT)
    stacks = wait_until(
        lambda: (text := (rank.home / "stacks").read_text()).count(" in main\n") and text, 10, f"stacks of {state}"
    )
    assert f" in {state}\n" in stacks
    _wait_beats(ranks["healthy"], 2)
    assert rank.process.poll() is None
    if _TABLE[state][0]:
        _wait_beats(rank, 1)


def test_the_cpu_time_of_a_tree_holds_that_of_its_threads_and_children() -> None:
    code = "import time\nwhile time.process_time() < 0.5: pass\nprint('used', flush=True)\ninput()"
    before = tree_cpu_s(os.getpid())
    with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == b"used\n"
        after = tree_cpu_s(os.getpid())
        child.communicate(b"\n")
    assert before is not None
    assert after is not None
    assert after - before >= 0.48  # the kernel counts in ticks of 10 ms


def test_of_a_process_that_is_gone_or_has_too_many_descendants_the_cpu_time_is_not_known(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("stabilityclient.agent.watch.probes.MAX_TREE", 1)
    with subprocess.Popen(["sleep", "60"]) as child:
        assert tree_cpu_s(os.getpid()) is None
        child.kill()
        child.wait()
        assert tree_cpu_s(child.pid) is None
