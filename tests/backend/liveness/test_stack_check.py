"""A standstill that no phase explains: a look at the stacks comes before the alarm."""

from __future__ import annotations

from typing import Any

import pytest

from stabilitybackend.judging.liveness.budgets import AFTER_LOOP, LONG_FLOOR_S
from stabilitybackend.judging.liveness.format import place_of
from stabilitybackend.judging.liveness.hang.monitor import AGAIN_S
from stabilitybackend.judging.liveness.rank_watch import RankWatch
from stabilitybackend.judging.liveness.stacks.parse import classify, in_long_work, main_thread
from support.jobs.watched_job import START, Job, kinds, source, stack

RUN = "/home/me/train.py"
TORCH = "/venv/lib/python3.11/site-packages/torch"
SAVES = stack((f"{TORCH}/serialization.py", "save"), (RUN, "keep_it"), (RUN, "main"))
VALIDATES = stack((f"{TORCH}/nn/modules/linear.py", "forward"), (RUN, "evaluate"), (RUN, "main"))
UPLOADS = stack(("/usr/lib/python3.11/ssl.py", "read"), (RUN, "upload"), (RUN, "main"))
WAITS = stack((f"{TORCH}/distributed/distributed_c10d.py", "barrier"), (RUN, "evaluate"), (RUN, "main"))
LOADS = stack(("/usr/lib/python3.11/multiprocessing/queues.py", "get"), (RUN, "evaluate"), (RUN, "main"))
STUCK = stack((RUN, "helper"), (RUN, "train"), (RUN, "__init__"))
HELPER = stack((RUN, "helper"), (RUN, "main"))
JOINS = stack(("/usr/lib/python3.11/threading.py", "wait"), ("/usr/lib/python3.11/threading.py", "join"), (RUN, "main"))
PUSHES = stack(
    ("/usr/lib/python3.11/threading.py", "wait"),
    ("/venv/lib/python3.11/site-packages/huggingface_hub/hf_api.py", "upload_folder"),
    (RUN, "main"),
)
KERNEL = stack(
    ("/usr/lib/python3.11/selectors.py", "select"),
    ("/usr/lib/python3.11/asyncio/base_events.py", "_run_once"),
    ("/usr/lib/python3.11/asyncio/base_events.py", "run_forever"),
    ("/venv/lib/python3.11/site-packages/tornado/platform/asyncio.py", "start"),
    ("/venv/lib/python3.11/site-packages/ipykernel/kernelapp.py", "start"),
)


def stands(phase: str = "", seconds: int = 32, **fields: Any) -> Job:
    """Return a job of 2 ranks that trained without phases, and then stood just longer than it may."""
    job = Job(more={"phase": "", "phase_start": 0.0, "proc": {"state": "S", "cpu": 0.0}, "pending": 7}, **fields)
    job.run(30)
    job.more |= {"phase": phase}
    job.run(seconds, moving=False)
    return job


def works(stack_text: str, **slot: Any) -> Job:
    """Return a job of one rank without phases whose process does something after its last row."""
    job = stands(seconds=0, nodes={"a": [0]})
    job.more |= slot
    looks = 0
    for second in range(int(LONG_FLOOR_S) - 40):
        job.run(1, moving=False)
        if len(job.wanted) > looks:
            looks = len(job.wanted)
            cpu_s = slot.get("tree", 0.0) * second
            job.answer(0, stack=stack_text, slot={"phase": ""}, proc={"state": "S", "tree_cpu_s": cpu_s})
    return job


def look(job: Job, first: str, second: str) -> None:
    for rank, text in enumerate((first, second)):
        job.answer(rank, stack=text, slot={"phase": ""})


