"""Each order 20 times to the demo's job, with kill -9 of server, agent or a rank at random moments: all ranks or none.

    ORDERS=20 SEED=18 FIRST=0 python -m pytest -m soak tests/stack/orders/test_demo_orders.py -s

``SEED`` and the name of a turn draw its order, its victim and the moment: the same again, as far as processes allow;
``FIRST`` is the number of the first turn.
"""

from __future__ import annotations

import os
import random
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from stack.orders.kept_demo import RANKS, KeptDemo, Note, effective
from support.installed import needs
from support.ports import free_port
from support.processes import Server

pytestmark = [needs("torch", "the demo trains with PyTorch"), needs("sklearn", "its images"), pytest.mark.soak]

#: Turns of each kind of order.
ORDERS = int(os.environ.get("ORDERS", "20"))
SEED = int(os.environ.get("SEED", "18"))
FIRST = int(os.environ.get("FIRST", "0"))
VICTIMS = ("nobody", "server", "agent", "rank")
ENDED = ("done", "rejected", "failed", "expired")
#: Kind of turn -> seconds after the order within which somebody is killed: about as long as it is under way.
WITHIN_S = {"checkpoint": 1.0, "rollback": 1.5, "undo": 1.5, "dump": 3.0, "restart": 8.0, "stop": 1.5}
#: What a rank writes down when it acts.
ACTS = {"checkpoint": "on order", "rollback": "restored", "undo": "restored", "restart": "begin", "stop": "stopped"}


def make(kind: str, job: KeptDemo, draw: random.Random) -> Callable[[], dict[str, Any] | None]:
    """Return what makes the order of a turn from what can be ordered now."""
    share, skips, seed, saves = draw.random(), draw.randrange(4), draw.randrange(1 << 16), draw.random() < 0.5

    def order() -> dict[str, Any] | None:
        able = job.get("/orders") if job.steps_since_begin() > 2 else None
        if able is None or not able["stop"]["possible"]:
            return None
        if kind == "checkpoint":
            return {"kind": "checkpoint_now", "expires_s": 60} if able["checkpoint_now"]["possible"] else None
        if kind == "stop":
            return {"kind": "stop", "save": saves, "expires_s": 60}
        if kind == "dump":
            return {"kind": "dump_stacks"}
        offer = job.get("/rollback")
        # Not the newest: what is left then has a checkpoint, to which an undo can go.
        usable = [] if offer is None else [one["step"] for one in offer["checkpoints"] if one["step"] > 0][1:5]
        if not usable:
            return None
        step, accept = usable[int(share * len(usable))], {"accept_inside_incident": True}
        if kind == "restart":
            return {"kind": "restart", "to_step": step, "seed": seed, "grace_s": 10} | accept
        if kind == "rollback":
            return {"kind": "rollback", "to_step": step, "seed": seed, "skip_batches": skips, "expires_s": 60} | accept
        branches = offer["branches"]
        if not branches:
            return None
        at = {"branch": branches[0]["segment"], "to_step": branches[0]["checkpoints"][0]["step"]}
        return {"kind": "rollback", "expires_s": 60} | at | accept

    return order


def check(kind: str, command: dict[str, Any], dead: int | None, new: list[list[Note]]) -> None:
    """Assert what holds of a turn: all ranks have acted at one step, or none.

    Args:
        dead: the rank that was killed. new: what each rank wrote down in this turn.
    """
    done = command["state"] == "done"
    if dead is not None:
        lives = [[notes[: _first(notes, "begin")] for notes in new], [notes[_first(notes, "begin") :] for notes in new]]
        acted = [[note for note in notes if note[0] == ACTS.get(kind)] for notes in lives[0]]
        if kind != "restart":
            # Who had given its word and was killed could not keep it, or not write it down, any more.
            assert abs(len(acted[0]) - len(acted[1])) <= 1, acted
            assert max(map(len, acted)) >= done or kind == "dump", (acted, command["history"])
        again = [[note for note in notes if note[0] in ("restored", "seed")][:2] for notes in lives[1]]
        assert again[0] == again[1], again
        return
    begun = [sum(note[0] == "begin" for note in notes) for notes in new]
    if kind == "restart":
        assert begun == [int(done)] * 2, (begun, command["history"])
        came = [[note for note in notes if note[0] in ("restored", "seed")] for notes in new]
        assert came[0] == came[1], came
        if done:
            wanted = [["restored", command["to_step"], command["checkpoint"]], ["seed", command["seed"]]]
            # The first seed is that of the job's own start.
            assert came[0][-2:] == wanted, (came[0], wanted)
        return
    assert begun == [int(kind == "stop" and done)] * 2, (begun, command["history"])
    if kind == "dump":
        assert done == all(node["state"] == "acted" for node in command["nodes"].values()), command["history"]
        return
    acted = [[note for note in notes[: _first(notes, "begin")] if note[0] == ACTS[kind]] for notes in new]
    assert acted[0] == acted[1], acted
    assert len(acted[0]) == done, (acted, command["history"])
    if not done:
        return
    last = [[note[1] for note in notes[: notes.index(acted[0][0])] if note[0] == "step"] for notes in new]
    assert [steps[-1] for steps in last if steps] == [command["apply_at_step"] - 1] * sum(map(bool, last)), last
    if kind in ("rollback", "undo"):
        assert acted[0][0][1:] == [command["to_step"], command["checkpoint"]]
    elif kind == "checkpoint":
        assert acted[0][0][1] == command["apply_at_step"] - 1
    else:
        assert acted[0][0][1] == command["apply_at_step"]


