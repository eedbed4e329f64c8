"""run.steps with real processes that share a folder: all ranks act at the same boundary, or none does."""

from __future__ import annotations

import itertools
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import stabilityclient
from support.agent.delivered import answers as _answers
from support.agent.delivered import command as _command
from support.agent.delivered import deliver as _deliver
from support.agent.gateway import Gateway
from support.agent.spooled import child, stored
from support.waiting import PATIENCE, wait_until

Start = Callable[..., stabilityclient.Run]


def test_an_ordered_rollback_calls_the_handler_and_goes_on_behind_the_step(start: Start) -> None:
    run = start()
    calls: list[tuple[stabilityclient.Rollback, list[int]]] = []
    seen: list[int] = []

    @run.on_rollback
    def restore(rollback: stabilityclient.Rollback) -> None:
        calls.append((rollback, list(seen)))

    for step in run.steps(0, 12):
        seen.append(step)
        run.log(step, {"loss": 1.0})
        if len(seen) == 6:
            _deliver(run.folder, _command())
    run.finish()
    assert seen == [*range(8), *range(4, 12)]
    assert calls == [(stabilityclient.Rollback(3, 0.5, 9, 4, "spike", "c1", None, "ada"), list(range(8)))]
    store = stored(run.folder)
    assert [(e.step, e.data["state"], e.data["attempt"]) for e in store.events("command")] == [
        (6, "ready", 1),
        (8, "acted", 1),
    ]
    assert [(e.step, e.data) for e in store.events("segment")] == [
        (
            3,
            {
                "key": "c1",
                "to_step": 3,
                "cause": "command",
                "reason": "spike",
                "command_id": "c1",
                "issuer": "ada",
                "changes": {"lr_scale": 0.5, "seed": 9, "skip_batches": 4},
            },
        )
    ]
    order = [event.type for event in store.events() if event.type in ("segment", "command")]
    assert order == ["command", "segment", "command"]


def test_a_rollback_to_step_0_twice_in_a_row_works(start: Start) -> None:
    run = start()
    run.on_rollback(lambda rollback: None)
    seen: list[int] = []
    for step in run.steps(0, 6):
        seen.append(step)
        if seen == [0, 1]:
            _deliver(run.folder, _command(command_id="c1", to_step=0, apply_at_step=3))
        if seen == [0, 1, 2, 1, 2, 3]:
            fence = {"segment": 1, "segment_key": "c1"}
            _deliver(run.folder, _command(command_id="c2", to_step=0, apply_at_step=5, fence=fence))
    run.finish()
    assert seen == [0, 1, 2, 1, 2, 3, 4, 1, 2, 3, 4, 5]
    assert [event.data["key"] for event in stored(run.folder).events("segment")] == ["c1", "c2"]


def test_a_command_that_was_there_before_the_loop_is_answered_once(start: Start) -> None:
    run = start()
    run.on_rollback(lambda rollback: None)
    _deliver(run.folder, _command(apply_at_step=2, to_step=0))
    assert list(run.steps(0, 4)) == [0, 1, 1, 2, 3]
    run.finish()
    assert _answers(run) == [(0, "ready"), (2, "acted")]


def test_a_command_read_too_late_is_missed_and_its_next_attempt_works(start: Start) -> None:
    run = start()
    run.on_rollback(lambda rollback: None)
    seen = []
    for step in run.steps(0, 20):
        seen.append(step)
        if len(seen) == 10:
            _deliver(run.folder, _command(apply_at_step=8))
        if len(seen) == 12:
            _deliver(run.folder, _command(apply_at_step=15, attempt=2))
    run.finish()
    assert _answers(run) == [(10, "missed"), (12, "ready"), (15, "acted")]
    assert seen == [*range(15), *range(4, 20)]


def test_a_stop_ends_the_loop_before_its_boundary(start: Start) -> None:
    run = start()
    seen = []
    for step in run.steps(0):
        seen.append(step)
        if step == 2:
            _deliver(run.folder, _command(kind="stop", apply_at_step=5))
    run.finish()
    assert seen == [0, 1, 2, 3, 4]
    assert _answers(run) == [(3, "ready"), (5, "acted")]


def test_a_handler_that_raises_is_the_users_and_the_command_failed(start: Start) -> None:
    run = start()

    @run.on_rollback
    def restore(rollback: stabilityclient.Rollback) -> None:
        raise RuntimeError("the checkpoint is broken")

    _deliver(run.folder, _command(apply_at_step=4))
    with pytest.raises(RuntimeError, match="the checkpoint is broken"):
        list(run.steps(0, 10))
    run.finish()
    store = stored(run.folder)
    assert [(e.step, e.data["state"]) for e in store.events("command")] == [(0, "ready"), (4, "failed")]
    assert "RuntimeError: the checkpoint is broken" in store.events("command")[-1].data["detail"]
    assert store.events("segment") == []


