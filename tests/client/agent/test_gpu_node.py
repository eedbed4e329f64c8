"""The GPUs of a node: a real process, the real pynvml, and a C library of ours that speaks NVML's ABI."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from support.agent.gpu_node import Node
from support.nvml.fake_nvml import GPU_IS_LOST, RESET_REQUIRED, UNKNOWN_ERROR, FakeNvml
from support.waiting import PATIENCE, wait_until


@pytest.fixture
def watch(nvml_library: Path, tmp_path: Path) -> Iterator[Callable[..., Node]]:
    """Start to watch a node: ``watch(gpus, "rank:pid:local_rank", before=lambda nvml: ..., environ={})``."""
    nodes: list[Node] = []

    def start(gpus: int = 2, *ranks: str, before: Callable[[FakeNvml], None] | None = None, **more: Any) -> Node:
        nvml = FakeNvml(nvml_library, tmp_path, gpus)
        if before is not None:
            before(nvml)
        nodes.append(Node(nvml, tmp_path, *ranks, **more))
        return nodes[-1]

    yield start
    for node in nodes:
        if node.process.returncode is None:
            node.close()


def test_a_look_gives_every_figure_in_its_unit_and_the_inventory_says_who_is_where(watch: Callable[..., Node]) -> None:
    def before(nvml: FakeNvml) -> None:
        nvml.gpu[1].ecc_uncorrected, nvml.gpu[1].ecc_corrected, nvml.gpu[1].remap_cor = 3, 40, 2
        nvml.gpu[1].remap_unc, nvml.gpu[1].retired_sbe, nvml.gpu[1].retired_dbe = 1, 2, 1
        nvml.gpu[1].nvlink_crc, nvml.gpu[1].nvlink_replay, nvml.gpu[1].pcie_replays = 5, 6, 7
        nvml.gpu[1].reasons = 0x4
        nvml.gpu[1].runs(4321)

    node = watch(2, "7:4321:0", before=before)
    row = node.wait("row")
    assert {name: value for name, value in row.items() if name.startswith("gpu/1/")} == {
        "gpu/1/util_pct": 97.0,
        "gpu/1/mem_used_mib": 40960.0,
        "gpu/1/temp_c": 55.0,
        "gpu/1/mem_temp_c": 60.0,
        "gpu/1/power_w": 650.0,
        "gpu/1/power_limit_w": 700.0,
        "gpu/1/clock_sm_mhz": 1980.0,
        "gpu/1/clock_mem_mhz": 2619.0,
        "gpu/1/throttle_reasons": 4.0,
        "gpu/1/throttle_hw_thermal_s": 0.0,
        "gpu/1/throttle_sw_thermal_s": 0.0,
        "gpu/1/throttle_power_brake_s": 0.0,
        "gpu/1/ecc_corrected": 40.0,
        "gpu/1/ecc_uncorrected": 3.0,
        "gpu/1/remapped_corrected": 2.0,
        "gpu/1/remapped_uncorrected": 1.0,
        "gpu/1/retired_pages": 3.0,
        "gpu/1/pcie_replays": 7.0,
        "gpu/1/nvlink_errors": 11.0,
        "gpu/1/recovery_action": 0.0,
        "gpu/1/poll_ms": row["gpu/1/poll_ms"],
    }
    inventory = node.wait("gpu_inventory")
    assert inventory["driver"] == "580.65.06"
    assert inventory["gpus"][1] == {
        "index": 1,
        "uuid": "GPU-00000001-1111-4222-8333-444455556666",
        "name": "NVIDIA H100 80GB HBM3",
        "bus_id": "0000:11:00",
        "serial": "1650000001",
        "memory_mib": 81920,
        "mig": [],
        "missing": False,
        "ranks": [7],
    }
    node.wait_rows()
    assert node.all("gpu") == []  # what happened before, and a power cap, are no changes
    assert node.all("state")[-1]["blind"] == []


def test_what_is_switched_on_is_told_as_on_and_what_ends_as_off_with_its_gpu_and_ranks(
    watch: Callable[..., Node],
) -> None:
    faults = {
        "sram_threshold": ("sram_threshold", 1, 0),
        "remap_pending": ("remap_pending", 1, 0),
        "remap_failed": ("remap_failure", 1, 0),
        "recovery_action": ("recovery_action", 4, 0),
        "retired_pages": ("retired_pending", 1, 0),
        "temperature": ("temp", 88, 60),
        "pcie_link": ("pcie_width", 8, 16),
        "nvlink": ("links_down", 0b101, 0),
    }
    node = watch(2, "5:99999999:1")
    node.wait_rows()
    for state, at in (("on", 1), ("off", 2)):
        for fault in faults.values():
            setattr(node.gpu[1], str(fault[0]), fault[at])
        for what in faults:
            node.wait_change(what, state)
    for what, code in (("reset_required", RESET_REQUIRED), ("lost", GPU_IS_LOST)):
        node.gpu[1].fault = code
        node.wait_change(what, "on")
    node.gpu[1].fault = 0
    node.wait_change("reset_required", "off")
    told = {(d["what"], d["state"]): d for d in node.all("gpu")}
    assert len(node.all("gpu")) == 2 * len(faults) + 4  # nothing was told twice
    assert {(d["index"], d["bus_id"], tuple(d["ranks"])) for d in told.values()} == {(1, "0000:11:00", (5,))}
    assert told["recovery_action", "on"]["facts"] == {"action": 4}
    assert told["recovery_action", "on"]["text"] == "the driver asks: drain and reset the GPU"
    assert told["temperature", "on"]["facts"] == {"sensor": "gpu", "temp_c": 88.0, "limit_c": 87.0}
    assert told["pcie_link", "on"]["facts"] == {"width": 8, "width_max": 16, "gen": 5, "gen_max": 5}
    assert told["nvlink", "on"]["facts"] == {"down": [0, 2], "up": 16}
    assert told["lost", "on"]["facts"]["error"] == "GPU is lost"
    assert told["lost", "off"]["facts"]["seconds"] >= 0


def test_errors_that_are_counted_are_told_with_what_was_added(watch: Callable[..., Node]) -> None:
    node = watch(1, before=lambda nvml: setattr(nvml.gpu[0], "ecc_uncorrected", 10))
    node.wait_rows()
    node.gpu[0].ecc_uncorrected = 12
    first = node.wait_change("ecc_uncorrected", "event")["facts"]
    node.gpu[0].ecc_uncorrected = 13
    node.gpu[0].pcie_replays = 10_000
    node.gpu[0].retired_dbe = 1
    second = node.wait_change("ecc_uncorrected", "event", 2)["facts"]
    assert [(facts["added"], facts["total"]) for facts in (first, second)] == [(2, 12), (1, 13)]
    assert node.wait_change("pcie_replay", "event")["facts"]["added"] == 10_000
    assert node.wait_change("retired_pages", "event")["facts"]["total"] == 1


def test_throttling_is_a_share_of_the_time_by_the_counters_and_a_power_cap_is_none(watch: Callable[..., Node]) -> None:
    node = watch(2)
    node.wait_rows()
    node.gpu[0].sw_power.run(1.0)
    node.gpu[0].reasons = 0x4
    node.gpu[1].hw_therm.run(0.5)
    facts = node.wait_change("throttle", "on")["facts"]
    assert facts["reason"] == "hw_thermal"
    assert 0.05 <= facts["share"] <= 0.8
    row = node.wait("row", lambda row: row["gpu/1/throttle_hw_thermal_s"] > 0.1)
    assert row["gpu/0/throttle_hw_thermal_s"] == 0.0
    node.gpu[1].hw_therm.run(0.0)
    assert node.wait_change("throttle", "off")["index"] == 1
    assert {d["index"] for d in node.all("gpu")} == {1}


def test_an_xid_is_told_once_whichever_way_it_comes(watch: Callable[..., Node]) -> None:
    node = watch(3, "0:99999999:0")
    node.wait_rows()
    node.wait_listening()
    node.nvml.xid(0, 48)
    node.write_kernel("NVRM: Xid (PCI:0000:10:00): 48, pid=77, name=python, DBE (double bit error) in HBM.")
    node.nvml.xid(1, 31)
    node.write_kernel("NVRM: Xid (PCI:0000:12:00): 79, GPU has fallen off the bus.")
    node.write_kernel("NVRM: GPU 0000:12:00.0: GPU has fallen off the bus.")
    node.write_kernel("NVRM: Xid (PCI:0000:99:00): 74, a GPU that NVML does not give us")
    node.write_kernel("mlx5_core 0000:17:00.0 ib0: Link down")
    wait_until(lambda: len(node.all("gpu")) >= 3 and len(node.all("kernel")) >= 2, 15, "all are told")
    node.wait_rows(8)
    told = {d["index"]: d for d in node.all("gpu")}
    assert len(node.all("gpu")) == 3
    assert told[0]["facts"]["xid"] == 48
    assert told[0]["facts"]["pid"] == 77
    assert told[0]["ranks"] == [0]
    assert (told[1]["facts"], told[1]["text"]) == ({"xid": 31, "source": "nvml"}, "Xid 31")
    assert told[2]["facts"] == {"xid": 79, "source": "kernel"}
    assert [{k: d.get(k) for k in ("what", "xid", "bus_id")} for d in node.all("kernel")] == [
        {"what": "xid", "xid": 74, "bus_id": "0000:99:00"},
        {"what": "link", "xid": None, "bus_id": "0000:17:00"},
    ]


def test_a_gpu_that_is_lost_does_not_hide_the_others_and_one_that_says_nothing_is_lost_too(
    watch: Callable[..., Node],
) -> None:
    node = watch(3)
    node.wait_listening()
    node.gpu[0].fault = GPU_IS_LOST
    node.gpu[1].fault = UNKNOWN_ERROR
    assert node.wait_change("lost", "on", 2)["text"].startswith("does not answer any more (nvmlDevice")
    assert {d["index"] for d in node.all("gpu")} == {0, 1}
    assert {name.split("/")[1] for name in node.wait_rows()} == {"2"}
    state = node.wait_state(lambda s: "GPU 0" in s["gpu"]["text"], "the node's line names it")
    assert "GPU 0: GPU is lost" in state["gpu"]["text"]
    node.nvml.xid(2, 63)  # the listener still hears the one that lives
    assert node.wait_change("xid", "event")["index"] == 2


def test_a_gpu_that_does_not_even_say_who_it_is_is_lost_by_its_index_until_it_does(watch: Callable[..., Node]) -> None:
    node = watch(2, before=lambda nvml: setattr(nvml.gpu[1], "fault", GPU_IS_LOST))
    lost = node.wait_change("lost", "on")
    assert (lost["index"], lost["uuid"], lost["facts"]["call"]) == (1, "", "nvmlDeviceGetHandleByIndex")
    node.gpu[1].fault = 0
    assert node.wait_change("lost", "off")["index"] == 1
    assert node.wait("gpu_inventory", lambda i: i["gpus"][1]["uuid"])["gpus"][1]["index"] == 1
    assert node.wait_rows()["gpu/1/temp_c"] == 55.0


def test_a_gpu_that_vanishes_from_the_count_is_lost_and_the_others_keep_their_index(watch: Callable[..., Node]) -> None:
    node = watch(3)
    node.wait_rows()
    node.gpu[0].temp, node.gpu[1].temp, node.gpu[2].temp = 50, 51, 52
    node.gpu[1].present = 0
    lost = node.wait_change("lost", "on")
    assert (lost["index"], lost["uuid"], lost["facts"]) == (1, node.gpu[1].uuid.decode(), {"why": "not counted"})
    row = node.wait_rows()
    assert {k: v for k, v in row.items() if k.endswith("/temp_c")} == {"gpu/0/temp_c": 50.0, "gpu/2/temp_c": 52.0}
    node.gpu[1].present = 1
    assert node.wait_change("lost", "off")["index"] == 1
    assert node.wait_rows()["gpu/1/temp_c"] == 51.0


def test_a_call_that_hangs_is_named_keeps_nobody_and_is_over_when_it_returns(watch: Callable[..., Node]) -> None:
    node = watch(2, "4:99999999:1")
    node.wait_rows()
    node.wait_listening()
    node.gpu[1].hang = b"nvmlDeviceGetFieldValues"
    found = node.wait_change("call_hangs", "on")
    assert (found["index"], found["ranks"], found["facts"]["call"]) == (1, [4], "nvmlDeviceGetFieldValues")
    assert 1.0 <= found["facts"]["seconds"] < 10.0 * PATIENCE
    state = node.wait_state(lambda s: s["blind"], "what is not seen meanwhile is named")
    assert "GPU 1: nvmlDeviceGetFieldValues does not come back" in state["gpu"]["text"]
    threads = len(os.listdir(f"/proc/{node.process.pid}/task"))
    node.nvml.xid(0, 31)  # events still come
    node.wait_change("xid", "event")
    assert len(os.listdir(f"/proc/{node.process.pid}/task")) == threads  # nobody else was sent after the first
    node.gpu[1].hang = b""
    assert node.wait_change("call_hangs", "off")["facts"]["seconds"] >= 1.0
    node.wait_rows()
    node.wait_state(lambda s: not s["blind"], "nothing is hidden any more")
    node.gpu[0].hang = b"*"
    node.wait_change("call_hangs", "on", 2)
    assert node.close() < 8.0  # the agent leaves although NVML does not let go


def test_a_driver_that_goes_is_a_blind_spot_and_is_seen_again_when_it_comes_back(watch: Callable[..., Node]) -> None:
    node = watch(2)
    node.wait_rows()
    node.nvml.unload_driver()
    state = node.wait_state(lambda s: any(spot["what"] == "gpu" for spot in s["blind"]), "the driver is gone")
    assert [spot["why"] for spot in state["blind"]] == ["no NVIDIA driver: Driver Not Loaded"]
    waits = node.nvml.waits
    node.nvml.load_driver()
    node.wait_state(lambda s: s["gpu"]["visible"] and not s["blind"], "the driver is back")
    node.wait_listening(waits)
    node.nvml.xid(1, 94)
    assert node.wait_change("xid", "event")["facts"]["xid"] == 94
    assert [d["what"] for d in node.all("gpu")] == ["xid"]  # no GPU is blamed for its driver


def test_what_a_gpu_does_not_support_is_named_and_the_rest_is_read(watch: Callable[..., Node]) -> None:
    def before(nvml: FakeNvml) -> None:
        nvml.gpu[0].supported_events = 0
        nvml.gpu[0].without(
            *("nvmlDeviceGetPowerUsage", "nvmlDeviceGetMigMode", "nvmlDeviceGetSerial", "field:3", "field:4"),
            *("nvmlDeviceGetCurrentClocksEventReasons", "nvmlDeviceGetComputeRunningProcesses_v3", "field:270"),
        )
        nvml.gpu[0].reasons = 0x48  # hardware slowdown because of heat, for a GPU without time counters

    node = watch(1, before=before)
    state = node.wait_state(lambda s: len(s["blind"]) == 2, "both are named")
    assert {spot["what"]: spot["why"] for spot in state["blind"]} == {
        "gpu_ecc": "ECC not supported or switched off on GPU 0",
        "gpu_events": "events not supported on GPU 0: no Xid among its event types",
    }
    row = node.wait_rows()
    assert "gpu/0/power_w" not in row
    assert row["gpu/0/throttle_reasons"] == 0x48  # by its name of before driver 535
    assert node.wait_change("throttle", "on")["facts"] == {"reason": "hw_thermal", "share": None}
    refused = node.gpu[0].refused
    node.wait_rows(8)
    assert node.gpu[0].refused == refused > 0  # it was asked once


def test_a_node_without_the_library_says_so_and_tells_nothing_else(tmp_path: Path, watch: Callable[..., Node]) -> None:
    (tmp_path / "libnvidia-ml.so.1").write_bytes(b"no library")
    node = watch(0, environ={"LD_LIBRARY_PATH": str(tmp_path)})
    assert node.wait("gpu_note") == {"visible": False, "text": "no GPU visible here: NVML Shared Library Not Found"}
    state = node.wait_state(lambda s: s["blind"], "it is a blind spot")
    assert state["blind"][0]["why"] == "no NVML library: NVML Shared Library Not Found"
    assert node.wait("gpu_inventory")["gpus"] == []
    assert node.all("row") + node.all("gpu") == []


def test_what_a_gpu_says_where_it_has_no_value_is_no_value(watch: Callable[..., Node]) -> None:
    node = watch(1)
    node.wait_rows()
    node.gpu[0].ecc_uncorrected, node.gpu[0].pcie_replays = 2**64 - 1, 2**64 - 1
    node.gpu[0].temp, node.gpu[0].mem_temp = 255, 0
    wait_until(lambda: not {name for name in node.wait_rows() if "temp" in name}, 15, "no temperature")
    wait_until(lambda: node.wait_rows(8).keys() & {"gpu/0/util_pct"}, 15, "a slow look comes")
    assert [row for row in node.all("row") if row.get("gpu/0/ecc_uncorrected", 0.0) > 0.0] == []
    node.gpu[0].ecc_uncorrected, node.gpu[0].pcie_replays, node.gpu[0].temp, node.gpu[0].mem_temp = 0, 0, 55, 60
    wait_until(lambda: "gpu/0/temp_c" in node.wait_rows(8), 15, "it says what it has again")
    assert node.all("gpu") == []


def test_slow_calls_are_measured_and_are_no_hang(watch: Callable[..., Node]) -> None:
    node = watch(2, before=lambda nvml: setattr(nvml.gpu[1], "slow_ms", 20))
    node.wait_rows(3)
    took_ms = [(row["gpu/0/poll_ms"], row["gpu/1/poll_ms"]) for row in node.all("row")]
    assert min(slow for _, slow in took_ms) >= 7 * 20 > min(quick for quick, _ in took_ms)
    assert node.all("gpu") == []


def test_a_mig_instance_belongs_to_its_gpu(watch: Callable[..., Node]) -> None:
    def before(nvml: FakeNvml) -> None:
        nvml.gpu[1].mig_devices = 2
        nvml.gpu[1].without("nvmlDeviceGetUtilizationRates")

    with subprocess.Popen(
        ["sleep", "60"], env=os.environ | {"CUDA_VISIBLE_DEVICES": "MIG-00000009-0000-4000-8000-000000000000"}
    ) as rank:
        node = watch(2, f"3:{rank.pid}:0", before=before)
        state = node.wait_state(lambda s: s["ranks"]["3"], "the rank has its GPU")
        assert state["ranks"]["3"]["index"] == 1
        assert len(node.wait("gpu_inventory")["gpus"][1]["mig"]) == 2
        assert "gpu/1/temp_c" in node.wait_rows()
        rank.kill()