@pytest.mark.parametrize("text", [SAVES, VALIDATES])
def test_a_save_or_a_validation_that_nobody_declared_is_no_hang_while_it_may_last(text: str) -> None:
    job = stands()
    looks = 0
    while job.now < START + 30 + LONG_FLOOR_S - 5:
        if len(job.wanted) > looks:
            looks = len(job.wanted)
            look(job, text, WAITS)
        job.run(1, moving=False)
    assert job.said == []
    assert looks == pytest.approx((LONG_FLOOR_S - 35) / AGAIN_S, abs=1.5)
    job.run(15, moving=False)
    assert kinds(job.said) == [("hang", "open")]


@pytest.mark.parametrize(
    ("text", "slot"),
    [
        (HELPER, {"proc": {"state": "R", "cpu": 1.0}}),  # merges, in Python or in one call into C
        (LOADS, {"proc": {"state": "S", "cpu": 0.3}}),  # goes through a data set that nobody called a validation
        (HELPER, {"tree": 0.5}),  # threads of its own save
        (JOINS, {"tree": 0.5}),
        (HELPER, {"proc": {"state": "S", "cpu": 0.0, "wchan": "sk_wait_data"}}),  # pushes
        (PUSHES, {}),
    ],
)
def test_a_process_that_uses_the_processor_or_the_network_after_its_last_row_is_no_hang(
    text: str, slot: dict[str, Any]
) -> None:
    job = works(text, **slot)
    status, note = job.monitor.status(job.now)
    assert (job.said, status) == ([], "running")
    assert note.startswith("No row after step 60. Rank 0: it")
    assert job.monitor.statuses([], job.now).of == {source(0): "running"}
    job.run(60, moving=False)
    assert kinds(job.said) == [("hang", "open")]


@pytest.mark.parametrize(
    ("text", "slot"),
    [
        (HELPER, {}),  # a lock
        (JOINS, {}),
        (WAITS, {"proc": {"state": "R", "cpu": 1.0}}),  # a collective that spins
        (LOADS, {"tree": 0.5}),  # a loader whose batch never comes
    ],
)
def test_a_lock_a_collective_and_a_starved_loader_are_a_hang_within_seconds(text: str, slot: dict[str, Any]) -> None:
    job = works(text, **slot)
    assert kinds(job.said)[:1] == [("hang", "open")]
    assert job.said[0].score < 45


def test_a_call_that_spins_while_it_waits_for_other_ranks_is_a_hang() -> None:
    job = stands(seconds=0)
    job.more |= {"proc": {"state": "R", "cpu": 1.0}}
    job.run(32, moving=False)
    look(job, HELPER, HELPER)
    assert kinds(job.run(2, moving=False)) == [("hang", "open")]


def test_a_cell_of_a_notebook_that_ended_or_was_interrupted_is_never_a_hang() -> None:
    job = works(KERNEL)
    job.run(3_600, moving=False)
    assert job.said == []
    assert "its interpreter waits for input, as after a cell that ended" in job.monitor.status(job.now)[1]


@pytest.mark.parametrize("inside", [LOADS, WAITS])
def test_a_validation_whose_main_threads_go_on_is_no_hang_though_a_look_finds_it_waiting(inside: str) -> None:
    job = stands(seconds=0)
    for second in range(120):
        job.more["pending"] = 7 + second
        if len(job.wanted) > second // 60:
            look(job, inside, inside)
        job.run(1, moving=False)
    assert (job.said, len(job.wanted)) == ([], 2)
    job.run(int(AGAIN_S), moving=False)  # now it stands
    look(job, inside, inside)
    assert kinds(job.run(2, moving=False)) == [("hang", "open")]


def test_who_waits_for_a_batch_that_never_comes_is_no_lively_validation() -> None:
    job = stands(seconds=0)
    for second in range(40):
        job.more["pending"] = 7 + second // 5  # torch's loader looks after its workers each 5 s
        if job.wanted:
            look(job, LOADS, LOADS)
        job.run(1, moving=False)
    assert kinds(job.said)[:1] == [("hang", "open")]