def test_a_loop_that_is_left_takes_its_word_back(start: Start) -> None:
    run = start()
    run.on_rollback(lambda rollback: None)
    _deliver(run.folder, _command(apply_at_step=8))
    for step in run.steps(0, 20):
        if step == 4:
            break
    run.finish()
    assert _answers(run) == [(0, "ready"), (4, "aborted")]
    assert (Path(str(run.folder)) / "arbiter" / "c1.1" / "decision").readlink() == Path("abort")


def test_a_declared_rollback_makes_older_commands_stale(start: Start) -> None:
    run = start()
    run.on_rollback(lambda rollback: None)
    seen = []
    for step in run.steps(0, 10):
        seen.append(step)
        if len(seen) == 4:
            _deliver(run.folder, _command(apply_at_step=8, to_step=1))
            run.rolled_back(to_step=2)
    run.finish()
    assert seen == [0, 1, 2, 3, *range(3, 10)]
    assert _answers(run) == [(3, "rejected")]


def test_a_declared_rollback_takes_back_the_word_given_for_a_later_boundary(start: Start) -> None:
    run = start()
    run.on_rollback(lambda rollback: None)
    seen = []
    for step in run.steps(0, 10):
        seen.append(step)
        if len(seen) == 2:
            _deliver(run.folder, _command(apply_at_step=8, to_step=1))
        if len(seen) == 5:
            run.rolled_back(to_step=2)
    run.finish()
    assert seen == [0, 1, 2, 3, 4, *range(3, 10)]
    assert _answers(run) == [(2, "ready"), (8, "aborted")]