def _first(notes: list[Note], what: str) -> int:
    return next((at for at, note in enumerate(notes) if note[0] == what), len(notes))


def turn(kind: str, number: int, job: KeptDemo) -> tuple[str, str]:
    """Order it, kill somebody, wait for the end, and see that the job goes on; return who was killed and the end."""
    draw = random.Random(f"{SEED} {kind} {number}")
    order = make(kind, job, draw)
    victim, dead, pause_s = draw.choice(VICTIMS), draw.randrange(2), draw.uniform(0.0, WITHIN_S[kind])
    name = f"{kind}-{number}"
    job.trains_on()
    if kind == "undo" and not job.get("/rollback")["branches"]:
        first, _ = job.order(f"{name}-first", make("rollback", job, draw))
        job.until(lambda: (job.get(f"/commands/{first['command_id']}") or first)["state"] in ENDED, 60, "it has ended")
        job.until(lambda: (job.get("/rollback") or {}).get("branches"), 60, "there is a branch to go back to")
    before: list[int] = []

    def noting_before() -> dict[str, Any] | None:
        found = order()
        before[:] = [len(job.truth(rank)) for rank in RANKS]
        return found

    command, refused = job.order(name, noting_before)
    time.sleep(pause_s)  # a random moment: nothing is waited for
    job.kill(victim, dead)
    path = f"/commands/{command['command_id']}"

    def ended() -> dict[str, Any] | None:
        found: dict[str, Any] | None = job.get(path)
        return found if found is not None and found["state"] in ENDED else None

    def known() -> dict[str, Any] | None:
        found: dict[str, Any] | None = job.get(path)
        over = found is not None and (found["state"] == "done" or time.time() > found["expires"] + found["grace_s"])
        return found if over else None

    command = job.until(ended, 150, f"the order {name} has ended: {job.get(path)}")
    if kind == "stop" and command["state"] == "done":
        job.until(lambda: job.stays_down, 60, "the job is down, and the plan says to leave it")
        job.start()  # by a person
    job.trains_on()
    if "not known" in command["history"][-1]["detail"]:
        # Its agent was killed. Whether it had ended the ranks is known when a process starts, or the order expires.
        command = job.until(known, 120, f"what became of {name} is known")
    elif "are missing" in command["history"][-1]["detail"]:
        command = job.get(path) or command  # the server was killed, and the agent's answer came late
    new = [job.truth(rank)[mark:] for rank, mark in zip(RANKS, before, strict=True)]
    print(
        f"{name} {victim} {dead if victim == 'rank' else ''} after {pause_s:.2f} s: {command['state']} {refused}",
        flush=True,
    )
    check(kind, command, dead if victim == "rank" else None, new)
    later = job.get(path)
    assert later is None or later["state"] == command["state"], (command["history"], later["history"])
    if kind == "checkpoint" and command["state"] == "done" and victim != "rank":
        offered = [one["step"] for one in job.get("/checkpoints")["checkpoints"] if one["available"]]
        assert command["apply_at_step"] - 1 in offered, offered
    return victim, command["state"]


def check_curve(job: KeptDemo) -> None:
    """Assert that the server shows what the model in memory has learned: each step once, with its loss."""
    told = job.server.get(f"/runs/{job.run_id}/series", metric="loss", view="effective", rank=0)["series"]
    shown = sorted((step, value) for one in told for step, value in zip(one["steps"], one["values"], strict=True))
    learned = effective(job.truth(0))
    assert len(shown) > 10
    assert [step for step, _ in shown] == [step for step, _ in learned[: len(shown)]]
    wrong = [(a, b) for a, b in zip(shown, learned, strict=False) if a[1] != pytest.approx(b[1], rel=1e-6)]
    assert not wrong, (len(wrong), wrong[:5])


def test_each_order_to_the_demos_job_is_obeyed_by_all_ranks_at_one_step_or_by_none_whoever_is_killed(
    tmp_path: Path,
) -> None:
    ends: dict[str, Counter[str]] = {kind: Counter() for kind in WITHIN_S}
    defects: list[str] = []
    print(f"SEED={SEED} ORDERS={ORDERS} FIRST={FIRST}")
    with Server(tmp_path / "data", free_port()) as server, KeptDemo(server, tmp_path) as job:
        for number in range(FIRST, FIRST + ORDERS):
            for kind in WITHIN_S:
                try:
                    victim, state = turn(kind, number, job)
                    ends[kind][f"{state} ({victim})"] += 1
                    check_curve(job)
                except AssertionError as error:
                    defects.append(f"{kind}-{number}: {error}")
                    print(defects[-1], flush=True)
                    job.end()  # what follows is judged by itself
                    job.start()
        print(f"{job.starts} starts of the job")
    for kind, counted in ends.items():
        print(kind, dict(sorted(counted.items())))
    assert defects == []
    undone = {kind: count for kind, count in ends.items() if any("(nobody)" in k and "done" not in k for k in count)}
    assert undone == {}
