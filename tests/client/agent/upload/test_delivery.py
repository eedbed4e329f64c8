"""Real agents, a real WebSocket server: everything that was logged arrives exactly once, whoever dies when."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest

import stabilityclient
from stabilityclient.agent.sources import is_alive
from stabilityclient.sidecar import agent_lives
from support.agent.gateway import Gateway, Store
from support.agent.spooled import child, spools
from support.waiting import PATIENCE, wait_until

Start = Callable[..., stabilityclient.Run]


def _agent_pid(folder: Path | str | None) -> int:
    state = Path(str(folder)) / "agent" / "agent.json"
    return int(
        wait_until(lambda: state.exists() and json.loads(state.read_bytes()), 10, "the agent says who it is")["pid"]
    )


def test_finish_returns_when_all_is_delivered_and_the_agent_tidies_up_and_leaves(start: Start) -> None:
    with Gateway() as server:
        run = start(url=server.url)
        for step in range(3000):
            run.log(step, {"loss": step * 0.5})
        assert run.finish() == "delivered"
        assert server.store.steps() == list(range(3000))
        assert [event.type for event in server.store.events(rank=0)] == ["start", "environment", "finish"]
        wait_until(lambda: not agent_lives(run.folder), 10, "the agent leaves")
    assert spools(run.folder) == []


def test_points_arrive_while_the_job_runs(start: Start) -> None:
    with Gateway() as server:
        run = start(url=server.url)
        run.log(1, {"loss": 1.0})
        wait_until(lambda: server.store.steps() == [1], 10, "the first point arrives")
        took = []
        for step in range(2, 7):  # the quickest counts: this process or the agent may have to wait for a core
            before = time.monotonic()
            run.log(step, {"loss": 1.0})
            wait_until(lambda step=step: server.store.steps()[-1] == step, 20, "a further point arrives")
            took.append(time.monotonic() - before)
        assert min(took) < 1.0
        run.finish()


def test_hello_says_who_the_run_is(start: Start) -> None:
    with Gateway() as server:
        run = start(
            url=server.url, project="proj", name="seven", config={"lr": 0.1, "path": Path("/x"), "nan": float("nan")}
        )
        run.finish()
        hello = server.hellos[0]
    assert (hello.run_id, hello.project, hello.name, hello.client_version) == ("r1", "proj", "seven", "0.1.0")
    assert {**hello.config, "nan": None} == {"lr": 0.1, "path": "/x", "nan": None}
    assert [(s.rank, s.world_size, s.pid, s.node) for s in hello.sources if s.rank is not None] == [
        (0, 1, os.getpid(), os.uname().nodename)
    ]


def test_data_of_any_kind_that_users_give_arrives_as_what_every_side_can_hold(start: Start) -> None:
    deep: list[object] = []
    for _ in range(50):
        deep = [deep]
    config = {"big": 10**30, "huge": 10**5000, "deep": deep, ("a", 1): {1, 2}, "half": "\ud800", "text": "x" * 200_000}
    config["self"] = config
    with Gateway() as server:
        run = start(url=server.url, name="half \ud800", config=config)
        run.rolled_back(0, reason="\ud800", limit=2**70, deep=deep)
        run.checkpoint(1, "odd-\udcff-name")
        run._components.spool.append_event("alert", 1, 1.0, {"title": "\ud800", "big": 2**70})
        run.log(2, {"loss": 1.0})
        assert run.finish() == "delivered"
        hello, store = server.hellos[0], server.store
    assert (hello.name, hello.config["half"], hello.config["big"]) == ("half ?", "?", hex(10**30))
    assert len(hello.config["text"]) <= 10_000
    assert store.events("segment")[0].data["changes"]["limit"] == hex(2**70)
    assert store.steps() == [2]
    assert store.events("lost")


def test_a_server_that_comes_later_gets_everything(start: Start, free_port: int) -> None:
    run = start(url=f"http://127.0.0.1:{free_port}")
    for step in range(100):
        run.log(step, {"loss": 1.0})
    with Gateway(port=free_port) as server:
        assert run.finish() == "delivered"
        assert server.store.steps() == list(range(100))


def test_a_server_that_is_killed_in_the_middle_and_at_the_end_gets_everything_once(
    start: Start, free_port: int
) -> None:
    store = Store()
    run = start(url=f"http://127.0.0.1:{free_port}")
    for part in range(3):
        with Gateway(store, port=free_port):
            for step in range(part * 200, part * 200 + 100):
                run.log(step, {"loss": 1.0})
                time.sleep(0.001)
            wait_until(lambda: store.rows(), 10, "something arrives")
        for step in range(part * 200 + 100, part * 200 + 200):
            run.log(step, {"loss": 1.0})
    assert run.finish(timeout_s=0.1) == "spooled"
    with Gateway(store, port=free_port):
        wait_until(lambda: store.events("finish"), 20, "the tail arrives after the job's end")
    assert store.steps() == list(range(600))


def test_a_server_that_is_away_at_the_end_costs_the_job_seconds_not_the_drain_time(
    start: Start, free_port: int
) -> None:
    run = start(url=f"http://127.0.0.1:{free_port}")
    run.log(0, {"loss": 1.0})
    before = time.monotonic()
    assert run.finish() == "spooled"
    assert time.monotonic() - before < 15 * PATIENCE
    assert spools(run.folder)


def test_connections_that_break_all_the_time_lose_and_double_nothing(start: Start) -> None:
    with Gateway() as server:
        run = start(url=server.url)
        for step in range(2000):
            run.log(step, {"loss": 1.0})
            if step % 400 == 399:
                met = len(server.hellos)
                wait_until(lambda step=step: len(server.store.rows()) > step - 200, 10, "the last part arrives")
                server.drop_connections()
                wait_until(lambda met=met: len(server.hellos) > met, 10, "the agent comes back")
        assert run.finish() == "delivered"
        assert server.store.steps() == list(range(2000))
        assert len(server.hellos) > 5


def test_the_tail_of_a_trainer_killed_with_9_arrives_and_its_death_is_told(agents: Path) -> None:
    with Gateway() as server:
        job = child(
            f"""
