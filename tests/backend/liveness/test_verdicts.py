"""What is wrong, and with which rank: each kind of standstill, first from the free probes, then from the dump."""

from __future__ import annotations

from typing import Any

import pytest

from stabilitybackend.schema.health import read_health
from stabilityclient.wire import Health
from support.jobs.stalled_job import C10D, PROBED, RUN, answered, stands, told, verdict
from support.jobs.watched_job import START, Job, kinds, source, stack

LOADER = "/venv/lib/python3.11/site-packages/torch/utils/data/dataloader.py"
WAITS = stack((C10D, "all_reduce"), ("/venv/lib/python3.11/site-packages/torch/distributed/c10d_logger.py", "wrapper"),
              (RUN, "train"), (RUN, "<module>"))  # fmt: skip
LOADS = stack(("/usr/lib/python3.11/queue.py", "get"), (LOADER, "_try_get_data"), (LOADER, "__next__"), (RUN, "train"))
MINE = stack((RUN, "helper"), (RUN, "train"), (RUN, "<module>"))


def all_joined(
    number: int, pg: str = "0", ranks: tuple[int, ...] = (0, 1, 2, 3), op: str = "all_reduce"
) -> dict[str, Any]:
    """What the recorder of a rank says that waits in a collective."""
    group = {"name": pg, "desc": "default_pg", "ranks": list(ranks), "enqueued": number, "completed": number - 1}
    active = {"pg": pg, "seq": number, "op": op, "state": "started", "age_s": 9.0, "sizes": [[4]]}
    return {"pgs": [group], "active": [active]}


def not_joined(number: int, pg: str = "0", ranks: tuple[int, ...] = (0, 1, 2, 3)) -> dict[str, Any]:
    """What the recorder of a rank says that has not come to it; gloo then leaves the description empty."""
    group = {"name": pg, "desc": "", "ranks": list(ranks), "enqueued": number - 1, "completed": number - 1}
    return {"pgs": [group], "active": []}


DATA = {"phase": "data"}
SPINS = {"proc": {"state": "R", "cpu": 0.99, "wchan": "0"}}


@pytest.mark.parametrize(
    ("wrong", "kind"),
    [
        ({"phase": "data"}, "data_loader"),
        ({"phase": "forward"}, "blocked"),
        ({"proc": {"state": "T", "cpu": 0.0, "wchan": "do_signal_stop"}}, "stopped"),
        ({"phase": "data", "proc": {"state": "D", "cpu": 0.0, "wchan": "rpc_wait_bit_killable"}}, "io"),
    ],
)
def test_the_free_probes_alone_tell_the_class_and_the_rank(wrong: dict[str, Any], kind: str) -> None:
    assert told(stands({2: wrong})) == (kind, [2])


def test_a_rank_whose_main_thread_runs_python_and_uses_the_processor_is_in_a_livelock() -> None:
    job = stands({}, seconds=0)
    for _ in range(12):
        pending = job.stuck.get(1, {}).get("pending", 100) + 1
        job.stuck[1] = {**SPINS, "pending": pending}
        job.run(1, moving=False)
    assert told(job) == ("livelock", [1])


def test_a_rank_that_beats_no_more_holds_the_lock_of_the_interpreter() -> None:
    job = stands({}, seconds=0)
    job.stuck[3] = {"beat": job.beat}
    job.run(12, moving=False)
    assert told(job) == ("gil_held", [3])
    assert verdict(job)["confidence"] == "high"


def test_a_rank_that_has_finished_while_the_others_wait_is_the_missing_peer() -> None:
    job = stands({}, seconds=0)
    job.event("finish", 1)
    job.stuck[1] = {"state": "finished", "alive": False}
    job.run(12, moving=False)
    assert told(job) == ("peer_missing", [1])
    assert "has finished" in verdict(job)["text"]


def test_a_rank_that_waits_for_a_lock_is_named_with_how_it_takes_it_and_where() -> None:
    job = stands({1: {"phase": ""}}, seconds=40)
    lock = MINE.replace("in helper\n", "in helper\n    ~ with cache\n")
    found = answered(job, {0: {"stack": WAITS}, 1: {"stack": lock}, 2: {"stack": WAITS}, 3: {"stack": WAITS}})
    assert told(job) == ("lock", [1])
    assert "ank 1 (node a) has waited for a lock, `with cache` in helper (train.py:10)" in found.text
    assert found.title.endswith("rank 1 (node a) waits for a lock")


def test_a_rank_that_waits_in_a_debugger_is_stopped_by_its_user() -> None:
    job = stands({}, nodes={"a": [0]}, seconds=12)
    prompt = stack(("/usr/lib/python3.11/cmd.py", "cmdloop"), ("/usr/lib/python3.11/pdb.py", "interaction"))
    job.answer(0, stack=prompt)
    job.run(2, moving=False)
    assert told(job) == ("stopped", [0])


