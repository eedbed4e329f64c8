"""Each stop of a job is one interruption, of the kind that the evidence speaks for, and costs what it cost."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from stabilitybackend.fleet.interruption_table import CATEGORIES, PUBLISHED, table_of
from stabilitybackend.fleet.interruptions import (
    OPEN_COUNTS_S,
    JobStory,
    TrainingInterval,
    interruptions_of,
    shown,
    summed,
)
from stabilitybackend.schema.commands import CommandFence, Restart
from stabilitybackend.schema.fleet import Correction, Interruption, RunNames, StoppedRun
from stabilitybackend.schema.gpus import KernelLogLine
from stabilitybackend.schema.incidents import Incident
from support.stored.incident import stored

RUN = RunNames("run")
#: 100 steps of a second each, 50 s of nothing, then the job repeats 20 steps and goes on to step 200.
FIRST = TrainingInterval("r0-1", 1_000.0, 1_100.0, 0, 100, 8)
SECOND = TrainingInterval("r0-2", 1_150.0, 1_270.0, 81, 200, 8)


def _incident(kind: str, opened: float, **facts: Any) -> Incident:
    named = {"incident_id": f"i-{kind}-{opened:.0f}", "opened": opened, "title": f"{kind} at {opened:.0f}"}
    return stored(kind, **named | facts)


def _death(at: float, **first: Any) -> Incident:
    facts = {"source": "r0-1", "rank": 3, "node": "n1", "step": 100, "time": at, **first}
    verdict = {"class": first.get("cause", "unknown"), "culprits": [3], "nodes": ["n1"], "text": "rank 3 died"}
    return _incident(
        "process_death", at + 1, rank=3, node="n1",
        evidence={"deaths": [facts], "exception": first.get("exception"), "verdict": verdict},
    )  # fmt: skip


def _hang(since: float, cls: str, **facts: Any) -> Incident:
    verdict = {"class": cls, "culprits": [3], "nodes": ["n1"], "since": since, "text": "rank 3 stands"}
    return _incident("hang", since + 30, evidence={"stood_s": 30.0, "verdict": verdict}, **facts)


def _fault(at: float, family: str = "hbm", ranks: tuple[int, ...] = (3,), **facts: Any) -> Incident:
    gpus = facts.pop("gpus", [{"uuid": "GPU-1", "ranks": list(ranks)}])
    blames = facts.pop("blames_hardware", True)
    evidence = {
        "since": at,
        "last": at,
        "family": family,
        "ranks": list(ranks),
        "gpus": gpus,
        "blames_hardware": blames,
    }
    return _incident("gpu_fault", at, **{"node": "n1", "evidence": evidence} | facts)


def _story(*incidents: Incident, **facts: Any) -> JobStory:
    return JobStory(facts.pop("stretches", (FIRST, SECOND)), incidents, **facts)


def _only(story: JobStory, now: float = 2_000.0) -> Interruption:
    (found,) = interruptions_of(story)
    return shown(found, RUN, now)


def test_a_death_costs_the_time_until_the_next_row_and_the_steps_done_again() -> None:
    one = _only(_story(_death(1_101.0, cause="oom_kill")), 9_999.0)
    names = (
        "category",
        "what",
        "since",
        "resumed",
        "step",
        "resumed_step",
        "redone_steps",
        "downtime_s",
        "time_lost_s",
    )
    assert [getattr(one, name) for name in names] == ["oom", "death", 1_100.0, 1_150.0, 100, 81, 20, 50.0, 70.0]
    assert (one.ranks, one.nodes, one.counted) == ([3], ["n1"], True)


def test_a_hang_that_ends_in_deaths_and_the_gpu_behind_it_are_one_interruption() -> None:
    story = _story(
        _hang(1_100.0, "peer_missing", state="resolved", resolved=1_140.0),
        _death(1_140.0, cause="signal", signal_name="SIGABRT"),
        _fault(1_099.0, "processor"),
        _death(1_145.0, cause="exit_code"),
    )
    one = _only(story)
    assert (one.category, one.confidence, one.gpus) == ("gpu_system_processor", "high", ["GPU-1"])
    assert len(one.incidents) == 4
    assert "rank 3 stands" in one.evidence


def test_ranks_that_were_done_before_the_others_are_no_trouble_of_the_network() -> None:
    hang = _hang(1_100.0, "peer_missing", state="resolved", resolved=1_140.0)
    one = _only(_story(replace(hang, evidence={**hang.evidence, "finished": [3]})))
    assert (one.category, one.confidence) == ("software_bug", "medium")


@pytest.mark.parametrize(
    ("family", "category"),
    [
        ("hbm", "gpu_hbm3"), ("sram", "gpu_sram"), ("processor", "gpu_system_processor"), ("thermal", "gpu_thermal"),
        ("bus", "faulty_gpu"), ("link", "faulty_gpu"), ("gpu", "faulty_gpu"),
    ],
)  # fmt: skip
def test_a_fault_of_the_gpu_of_the_rank_that_died_is_the_cause(family: str, category: str) -> None:
    assert _only(_story(_death(1_101.0), _fault(1_095.0, family))).category == category


def test_the_meaning_of_a_known_error_stands_behind_the_death_in_the_evidence() -> None:
    death = _death(1_101.0, cause="exception", exception={"type": "OSError", "message": "[Errno 122] Disk quota"})
    known = {"name": "Disk quota exceeded", "means": "No more may be stored.", "cause": "old checkpoints.", "next": []}
    told = replace(death, evidence={**death.evidence, "explained": known})
    assert list(_only(_story(told)).evidence)[-2:] == [
        "rank 3 died", "Disk quota exceeded: No more may be stored. Usual cause: old checkpoints."
    ]  # fmt: skip
    assert list(_only(_story(death)).evidence)[-1] == "rank 3 died"


def test_the_first_line_of_the_evidence_is_what_the_category_rests_on() -> None:
    warm = _fault(1_090.0, "thermal", (5,), severity="warning", title="GPU 5 is warm")
    other = _fault(1_092.0, "processor", (7,), title="GPU 7 does not answer")
    one = _only(_story(warm, other, _death(1_101.0), _fault(1_095.0, "bus", title="GPU 3 is off the bus")))
    assert (one.category, one.evidence[0]) == ("faulty_gpu", "GPU 3 is off the bus")
    assert set(one.evidence[1:]) == {"GPU 5 is warm", "GPU 7 does not answer", "rank 3 died"}


@pytest.mark.parametrize(
    "fault",
    [
        _fault(500.0),
        _fault(1_095.0, severity="warning"),
        _fault(1_095.0, blames_hardware=False),
    ],
)
def test_a_fault_of_another_time_one_that_stops_nothing_and_one_of_the_program_are_no_cause(
    fault: Incident,
) -> None:
    assert _only(_story(_death(1_101.0, cause="oom_kill"), fault)).category == "oom"


def test_a_fault_of_another_gpu_is_told_as_unsure() -> None:
    one = _only(_story(_death(1_101.0), _fault(1_095.0, ranks=(7,), node="n9")))
    assert (one.category, one.confidence, "unrelated" in one.unsure) == ("gpu_hbm3", "low", True)


def test_several_gpus_of_a_node_that_go_at_once_are_not_called_faulty_gpus() -> None:
    gpus = [{"uuid": f"GPU-{i}", "ranks": [i]} for i in range(3)]
    one = _only(_story(_death(1_101.0), _fault(1_095.0, "bus", gpus=gpus)))
    assert (one.category, one.confidence) == ("io_expansion_board", "low")
    assert "power supply" in one.unsure


@pytest.mark.parametrize(
    ("facts", "category"),
    [
        ({"exception": {"type": "KeyboardInterrupt", "message": ""}}, "user_stop"),
        ({"cause": "signal", "signal_name": "SIGINT"}, "user_stop"),
        ({"cause": "signal", "signal_name": "SIGTERM"}, "host_maintenance"),
        ({"cause": "signal", "signal_name": "SIGKILL"}, "unknown"),
        ({"cause": "crash", "signal_name": "SIGSEGV"}, "software_bug"),
        ({"cause": "crash", "signal_name": "SIGBUS"}, "system_memory"),
        ({"exception": {"type": "ValueError", "message": "shape mismatch"}}, "software_bug"),
        ({"exception": {"type": "OutOfMemoryError", "message": "CUDA out of memory."}}, "oom"),
        ({"exception": {"type": "AcceleratorError", "message": "uncorrectable ECC error encountered"}}, "gpu_hbm3"),
        (
            {"exception": {"type": "DistBackendError", "message": "Watchdog caught collective operation timeout: x"}},
            "nccl_timeout",
        ),
        ({"exception": {"type": "DistBackendError", "message": "ncclRemoteError: x"}}, "network_switch_cable"),
        (
            {"exception": {"type": "RuntimeError", "message": "Connection closed by peer"}, "over_before": [1]},
            "software_bug",
        ),
        ({"exception": {"type": "RuntimeError", "message": "size mismatch for blocks3.weight"}}, "software_bug"),
        ({"exception": {"type": "RuntimeError", "message": "PutObject to S3 failed"}}, "dependency"),
        ({"exception": {"type": "OSError", "message": "[Errno 5] Input/output error"}}, "ssd"),
        ({"exception": {"type": "OSError", "message": "[Errno 121] Remote I/O error"}}, "ssd"),
        ({"exception": {"type": "OSError", "message": "[Errno 28] No space left on device"}}, "storage_full"),
        ({"exception": {"type": "OSError", "message": "[Errno 122] Disk quota exceeded"}}, "storage_full"),
        ({"exception": {"type": "RuntimeError", "message": "PytorchStreamWriter failed writing file"}}, "storage_full"),
        (
            {"exception": {"type": "RuntimeError", "message": "shared memory object: No space left on device (28)"}},
            "oom",
        ),
        (
            {"exception": {"type": "RuntimeError", "message": "DataLoader worker is killed by signal: Killed."}},
            "oom",
        ),
        ({"exception": {"type": "RuntimeError", "message": "CUDA error: out of memory"}}, "oom"),
        ({"exception": {"type": "GatedRepoError", "message": "Access to the model is restricted"}}, "dependency"),
        ({"exception": {"type": "HTTPError", "message": "503 of huggingface.co"}}, "dependency"),
        ({"cause": "exit_code", "exit_code": 1}, "software_bug"),
        ({}, "unknown"),
    ],
)
def test_a_death_is_sorted_by_what_the_first_process_left(facts: dict[str, Any], category: str) -> None:
    one = _only(_story(_death(1_101.0, **facts)))
    assert (one.category, one.counted) == (category, category != "user_stop")
    assert one.unsure or one.confidence == "high"


@pytest.mark.parametrize(
    ("what", "text", "category"),
    [
        ("mce", "mce: [Hardware Error]: Machine check events logged", "cpu"),
        ("edac", "EDAC MC0: 1 UE memory read error", "system_memory"),
        ("io", "blk_update_request: I/O error, dev nvme0n1", "ssd"),
        ("link", "mlx5_core 0000:17:00.0 eth2: Link down", "nic"),
        ("link", "nvidia-nvswitch3: SXid (PCI:0000:c1:00.0): 12028, Non-fatal", "faulty_gpu"),
        ("link", "pcieport 0000:15:01.0: PCIe Bus Error: severity=Uncorrected (Fatal)", "io_expansion_board"),
    ],
)
def test_the_kernels_log_names_what_the_job_can_not(what: str, text: str, category: str) -> None:
    line = KernelLogLine("n1", what, 1_098.0, text)
    one = _only(_story(_death(1_101.0, cause="signal", signal_name="SIGKILL"), kernel=[line]))
    assert (one.category, one.confidence) == (category, "medium")
    assert f"kernel log of n1: {text}" in one.evidence


def _killed(pid: int | None, node: str = "n1") -> KernelLogLine:
    text = f"Out of memory: Killed process {pid} (python)"
    return KernelLogLine(node, "oom", 1_098.0, text, pid)


@pytest.mark.parametrize(
    ("line", "listed"),
    [
        (_killed(4_711), True),
        (_killed(None), True),
        (_killed(9), False),
        (_killed(4_711, "n2"), False),
    ],
)
def test_of_kills_for_memory_only_those_of_the_jobs_own_processes_are_listed(line: KernelLogLine, listed: bool) -> None:
    story = _story(_death(1_101.0, cause="signal", signal_name="SIGKILL", pid=4_711), kernel=[line])
    assert (f"kernel log of {line.node}: {line.text}" in _only(story).evidence) is listed


def test_in_a_container_that_counts_pids_its_own_way_the_lines_of_its_node_are_listed() -> None:
    counted = {"source": "cgroup", "counter": "memory.events.local", "kills": 1, "seconds_ago": 0.1}
    story = _story(_death(1_101.0, cause="oom_kill", pid=7, oom=counted), kernel=[_killed(9), _killed(9, "n2")])
    told = [line for line in _only(story).evidence if line.startswith("kernel log")]
    assert told == [f"kernel log of n1: {_killed(9).text}"]


def test_a_worker_of_a_data_loader_that_is_named_by_its_rank_is_of_the_job() -> None:
    said = {"type": "RuntimeError", "message": "DataLoader worker (pid(s) 41, 42) exited unexpectedly"}
    story = _story(_death(1_101.0, exception=said), kernel=[_killed(42), _killed(43)])
    told = [line for line in _only(story).evidence if line.startswith("kernel log")]
    assert told == [f"kernel log of n1: {_killed(42).text}"]


def test_kills_of_other_peoples_processes_do_not_push_the_jobs_own_line_out() -> None:
    lines = [_killed(pid) for pid in range(10, 30)] + [_killed(4_711)]
    one = _only(_story(_death(1_101.0, source="r3-1-4711"), kernel=lines))
    assert [line for line in one.evidence if line.startswith("kernel log")] == [
        f"kernel log of n1: {_killed(4_711).text}"
    ]


def test_a_hang_that_people_end_by_hand_counts_by_the_hang() -> None:
    story = _story(_hang(1_100.0, "collective_stuck"), _death(1_140.0, exception={"type": "KeyboardInterrupt"}))
    assert _only(story).category == "nccl_timeout"


def test_a_restart_that_somebody_ordered_while_all_was_well_is_a_stop_by_hand() -> None:
    restart = Restart(
        command_id="c-1", run_id="run", issuer="ada", reason="new data", issued=1_102.0, expires=1_162.0,
        fence=CommandFence(0, ""), world_size=1, plan={}, grace_s=10.0,
    )  # fmt: skip
    one = _only(_story(restarts=[restart]))
    assert (one.category, one.counted) == ("user_stop", False)
    assert "restart ordered by ada: new data" in one.evidence


def test_a_hang_that_goes_on_by_itself_is_a_stall_and_not_counted() -> None:
    stall = _hang(1_040.0, "io", state="recovered", resolved=1_080.0, recovered_step=50)
    one = _only(_story(stall, stretches=(FIRST,)))
    assert (one.what, one.counted, one.downtime_s, one.category) == ("stall", False, 40.0, "ssd")


def test_an_interruption_of_a_job_that_never_came_back_counts_for_a_day_at_most() -> None:
    story = _story(_death(1_101.0), stretches=(FIRST,))
    assert (_only(story).open, _only(story, 1_160.0).time_lost_s) == (True, 60.0)
    assert _only(story, 10_000_000.0).time_lost_s == OPEN_COUNTS_S


def test_a_process_that_was_replaced_without_a_word_is_an_unknown_interruption_unless_it_had_finished() -> None:
    one = _only(_story())
    assert (one.what, one.category, one.incident_id, one.id) == ("restart", "unknown", None, "stop-r0-2")
    done = TrainingInterval("r0-1", 1_000.0, 1_100.0, 0, 100, 8, finished=True)
    assert interruptions_of(_story(stretches=(done, SECOND))) == []
    assert interruptions_of(_story(watched=False)) == []


def test_a_job_that_dies_again_and_again_before_its_first_row_is_interrupted_once() -> None:
    deaths = [_death(1_101.0 + 10 * i, cause="exit_code") for i in range(4)]
    assert len(_only(_story(*deaths)).incidents) == 4


def test_a_node_that_falls_silent_is_nothing_while_the_job_goes_on() -> None:
    lost = _incident(
        "agent_lost", 1_050.0, node="n1", evidence={"verdict": {"class": "partition", "training": "goes on"}}
    )
    assert interruptions_of(_story(lost, stretches=(FIRST,))) == []
    stands = _incident(
        "agent_lost", 1_101.0, node="n1", evidence={"verdict": {"class": "partition", "training": "stands"}}
    )
    one = _only(_story(stands, stretches=(FIRST,)))
    assert (one.what, one.category, "power supply" in one.unsure) == ("node_lost", "unknown", True)


_TIMES = st.floats(900.0, 1_500.0)
_STOPS = st.lists(
    st.one_of(
        st.builds(_death, _TIMES),
        st.builds(_hang, _TIMES, st.sampled_from(["io", "desync", "node_lost", "what"])),
        st.builds(_fault, _TIMES),
    ),
    max_size=8,
    unique_by=lambda incident: incident.incident_id,
)


@settings(max_examples=100, deadline=None)
@given(incidents=_STOPS, starts=st.lists(st.floats(1_000.0, 1_400.0), max_size=4, unique=True))
def test_no_two_interruptions_lie_between_the_same_two_stretches_and_none_costs_less_than_nothing(
    incidents: list[Incident], starts: list[float]
) -> None:
    begins = sorted(starts)
    ends = [b for _, b in pairwise([*begins, 1_500.0])]
    stretches = [
        TrainingInterval(f"s{i}", a, a + (b - a) / 2, i, i + 5)
        for i, (a, b) in enumerate(zip(begins, ends, strict=True))
    ]
    found = [shown(one, RUN, 1_600.0) for one in interruptions_of(_story(*incidents, stretches=stretches))]
    assert len({(one.step, one.resumed_step) for one in found}) == len(found)
    assert len(found) <= len(stretches) + 1
    assert all(one.time_lost_s >= 0 for one in found)
    assert all(one.category in CATEGORIES for one in found)


def test_the_table_is_llama_3s_in_its_order_and_its_counts_make_419() -> None:
    rows = table_of([])
    published = [row.published for row in rows if row.published is not None]
    assert published == [148, 72, 54, 35, 32, 19, 17, 7, 7, 6, 6, 3, 3, 2, 2, 2, 2, 2]
    assert sum(published) == PUBLISHED.count == 419
    assert rows[0].published_share == pytest.approx(0.353, abs=0.001)
    assert [row.count for row in rows] == [0] * len(rows)


def _stopped(gpus: int | None) -> StoppedRun:
    return StoppedRun(RUN, [], [(1_000.0, 1_100.0, 8), (1_150.0, 1_270.0, 8)], deleted=False, gpus=gpus)


def test_the_sums_count_what_is_counted_and_the_time_that_was_asked_for() -> None:
    story = _story(_death(1_101.0, cause="oom_kill"))
    stopped = _only(story)
    by_hand = shown(*interruptions_of(story), RUN, 2_000.0, Correction(category="user_stop", who="ada", time=1.0))
    numbers = summed([([stopped, by_hand], _stopped(8))], 1_050.0)
    assert (numbers.count, numbers.running_s, numbers.mtbi_s, numbers.rank_s) == (1, 170.0, 170.0, 170.0 * 8)
    assert numbers.gpu_hours == pytest.approx(170 * 8 / 3600)
    assert {row.category: row.count for row in table_of([stopped, by_hand]) if row.count} == {
        "oom": 1, "user_stop": 1,
    }  # fmt: skip


@pytest.mark.parametrize(("gpus", "of_ranks"), [(None, 8), (8, 8), (4, 4), (16, 8), (0, 0)])
def test_gpu_hours_are_those_of_gpus_that_were_seen_at_most_one_a_rank(gpus: int | None, of_ranks: int) -> None:
    assert summed([([], _stopped(gpus))], 0.0).gpu_hours == pytest.approx(220 * of_ranks / 3600)


def test_a_thousand_gpu_hours_have_the_interruptions_of_jobs_on_gpus_and_too_few_hours_say_nothing() -> None:
    one = _only(_story(_death(1_101.0, cause="oom_kill")))
    days = StoppedRun(RUN, [], [(0.0, 360_000.0, 8)], deleted=False, gpus=8)
    assert summed([([one], days), ([one] * 5, _stopped(0))], 0.0).per_1000_gpu_hours == pytest.approx(1000 / 800)
    assert summed([([one] * 5, _stopped(8)), ([one], _stopped(0))], 0.0).per_1000_gpu_hours is None


@pytest.mark.parametrize(
    ("signal", "scheduled", "category"),
    [
        ("SIGTERM", False, "user_stop"), ("SIGHUP", False, "user_stop"), ("SIGTERM", True, "host_maintenance"),
        ("SIGTERM", None, "host_maintenance"), ("SIGUSR1", False, "host_maintenance"), ("SIGKILL", False, "unknown"),
    ],
)  # fmt: skip
def test_a_signal_that_ends_a_job_that_no_scheduler_started_is_a_stop_by_hand(
    signal: str, scheduled: bool | None, category: str
) -> None:
    death = _death(1_101.0, cause="signal", signal_name=signal)
    one = _only(_story(death, scheduled=scheduled))
    assert (one.category, one.counted) == (category, category != "user_stop")
    lost = _incident("agent_lost", 1_101.0, evidence={"verdict": {"class": "node", "training": "stands"}})
    assert _only(_story(death, lost, scheduled=scheduled)).category != "user_stop"


def test_a_stop_by_hand_loses_no_time_however_long_ago_it_was() -> None:
    death = _death(1_101.0, cause="signal", signal_name="SIGTERM")
    for now in (1_200.0, 1_000_000.0):
        left = _only(_story(death, stretches=(FIRST,), scheduled=False), now)
        assert (left.open, left.downtime_s, left.time_lost_s) == (True, 0.0, 0.0)
    on_again = _only(_story(death, scheduled=False))
    assert (on_again.downtime_s, on_again.time_lost_s) == (50.0, 0.0)