import stabilityclient, itertools, sys
run = stabilityclient.init(run_id="r", dir={str(agents)!r}, url={server.url!r})
for step in itertools.count():
    with run.phase("forward"):
        run.log(step, {{"loss": 1.0}})
    if step == 5000:
        print("there", flush=True)
    if step > 5000:
        import time; time.sleep(0.001)
"""
        )
        assert job.stdout is not None
        job.stdout.readline()
        job.kill()
        job.communicate()
        death = wait_until(lambda: server.store.events("process_death"), 10, "the death is told")[0]
        wait_until(lambda: not agent_lives(agents / "r"), 20, "the agent leaves")
        steps = server.store.steps()
    assert steps == list(range(len(steps)))
    assert len(steps) > 5000
    assert (death.data["rank"], death.data["pid"]) == (0, job.pid)
    assert death.data["evidence"]["state"] == "running"
    assert "from outside" in death.data["evidence"]["text"] or "memory" in death.data["evidence"]["text"]
    assert len(server.store.events("process_death")) == 1


def test_an_uncaught_exception_is_told_and_is_the_evidence_of_the_death(agents: Path) -> None:
    with Gateway() as server:
        job = child(
            f"""
import stabilityclient
run = stabilityclient.init(run_id="r", dir={str(agents)!r}, url={server.url!r})
run.log(3, {{"loss": 1.0}})
raise ValueError("the weights are gone")
"""
        )
        _, err = job.communicate(timeout=60)
        wait_until(lambda: server.store.events("process_death"), 10, "the death is told")
        wait_until(lambda: server.store.events("exception"), 10, "the rank's own last word is there")
        store = server.store
    assert "ValueError: the weights are gone" in err  # Python's own report stays
    told = dict(store.events("exception")[0].data)
    assert "line 5, in <module>" in told.pop("traceback")
    assert told == {"type": "ValueError", "message": "the weights are gone"}
    assert store.events("process_death")[0].data["evidence"]["exception"] == "ValueError: the weights are gone"


def test_a_process_that_leaves_without_finish_is_no_death(agents: Path) -> None:
    with Gateway() as server:
        job = child(
            f"""