def test_a_checkpoint_past_its_budget_is_overdue() -> None:
    job = stands({2: {"phase": "checkpoint", "expect_s": 20.0}}, seconds=32)
    assert told(job) == ("overdue", [2])


@pytest.mark.parametrize("phase", ["data", "forward", "backward"])
def test_a_node_that_is_silent_while_the_others_stand_is_lost(phase: str) -> None:
    job = stands({}, seconds=0)
    job.stuck[2] = {"phase": phase, "phase_start": job.now}
    job.run(1)
    job.silent = {"b"}
    job.run(12, moving=False)
    assert told(job) == ("node_lost", [2, 3])
    assert verdict(job)["nodes"] == ["b"]


def test_a_rank_that_stands_in_its_data_is_named_beside_a_silent_node() -> None:
    job = stands({}, seconds=0, nodes={"a": [0, 1, 4], "b": [2, 3]})
    job.stuck[1] = {"phase": "data", "phase_start": job.now}
    job.run(1)
    job.silent = {"b"}
    job.run(12, moving=False)
    assert told(job) == ("node_lost", [2, 3])
    assert "beside it: rank 1: still in data, the others are further on" in verdict(job)["because"]


def test_of_a_group_whose_ranks_are_not_told_nobody_is_said_to_be_there() -> None:
    job = stands({})
    for rank in range(4):
        job.answer(rank, stack=WAITS, **({} if rank else {"collectives": all_joined(1, pg="1", ranks=())}))
    job.run(2, moving=False)
    said = [line for line in verdict(job)["because"] if "1 rank joined" in line]
    assert said == ["all_reduce #1 of default_pg: 1 rank joined, the other ranks of its group are not known"]


def test_one_sentence_names_rank_node_gpu_seconds_and_what_the_others_wait_in() -> None:
    job = stands({}, seconds=0, nodes={"gpu-02": [0, 1, 2, 3], "gpu-03": [4, 5, 6, 7]})
    job.stuck[5] = {"phase": "data", "phase_start": job.now, "gpu": {"index": 2, "uuid": "GPU-5"}}
    job.run(11, moving=False)
    for rank in range(8):
        if rank == 5:
            job.answer(rank, stack=LOADS, slot=DATA, collectives=not_joined(1841, ranks=tuple(range(8))))
        else:
            job.answer(
                rank, stack=WAITS, slot={"phase": "backward"}, collectives=all_joined(1841, ranks=tuple(range(8)))
            )
    said = job.run(1, moving=False)
    found = said[-1].evidence["verdict"]
    assert said[-1].text.startswith(
        "Rank 5 (node gpu-03, GPU 2) has been in data; the other 7 have waited in all_reduce #1841 of default_pg."
    )
    assert said[-1].title == f"The job hangs at step {job.step}: rank 5 (node gpu-03, GPU 2) in data"
    assert (found["class"], found["culprits"], found["confidence"]) == ("data_loader", [5], "high")
    assert (found["nodes"], found["gpus"]) == (["gpu-03"], [{"rank": 5, "node": "gpu-03", "index": 2, "uuid": "GPU-5"}])
    assert found["since"] == pytest.approx(job.now - 12.0, abs=1.0)
    assert found["blind"] == []


def test_the_dump_is_ordered_once_and_sharpens_the_same_incident() -> None:
    job = stands({1: {"phase": "backward"}})
    assert [want.reason for want in job.wanted] == [f"the job hangs at step {job.step}"]
    assert verdict(job)["culprits"] == []
    for rank in range(4):
        job.answer(rank, stack=MINE if rank == 1 else WAITS, slot={"phase": "backward"})
    job.run(3, moving=False)
    assert told(job) == ("blocked", [1])
    assert verdict(job)["dump"] == job.wanted[0].request
    assert len(job.wanted) == 1
    assert kinds([f for f in job.said if f.kind == "hang"]) == [("hang", "open")] * 2


def test_ranks_that_do_not_answer_are_not_waited_for_and_named() -> None:
    job = stands({})
    for rank in (0, 2, 3):
        job.answer(rank, stack=WAITS, slot={"phase": "backward"}, collectives=all_joined(7))
    assert job.run(5, moving=False) == []
    job.run(5, moving=False)
    found = verdict(job)
    assert found["class"] == "collective_stuck"
    assert any(line.startswith("stacks of rank 1: no answer") for line in found["blind"])


def test_ranks_that_all_joined_one_collective_have_no_culprit() -> None:
    found = answered(stands(), {rank: {"stack": WAITS, "collectives": all_joined(9)} for rank in range(4)})
    assert found.evidence["verdict"] | {"culprits": [], "class": "collective_stuck"} == found.evidence["verdict"]
    assert found.rank is None
    assert "Nobody is missing, so no rank is a suspect" in found.text


