"""The rules behind what is told of a GPU, each by itself and by a clock that the test moves."""

from __future__ import annotations

import pytest

from stabilityclient.agent.gpu.calls import Call, HangGuard, Hanging
from stabilityclient.agent.gpu.changes import (
    EVENTS_AT_ONCE,
    LINK_BAD_WINDOWS,
    LINK_WINDOWS,
    MAX_NEWS,
    Budget,
    Change,
    GpuChanges,
)
from stabilityclient.agent.gpu.conditions import COUNTER_QUIET_S
from stabilityclient.agent.gpu.monitor import SAME_S, XidFold, device_for
from stabilityclient.agent.gpu.samples import GpuInfo, GpuSample, row_of
from stabilityclient.agent.watch.kernel_lines import KernelMessage

GPU = GpuInfo(0, "GPU-a", "H100", "0000:10:00", limit_c=87.0, memory_limit_c=95.0)


def look(time: float, **values: float) -> GpuSample:
    return GpuSample(time, True, dict(values))


def told(changes: GpuChanges, *looks: GpuSample) -> list[tuple[str, str]]:
    return [(change.what, change.state) for each in looks for change in changes.compare(GPU, each)]


def test_a_short_dip_of_the_clocks_is_not_told_and_a_told_one_ends_after_three_calm_looks() -> None:
    changes = GpuChanges()
    seconds = [0.0, 0.4, 1.4, 2.4, 2.5, 2.6, 3.0, 3.1, 3.2, 3.3]  # throttled so long in all, every 10 s
    looks = [look(10.0 * at, hw_thermal_ns=total * 1e9) for at, total in enumerate(seconds)]
    assert told(changes, *looks[:2]) == []  # 4 %
    [on] = changes.compare(GPU, looks[2])
    assert (on.state, on.facts) == ("on", {"reason": "hw_thermal", "share": 0.1})
    assert told(changes, *looks[3:9]) == []  # two calm looks, then 4 % again, then two calm ones
    assert told(changes, looks[9]) == [("throttle", "off")]


def test_a_time_counter_that_went_back_is_a_new_beginning() -> None:
    changes = GpuChanges()
    assert (
        told(changes, look(0.0, power_brake_ns=9e12), look(10.0, power_brake_ns=0.0), look(20.0, power_brake_ns=0.0))
        == []
    )


def test_a_gpu_without_time_counters_is_throttled_when_two_looks_in_a_row_say_so() -> None:
    changes = GpuChanges()
    assert told(changes, look(0.0, throttle_reasons=0x40), look(10.0, throttle_reasons=0x0)) == []
    assert told(changes, look(20.0, throttle_reasons=0x48), look(30.0, throttle_reasons=0x48)) == [("throttle", "on")]


def test_a_temperature_at_its_limit_does_not_flap() -> None:
    changes = GpuChanges()
    at = [86.0, 87.0, 86.0, 85.0, 87.0, 84.0, 83.0]
    assert [len(changes.compare(GPU, look(float(i), temp_c=value))) for i, value in enumerate(at)] == [
        0,
        1,
        0,
        0,
        0,
        1,
        0,
    ]


def test_corrected_errors_are_added_up_and_told_every_ten_minutes() -> None:
    changes = GpuChanges()
    looks = [look(60.0 * at, ecc_corrected=100.0 + 3.0 * at) for at in range(21)]
    events = [change for each in looks for change in changes.compare(GPU, each)]
    assert [(change.what, change.facts["added"], change.facts["total"]) for change in events] == [
        ("ecc_corrected", 30.0, 130.0),
        ("ecc_corrected", 30.0, 160.0),
    ]
    assert events[0].facts["seconds"] == COUNTER_QUIET_S


def test_a_counter_that_is_lower_once_was_read_wrongly_and_one_that_stays_lower_began_anew() -> None:
    changes = GpuChanges()
    counted = [5.0, 0.0, 5.0, 6.0, 2.0, 2.0, 3.0]
    looks = [look(60.0 * at, ecc_uncorrected=value) for at, value in enumerate(counted)]
    told_of = [(c.facts["added"], c.facts["total"]) for each in looks for c in changes.compare(GPU, each)]
    assert told_of == [(1.0, 6.0), (2.0, 2.0), (1.0, 3.0)]