@pytest.mark.parametrize(
    ("file", "function", "long"),
    [
        (RUN, "train_and_evaluate", False),
        (RUN, "setup_and_train", False),
        (RUN, "evaluate_train_set", True),
        (RUN, "checkpoint_forward", False),
        ("/venv/lib/python3.11/site-packages/transformers/trainer.py", "evaluation_loop", True),
        ("/venv/lib/python3.11/site-packages/lightning/pytorch/loops/evaluation_loop.py", "run", True),
        ("/venv/lib/python3.11/site-packages/transformers/trainer.py", "_inner_training_loop", False),
        ("/venv/lib/python3.11/site-packages/requests/api.py", "save", False),
    ],
)
def test_a_loop_that_also_evaluates_is_no_validation_and_that_of_a_framework_is_one(
    file: str, function: str, long: bool
) -> None:
    frames = main_thread(stack((RUN, "helper"), (file, function), (RUN, "main")))
    assert in_long_work(frames, classify(frames), outside=False) is long


def test_who_gets_stuck_in_a_validation_is_told_at_the_next_look() -> None:
    job = stands()
    look(job, VALIDATES, WAITS)
    job.run(int(AGAIN_S), moving=False)
    assert (job.said, len(job.wanted)) == ([], 2)
    look(job, WAITS, WAITS)
    assert kinds(job.run(2, moving=False)) == [("hang", "open")]


def test_what_the_look_does_not_explain_is_told_at_once_with_its_stacks_and_not_looked_at_twice() -> None:
    job = stands()
    look(job, STUCK, WAITS)
    (hang,) = job.run(1, moving=False)
    assert hang.evidence["verdict"]["culprits"] == [0]
    assert "rank 0: its main thread is in helper (train.py:10)" in hang.evidence["verdict"]["because"]
    assert [want.request for want in job.wanted] == [hang.evidence["verdict"]["dump"]]


def test_the_line_of_the_job_that_led_to_where_a_rank_waits_is_named() -> None:
    job = stands()
    look(job, stack(("/usr/lib/python3.11/selectors.py", "select"), (RUN, "fetch")), WAITS)
    (hang,) = job.run(1, moving=False)
    told = "rank 0: its main thread is in select (selectors.py:10), from fetch (train.py:10)"
    assert told in hang.evidence["verdict"]["because"]


def test_a_look_at_one_standstill_says_nothing_of_the_next() -> None:
    job = stands()
    look(job, SAVES, WAITS)
    job.run(5, moving=False)
    job.lost_s += 37.0
    job.run(3)
    while len(job.wanted) < 2:  # what it stood before raised its budget
        job.run(1, moving=False)
    assert job.said == []
    look(job, STUCK, WAITS)
    assert [hang.state for hang in job.run(1, moving=False)] == ["open"]


def test_without_an_answer_it_is_told_all_the_same() -> None:
    job = stands(seconds=44)
    assert kinds(job.said) == [("hang", "open")]


def test_behind_the_loop_only_waiting_for_others_is_a_hang() -> None:
    job = stands(AFTER_LOOP)
    look(job, UPLOADS, UPLOADS)
    job.run(20, moving=False)
    assert job.said == []
    job = stands(AFTER_LOOP)
    look(job, WAITS, WAITS)
    (hang,) = job.run(1, moving=False)
    assert (hang.kind, AFTER_LOOP in hang.title + hang.text) == ("hang", False)
    assert place_of(RankWatch(0, "r0", phase=AFTER_LOOP)) == "after its step loop"


@pytest.mark.parametrize(
    ("text", "outside", "long"),
    [
        (SAVES, False, True),
        (VALIDATES, False, True),
        (WAITS, False, False),
        (WAITS, True, False),
        (UPLOADS, False, False),
        (UPLOADS, True, True),
        (STUCK, False, False),
        ("", True, False),
    ],
)
def test_long_work_is_a_save_or_a_function_named_so_and_never_a_collective(
    text: str, outside: bool, long: bool
) -> None:
    frames: tuple[Any, ...] = main_thread(text)
    assert in_long_work(frames, classify(frames), outside=outside) is long