def test_evidence_that_contradicts_the_strongest_one_is_told_and_makes_it_less_sure() -> None:
    answers: dict[int, dict[str, Any]] = {rank: {"stack": WAITS, "collectives": all_joined(9)} for rank in (0, 3)}
    answers[1] = {"stack": WAITS, "collectives": not_joined(9)}
    answers[2] = {"stack": stack(("/job/loader.py", "next_batch")), "collectives": all_joined(9)}
    found = answered(stands(), answers).evidence["verdict"]
    assert (found["culprits"], found["confidence"]) == ([1], "medium")
    assert any(line.startswith("against it: rank 2") for line in found["because"])


def test_different_collectives_under_one_number_are_a_desync() -> None:
    answers = {rank: {"stack": WAITS, "collectives": all_joined(9)} for rank in range(4)}
    answers[2]["collectives"] = all_joined(9, op="broadcast")
    found = answered(stands(), answers)
    assert (found.evidence["verdict"]["class"], found.evidence["verdict"]["culprits"]) == ("desync", [2])


def test_groups_that_wait_for_each_other_are_followed_to_the_rank_that_waits_for_nobody() -> None:
    # Rank 0 waits for 1 in its group, rank 1 waits for 3 in another one; 3 is in user code.
    first, second = (0, 1), (1, 3)
    one = all_joined(5, "tp", first)
    both = {
        "pgs": [*not_joined(5, "tp", first)["pgs"], *all_joined(8, "dp", second)["pgs"]],
        "active": all_joined(8, "dp", second)["active"],
    }
    answers = {
        0: {"stack": WAITS, "collectives": one},
        1: {"stack": WAITS, "collectives": both},
        2: {"stack": WAITS, "collectives": all_joined(4, "other", (2,))},
        3: {"stack": MINE, "collectives": not_joined(8, "dp", second)},
    }
    found = answered(stands(), answers)
    assert found.evidence["verdict"]["culprits"] == [3]
    assert "never joined all_reduce #8" in found.text


def test_a_rank_that_waits_elsewhere_than_the_others_is_a_missing_peer() -> None:
    answers = {rank: {"stack": WAITS, "collectives": all_joined(9)} for rank in range(4)}
    answers[1] = {"stack": stack((C10D, "barrier"), (RUN, "other")), "collectives": not_joined(9)}
    found = answered(stands(), answers)
    assert (found.evidence["verdict"]["class"], found.evidence["verdict"]["culprits"]) == ("peer_missing", [1])


def test_a_job_of_one_rank_has_its_class_from_its_own_probes_and_stack() -> None:
    job = stands({0: DATA}, nodes={"a": [0]})
    assert told(job) == ("data_loader", [0])
    job.answer(0, stack=LOADS, slot=DATA)
    job.run(1, moving=False)
    assert verdict(job)["confidence"] == "high"


@pytest.mark.parametrize("step_s", [0.1, 1.0, 5.0, 10.0])
def test_a_verdict_comes_within_a_minute_of_the_last_progress_at_default_settings(step_s: float) -> None:
    job = Job(nodes={"a": [0, 1, 2, 3]}, step_s=step_s, more=dict(PROBED))
    job.run(200)
    job.stuck[2] = {"phase": "data", "phase_start": job.now}
    began = START + job.step * step_s
    job.run(70, moving=False)
    hang = next(finding for finding in job.said if finding.kind == "hang")
    assert hang.evidence["verdict"]["culprits"] == [2]
    assert hang.evidence["verdict"]["decided_after_s"] <= 60.0
    assert hang.evidence["verdict"]["since"] == pytest.approx(began + 0.1, abs=step_s + 1.5)