def test_a_link_is_bad_when_most_looks_see_new_errors_and_single_errors_are_daily_business() -> None:
    changes = GpuChanges()
    quiet = [look(60.0 * at, nvlink_errors=float(at // 3)) for at in range(60)]
    assert told(changes, *quiet) == []
    bad = [look(3_600.0 + 60.0 * at, nvlink_errors=20.0 + at) for at in range(LINK_WINDOWS)]
    assert told(changes, *bad) == [("nvlink", "on")]
    assert LINK_BAD_WINDOWS * 2 == LINK_WINDOWS
    calm = [look(7_200.0 + 60.0 * at, nvlink_errors=49.0) for at in range(LINK_WINDOWS)]
    assert told(changes, *calm) == [("nvlink", "off")]


def test_a_slow_pcie_link_is_one_of_a_gpu_at_work() -> None:
    link = {"pcie_width": 16.0, "pcie_width_max": 16.0, "pcie_gen": 1.0, "pcie_gen_max": 5.0}
    changes = GpuChanges()
    assert told(changes, look(0.0, util_pct=0.0, **link), look(60.0, util_pct=0.0, **link)) == []
    assert told(changes, look(120.0, util_pct=90.0, **link)) == []
    assert told(changes, look(180.0, util_pct=90.0, **link)) == [("pcie_link", "on")]


def test_another_recovery_action_is_told_while_the_first_stands() -> None:
    changes = GpuChanges()
    actions = [changes.compare(GPU, look(60.0 * at, recovery_action=float(a))) for at, a in enumerate((0, 1, 1, 2, 0))]
    assert [[(c.state, c.facts["action"]) for c in each] for each in actions] == [
        [],
        [("on", 1)],
        [],
        [("on", 2)],
        [("off", 0)],
    ]


def test_a_storm_is_cut_and_counted_and_no_end_is_told_of_what_was_not_told() -> None:
    changes = GpuChanges()
    assert told(changes, look(0.0, remap_pending=1.0), look(0.0, remap_pending=0.0)) == [
        ("remap_pending", "on"),
        ("remap_pending", "off"),
    ]
    xid = Change("xid", "event", {"xid": 31}, "")
    assert sum(len(changes.limited(xid, 0.0)) for _ in range(100)) == 1 + EVENTS_AT_ONCE
    assert told(changes, look(0.0, remap_pending=1.0), look(1.0, remap_pending=0.0)) == []
    [after] = changes.limited(xid, 10.0)
    assert (after.facts["suppressed"], changes.suppressed) == (70, 70)


def test_a_storm_of_many_errors_hides_no_other_and_is_bounded() -> None:
    changes = GpuChanges()
    storm = [Change("xid", "event", {"xid": number}, "") for number in (13, 31, 32, 43, 45, 69, 80, 94)]
    heard = [len(changes.limited(xid, 5.0 * at)) for at in range(60) for xid in storm]
    assert sum(heard) < len(heard) / 2
    assert [change.facts["xid"] for change in changes.limited(Change("xid", "event", {"xid": 79}, ""), 299.0)] == [79]
    assert told(changes, look(299.0, remap_failed=1.0)) == [("remap_failed", "on")]
    many = [len(changes.limited(Change("xid", "event", {"xid": number}, ""), 300.0)) for number in range(1_000, 2_000)]
    assert sum(many) <= MAX_NEWS + EVENTS_AT_ONCE


def test_a_budget_fills_again_with_time() -> None:
    budget = Budget(a_minute=60.0, at_once=2.0)
    assert [budget.take(0.0) for _ in range(4)] == [0, 0, None, None]
    assert [budget.take(1.0), budget.take(1.0)] == [2, None]


def test_a_call_hangs_after_its_limit_and_an_agent_that_stood_still_blames_nobody() -> None:
    guard = HangGuard(10.0)
    call = Call("nvmlDeviceGetFieldValues", "GPU-a", 0.0, 1)
    assert guard.check(call, 0.25) == []
    assert guard.check(call, 500.0) == []  # stopped for minutes: at most a second of it counts
    times = [500.0 + 0.5 * at for at in range(1, 40)]
    changes = [change for now in times for change in guard.check(call, now)]
    assert changes == [Hanging("nvmlDeviceGetFieldValues", "GPU-a", changes[0].seconds, False)]
    assert changes[0].seconds == pytest.approx(10.25)
    assert guard.hanging is not None
    [over] = guard.check(Call("nvmlDeviceGetName", "GPU-a", 520.0, 2), 520.0)
    assert (over.over, over.name, guard.hanging) == (True, "nvmlDeviceGetFieldValues", None)


def test_calls_that_follow_each_other_are_not_one_that_hangs() -> None:
    guard = HangGuard(1.0)
    assert [guard.check(Call("nvmlDeviceGetName", "", float(at), at), float(at)) for at in range(20)] == [[]] * 20


def line(xid: int, text: str) -> KernelMessage:
    return KernelMessage("xid", text, 0.0, xid=xid)


def test_nvml_first_waits_for_the_line_that_says_more() -> None:
    fold = XidFold()
    fold.nvml("GPU-a", 94, 100.0)
    assert fold.due(100.1) == []
    fold.kernel("GPU-a", line(94, "Xid 94, pid=12, name=python, Contained"), 100.2)
    [found] = fold.due(100.2)
    assert found.facts == {"xid": 94, "source": "nvml", "pid": 12, "process": "python"}
    assert found.line.endswith("Contained")
    fold.kernel("GPU-a", line(94, "again"), 101.0)
    assert fold.due(200.0) == []


def test_the_kernel_first_is_the_source_and_repeats_are_counted() -> None:
    fold = XidFold()
    fold.kernel("GPU-a", line(31, "first"), 100.0)
    assert [found.facts for found in fold.due(100.0)] == [{"xid": 31, "source": "kernel"}]
    for at in range(4):
        fold.nvml("GPU-a", 31, 100.5 + at)
    fold.nvml("GPU-b", 31, 101.0)
    assert [found.gpu for found in fold.due(102.0)] == ["GPU-b"]
    fold.nvml("GPU-a", 31, 100.0 + SAME_S)
    assert [found.facts for found in fold.due(110.0)] == [{"xid": 31, "source": "nvml", "repeats": 4}]


def test_without_a_kernel_log_nothing_is_waited_for() -> None:
    fold = XidFold(with_lines=False)
    fold.nvml("GPU-a", 79, 100.0)
    assert [found.facts["xid"] for found in fold.due(100.0)] == [79]


FOUR = [GpuInfo(i, f"GPU-{i}{i}{i}{i}-aa") for i in range(4)]


@pytest.mark.parametrize(
    ("pids", "local_rank", "visible", "index"),
    [
        ({"GPU-3333-aa": 900.0}, 0, None, 3),  # what NVML sees, whatever the rank was told
        ({"GPU-0000-aa": 300.0, "GPU-2222-aa": 40_000.0}, 3, None, 2),  # a stray context on GPU 0
        ({"GPU-0000-aa": 300.0, "GPU-2222-aa": 200.0}, 2, None, 2),
        ({}, 1, None, 1),
        ({}, 1, "2,3", 3),
        ({}, 3, "2", 2),  # each rank was given its own
        ({}, 0, "GPU-1111", 1),
        ({}, 1, "GPU-1111-aa, GPU-0000-aa", 0),
        ({}, 1, "3,-1,2", 3),  # CUDA stops at the first that is none
        ({}, 0, "MIG-GPU-2222-aa/1/0", 2),
        ({}, 0, "", None),
        ({}, 0, "9", None),
        ({}, 7, None, None),
        ({}, None, None, None),
        ({}, 2, "0,1", None),
    ],
)
def test_a_rank_is_on_the_gpu_that_the_best_source_names(
    pids: dict[str, float], local_rank: int | None, visible: str | None, index: int | None
) -> None:
    found = device_for(FOUR, pids, local_rank, visible)
    assert (None if found is None else found.index) == index


def test_time_at_lowered_clocks_is_counted_from_the_agents_start_and_over_a_new_driver() -> None:
    times: dict[str, tuple[float, float]] = {}
    rows = [row_of(GPU, look(0.0, hw_thermal_ns=ns), times) for ns in (5e9, 7e9, 0.0, 1e9)]
    assert [row["gpu/0/throttle_hw_thermal_s"] for row in rows] == [0.0, 2.0, 2.0, 3.0]