import stabilityclient
run = stabilityclient.init(run_id="r", dir={str(agents)!r}, url={server.url!r})
run.log(3, {{"loss": 1.0}})
"""
        )
        job.communicate(timeout=60)
        wait_until(lambda: server.healths and not agent_lives(agents / "r"), 20, "the agent leaves")
        assert server.store.steps() == [3]
        assert server.store.events("process_death") == []
        assert [event.data["rank"] for event in server.store.events("left", None)] == [0]


def test_an_agent_killed_with_9_is_started_again_and_goes_on_exactly(start: Start) -> None:
    with Gateway() as server:
        run = start(url=server.url)
        for step in range(300):
            run.log(step, {"loss": 1.0})
        wait_until(lambda: len(server.store.rows()) >= 300, 10, "the first part arrives")
        first = _agent_pid(run.folder)
        os.kill(first, signal.SIGKILL)
        for step in range(300, 600):
            run.log(step, {"loss": 1.0})
        wait_until(lambda: len(server.store.rows()) >= 600, 20, "a new agent delivers the second part")
        assert _agent_pid(run.folder) != first
        assert run.finish() == "delivered"
        assert server.store.steps() == list(range(600))
        wait_until(lambda: not is_alive(first, 0), 5, "no zombie stays")


def test_a_second_agent_finds_the_lock_and_leaves(start: Start) -> None:
    from stabilityclient.agent.main import main

    with Gateway() as server:
        run = start(url=server.url)
        wait_until(lambda: agent_lives(run.folder), 10, "the agent has the lock")
        assert main([str(run.folder)]) == 0
        assert len({hello.agent for hello in server.hellos}) <= 1
        run.finish()


def test_a_server_that_lost_its_tail_is_filled_again_from_the_spool(start: Start, free_port: int) -> None:
    store = Store()
    run = start(url=f"http://127.0.0.1:{free_port}")
    with Gateway(store, port=free_port):
        for step in range(500):
            run.log(step, {"loss": 1.0})
            time.sleep(0.0005)
        wait_until(lambda: len(store.rows()) == 500, 10, "all arrives")
    store.forget_after(run._components.source, 200)
    assert len(store.rows()) < 500
    with Gateway(store, port=free_port):
        wait_until(lambda: len(store.rows()) == 500, 20, "the lost part arrives again")
        run.finish()
    assert store.steps() == list(range(500))


def test_an_agent_gives_up_after_the_drain_time_and_leaves_the_spool(
    start: Start, free_port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STABILITY_DRAIN_S", "1")
    run = start(url=f"http://127.0.0.1:{free_port}")
    run.log(0, {"loss": 1.0})
    wait_until(lambda: agent_lives(run.folder), 10, "the agent lives")
    assert run.finish(timeout_s=0) == "spooled"
    wait_until(lambda: not agent_lives(run.folder), 15, "the agent leaves")
    assert spools(run.folder)


def test_an_agent_whose_folder_was_removed_leaves(start: Start, free_port: int, tmp_path: Path) -> None:
    run = start(url=f"http://127.0.0.1:{free_port}")
    wait_until(lambda: agent_lives(run.folder), 10, "the agent lives")
    pid = _agent_pid(run.folder)
    run.finish(timeout_s=0)
    # Moved away in one call: the agent may be making a file in it at this moment, which rmtree would trip over.
    Path(str(run.folder)).rename(tmp_path / "removed")
    wait_until(lambda: not is_alive(pid, 0), 10, "the agent leaves")


def test_health_tells_slot_and_liveness_once_a_second(start: Start) -> None:
    with Gateway() as server:
        run = start(url=server.url)
        for step in run.steps(0, 4):
            with run.phase("eval", expect_s=60):
                wait_until(
                    lambda step=step: any(h.ranks and h.ranks[0].get("step") == step for h in server.healths),
                    10,
                    "health has the step",
                )
        entry = next(h.ranks[0] for h in reversed(server.healths) if h.ranks)
        assert entry["alive"] is True
        assert (entry["rank"], entry["pid"], entry["state"]) == (0, os.getpid(), "running")
        assert {
            "source",
            "step_start",
            "phase",
            "phase_start",
            "expect_s",
            "beat",
            "last_seq",
            "dropped",
            "segment_key",
        } <= set(entry)
        run.finish()


@pytest.mark.usefixtures("quiet")
def test_a_server_that_stays_away_is_told_to_the_job_once(
    start: Start, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("stabilityclient.rank_state.heartbeat.AWAY_POLLS", 1)
    run = start(url="http://127.0.0.1:1")
    run.log(1, {"loss": 1.0})
    wait_until(lambda: "http://127.0.0.1:1 can't be reached" in caplog.text, 15, "the job is told")
    assert "waits in the spool" in caplog.text
    run.finish(timeout_s=0)


def test_an_agent_that_stood_still_tells_no_old_slot_under_the_new_time(start: Start) -> None:
    with Gateway() as server:
        run = start(url=server.url)
        steps = iter(run.steps(0))
        wait_until(lambda: next(steps) >= 0 and any(h.ranks for h in server.healths), 10, "health comes")
        agent = _agent_pid(run.folder)
        for _ in range(3):
            os.kill(agent, signal.SIGSTOP)
            stopped, seen = time.monotonic(), len(server.healths)
            wait_until(lambda since=stopped: next(steps) >= 0 and time.monotonic() > since + 1.5, 10, "time passes")
            os.kill(agent, signal.SIGCONT)
            wait_until(lambda n=seen: next(steps) >= 0 and len(server.healths) > n + 1, 10, "health comes again")
        stood = [h.time - h.ranks[0]["step_start"] for h in server.healths if h.ranks]
        assert max(stood) < 1.0
        run.finish()


def test_a_checkpoint_that_vanishes_is_told_once_and_one_that_never_was_is_not(start: Start, tmp_path: Path) -> None:
    kept, gone = tmp_path / "kept", tmp_path / "gone"
    kept.mkdir()
    gone.mkdir()
    with Gateway() as server:
        run = start(url=server.url)
        run.checkpoint(1, kept)
        run.checkpoint(2, gone)
        run.checkpoint(3, tmp_path / "never")
        wait_until(lambda: len(server.store.events("checkpoint_seen", rank=None)) == 2, 10, "both were seen")
        gone.rmdir()
        wait_until(lambda: server.store.events("checkpoint_gone"), 10, "the loss is told")
        run.finish()
        events = server.store.events("checkpoint_gone", rank=None)
    assert [(event.step, event.data) for event in events] == [(2, {"path": str(gone)})]


def test_what_is_wrong_with_the_last_checkpoint_is_told_before_the_agent_leaves(start: Start, tmp_path: Path) -> None:
    path = tmp_path / "step-1.safetensors"
    path.write_bytes((100).to_bytes(8, "little") + b"{")
    with Gateway() as server:
        run = start(url=server.url)
        run.checkpoint(1, path)
        run.finish()
        wait_until(lambda: server.store.events("checkpoint_seen", rank=None), 20, "the look is told")
        (event,) = server.store.events("checkpoint_seen", rank=None)
    assert (event.step, event.data["kind"], event.data["complete"]) == (1, "file", False)
    assert event.data["problem"] == "step-1.safetensors is truncated"


def test_a_node_without_a_gpu_says_so(start: Start) -> None:
    with Gateway() as server:
        run = start(url=server.url)
        note = wait_until(lambda: server.store.events("gpu_note", rank=None), 10, "the note arrives")[0]
        run.finish()
    if not note.data["visible"]:
        assert note.data["text"].startswith("no GPU visible here: ")


def test_two_ranks_on_a_node_share_one_agent(agents: Path) -> None:
    with Gateway() as server:
        code = f"""
import stabilityclient, os
run = stabilityclient.init(run_id="r", dir={str(agents)!r}, url={server.url!r})
for step in range(1000):
    run.log(step, {{"loss": 1.0}})
print(run.finish())
"""
        ranks = [child(code, RANK=str(r), LOCAL_RANK=str(r), WORLD_SIZE="2", LOCAL_WORLD_SIZE="2") for r in (0, 1)]
        outs = [rank.communicate(timeout=40) for rank in ranks]
        assert [out.strip() for out, _ in outs] == ["delivered", "delivered"], outs
        for rank in (0, 1):
            assert server.store.steps(rank) == list(range(1000))
        assert len({hello.agent for hello in server.hellos}) == 1 or server.store.events("finish", rank=0)