def test_the_steps_go_on_after_a_declared_rollback_in_a_disabled_run_too(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STABILITY_MODE", "disabled")
    run = start()
    seen = []
    for step in run.steps(0, 5):
        seen.append(step)
        if len(seen) == 4:
            run.rolled_back(to_step=1)
    assert seen == [0, 1, 2, 3, 2, 3, 4]


def test_a_broken_command_file_neither_stops_training_nor_hides_the_next_command(start: Start, quiet: None) -> None:
    run = start()
    run.on_rollback(lambda rollback: None)
    folder = Path(str(run.folder)) / "commands"
    (folder / "broken.json").write_text("{")
    (folder / "list.json").write_text("[]")
    _deliver(run.folder, _command(apply_at_step=4))
    assert list(run.steps(0, 6)) == [0, 1, 2, 3, 4, 5]
    run.finish()
    assert _answers(run) == [(0, "ready"), (4, "acted")]


_RANK = """
import json, os, sys, time
import stabilityclient
plan = json.loads(os.environ["PLAN"])
rank = int(os.environ["RANK"])
run = stabilityclient.init(run_id="r", dir=plan["dir"])
acted, seen = [], []
if rank != plan.get("no_handler"):
    @run.on_rollback
    def restore(rollback):
        acted.append(seen[-1] + 1)
open(os.path.join(plan["dir"], f"up.{rank}"), "w").close()
while not os.path.exists(os.path.join(plan["dir"], "go")):
    time.sleep(0.002)
if rank == plan.get("never_reads"):
    run._components.boundary._files.new = lambda: []
for step in run.steps(0, plan["stop"]):
    seen.append(step)
    run.log(step, {"loss": 1.0})
    time.sleep(plan["pace"][rank])
    if step == plan.get("dies", {}).get(str(rank)):
        os._exit(9)
print(json.dumps({"acted": acted, "seen": seen}))
run.finish()
"""


def _ranks(folder: Path, world: int, **plan: Any) -> list[dict[str, Any] | None]:
    """Run ``world`` processes under one command; return what each did, None for one that died."""
    folder.mkdir(exist_ok=True)
    text = json.dumps({"dir": str(folder), "stop": 14, "pace": [0.002] * world, **plan})
    local = {"WORLD_SIZE": str(world), "LOCAL_WORLD_SIZE": str(world), "STABILITY_MODE": "offline", "PLAN": text}
    processes = [child(_RANK, RANK=str(rank), LOCAL_RANK=str(rank), **local) for rank in range(world)]
    wait_until(lambda: len(list(folder.glob("up.*"))) == world, 30, "all ranks are up")
    _deliver(folder / "r", _command(world_size=world, apply_at_step=8))
    (folder / "go").touch()
    found: list[dict[str, Any] | None] = []
    for process in processes:
        out, err = process.communicate(timeout=60)
        assert "Traceback" not in err, err
        found.append(json.loads(out) if out else None)
    return found


_ACTED = [*range(8), *range(4, 14)]


def test_three_ranks_at_very_different_paces_act_at_the_same_boundary(agents: Path) -> None:
    done = _ranks(agents, 3, pace=[0.0, 0.05, 0.01])
    assert [rank and rank["acted"] for rank in done] == [[8], [8], [8]]
    assert [rank and rank["seen"] for rank in done] == [_ACTED] * 3


@pytest.mark.parametrize(
    "plan",
    [
        pytest.param({"no_handler": 1}, id="one-rejects"),
        pytest.param({"never_reads": 1}, id="one-never-gets-the-command"),
    ],
)
def test_when_one_rank_can_not_no_rank_acts_and_training_goes_on(agents: Path, plan: dict[str, Any]) -> None:
    done = _ranks(agents, 2, **plan)
    assert [rank and rank["acted"] for rank in done] == [[], []]
    assert [rank and rank["seen"] for rank in done] == [list(range(14))] * 2


def test_a_rank_that_reads_the_command_after_the_others_passed_does_not_act_either(agents: Path) -> None:
    # World size 2, but the second rank never comes: the first waits at its boundary, gives up, and goes on.
    folder = agents
    folder.mkdir(exist_ok=True)
    text = json.dumps({"dir": str(folder), "stop": 14, "pace": [0.0, 0.0]})
    local = {"WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2", "STABILITY_MODE": "offline", "PLAN": text}
    first = child(_RANK, RANK="0", LOCAL_RANK="0", **local)
    wait_until(lambda: (folder / "up.0").exists(), 30, "the first rank is up")
    _deliver(folder / "r", _command(world_size=2, apply_at_step=8))
    (folder / "go").touch()
    begin = time.monotonic()
    out, _ = first.communicate(timeout=120)
    assert json.loads(out)["seen"] == list(range(14))
    assert time.monotonic() - begin < 15 * PATIENCE
    second = child(_RANK, RANK="1", LOCAL_RANK="1", **local)
    out, _ = second.communicate(timeout=30)
    assert json.loads(out) == {"acted": [], "seen": list(range(14))}


def test_a_rollback_ordered_through_the_server_reaches_the_ranks_and_its_answers_come_back(agents: Path) -> None:
    with Gateway() as server:
        code = f"""
import stabilityclient, time, sys
run = stabilityclient.init(run_id="r", dir={str(agents)!r}, url={server.url!r})
acted = []
run.on_rollback(acted.append)
for step in run.steps(0):
    run.log(step, {{"loss": 1.0}})
    time.sleep(0.005)
    if acted and step > acted[0].to_step + 20:
        break
print(run.finish())
"""
        ranks = [child(code, RANK=str(r), LOCAL_RANK=str(r), WORLD_SIZE="2", LOCAL_WORLD_SIZE="2") for r in (0, 1)]
        wait_until(lambda: all(len(server.store.rows(rank)) > 20 for rank in (0, 1)), 30, "both ranks train")
        for attempt in itertools.count(1):
            newest = max(server.store.steps(0)[-1], server.store.steps(1)[-1])
            server.send(_command(attempt=attempt, apply_at_step=newest + 100 * attempt, world_size=2, to_step=10))

            def answered(attempt: int = attempt) -> list[str]:
                events = server.store.events("command")
                return [
                    e.data["state"]
                    for e in events
                    if e.data["attempt"] == attempt and e.data["state"] in ("acted", "aborted", "missed")
                ]

            states = wait_until(lambda: len(answered()) >= 2 and answered(), 30, "both ranks answer")
            if states == ["acted", "acted"]:
                break
            assert attempt < 4, states
        outs = [rank.communicate(timeout=30) for rank in ranks]
        assert [out.strip() for out, _ in outs] == ["delivered", "delivered"], outs
        segments = server.store.events("segment")
        of_the_agent = server.store.events("command", rank=None)
    assert [(e.data["key"], e.data["to_step"]) for e in segments] == [("c1", 10), ("c1", 10)]
    assert of_the_agent == []  # that it was delivered is noted by the server, which sent it
    for rank in (0, 1):
        steps = server.store.steps(rank)
        turn = steps.index(11, 12)
        assert steps == [*range(turn), *range(11, 11 + len(steps) - turn)]
    turns = {server.store.steps(rank).index(11, 12) for rank in (0, 1)}
    assert len(turns) == 1