def test_a_slow_rank_that_still_moves_is_not_said_to_hang_the_others() -> None:
    job = stands({}, seconds=0)
    for second in range(60):
        job.stuck[1] = {"phase": ("data", "forward")[second // 6 % 2], "phase_start": job.now - second % 6}
        assert [f.kind for f in job.run(1, moving=False)] == []


def test_a_rank_that_was_never_heard_of_is_named_as_not_seen() -> None:
    job = stands({}, seconds=0)
    job.more["world_size"] = 5
    job.run(12, moving=False)
    assert job.said[-1].evidence["unseen_ranks"] == [4]
    assert "never connected" in verdict(job)["blind"][0]


def test_a_rank_whose_slot_cannot_be_read_is_named_with_the_reason_and_never_blamed() -> None:
    job = stands({}, seconds=0)
    bad = {"rank": 3, "source": source(3), "pid": 103, "alive": True, "trouble": "the slot has version 9"}
    job.nodes["b"] = [2]
    for _ in range(14):
        job.now, job.beat = job.now + 1, job.beat + 1
        job.tell("a", [job.slot(0), job.slot(1)])
        job.tell("b", [job.slot(2), bad])
        job.said += job.monitor.tick(job.now)
    assert told(job)[1] == []
    assert "rank 3: the slot has version 9" in verdict(job)["blind"]


def test_a_world_too_large_to_count_and_other_nonsense_in_slots_harms_nothing() -> None:
    job = Job()
    nonsense: list[Any] = [
        {"rank": 0, "source": source(0), "step": -5, "phase": 7, "phase_start": -1e300, "beat": "x", "pending": [],
         "phases": {"data": ["a", None, {}], 5: [1, 2, 3]}, "proc": 3, "gpu": [], "world_size": 10**12, "expect_s": -3},
        {"rank": 0, "source": source(0), "step": 10**400, "time": float("nan"), "step_start": float("inf")},
        {"rank": 10**9, "source": source(1)}, {"rank": True, "source": "r"}, {"rank": 1, "source": ""},
    ]  # fmt: skip
    assert len(read_health(Health("agent-a", "a", job.now, nonsense))[1]) > 10
    for _ in range(30):
        job.now += 1.0
        job.tell("a", nonsense)
        job.monitor.tick(job.now)
    assert job.monitor.bad_slots == 60  # rank 0 twice in each, and rank 10^9
    assert job.monitor.status(job.now)[0] in ("running", "stalled")


def test_two_living_processes_of_one_rank_are_told_in_the_status() -> None:
    job = Job(nodes={"a": [0, 1]})
    job.run(30)
    for _ in range(8):
        job.run(1)
        job.tell("z", [job.slot(0) | {"source": source(0, 0), "pid": 7}])
    status, note = job.monitor.status(job.now)
    assert status == "running"
    assert "Two living processes say that they are rank 0" in note
    assert job.monitor.duplicates(job.now) == note
    job.run(20)
    assert job.monitor.status(job.now) == ("running", "")
    assert job.monitor.duplicates(job.now) == ""


def test_a_hang_of_a_job_that_has_ended_since_is_over() -> None:
    job = stands()
    for rank in range(4):
        job.event("finish", rank)
    assert kinds(job.run(1, moving=False)) == [("hang", "resolved")]


def test_a_second_standstill_at_the_same_step_is_looked_at_again() -> None:
    job = stands()
    job.more["phase"] = "optimizer"
    job.run(2, moving=False)
    job.run(12, moving=False)
    assert len({want.request for want in job.wanted}) == 2
    assert len({finding.key for finding in job.said}) == 1


def test_pending_calls_that_ran_because_of_the_dump_s_signal_are_no_sign_of_a_livelock() -> None:
    spins = {"phase": "forward", "proc": {"state": "R", "cpu": 1.0, "wchan": "0"}}  # a synchronise that spins in C
    job = stands({1: spins}, seconds=13)
    job.stuck[1] = spins | {"pending": 99}
    for rank in range(4):
        job.answer(
            rank, stack=MINE if rank == 1 else WAITS, slot={"phase": "backward"}, proc={"state": "R", "cpu": 1.0}
        )
    job.run(3, moving=False)
    assert told(job) == ("blocked", [1])


def test_what_an_agent_cannot_see_of_its_ranks_stands_in_the_verdict() -> None:
    job = stands({}, seconds=0)
    job.agent_state["b"] = {"blind": [{"what": "signals", "why": "no permission"}, {"what": "gpu", "why": "no driver"}]}
    job.run(12, moving=False)
    assert verdict(job)["blind"] == ["node b: signals: no permission"]


def test_two_processes_of_a_rank_on_one_node_are_told_in_the_status_by_the_agent_s_word() -> None:
    job = Job()
    job.agent_state["a"] = {"blind": [{"what": "twins", "why": "rank 0 has two processes", "do": "use two run ids"}]}
    job.run(5)
    assert job.monitor.status(job.now) == ("running", "Node a: rank 0 has two processes.")


def test_probes_that_flicker_do_not_change_the_verdict_every_second() -> None:
    job = stands({2: {"phase": "forward"}})
    for second in range(6):  # no dump has come yet
        job.stuck[2]["proc"] = {"state": "SD"[second % 2], "cpu": 0.0, "wchan": "0"}
        assert [f for f in job.run(1, moving=False) if f.evidence["verdict"]["class"] != "blocked"] == []


def test_ranks_that_never_reported_are_no_suspects_of_a_job_in_its_steps() -> None:
    job = stands({0: DATA}, nodes={"a": [0, 1]})
    assert told(job) == ("data_loader", [0])
