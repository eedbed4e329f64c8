"""A real agent of a real job on a node with GPUs: what it says of them arrives, and a sick driver harms nobody."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

from stabilityclient.agent.sources import is_alive
from support.agent.gateway import Gateway
from support.agent.small_job import SmallJob
from support.nvml.fake_nvml import GPU_IS_LOST, FakeNvml
from support.waiting import PATIENCE, wait_until


def test_ranks_gpus_and_their_troubles_arrive_and_a_call_that_hangs_keeps_no_agent(
    agents: Path, tmp_path: Path, nvml_library: Path
) -> None:
    nvml = FakeNvml(nvml_library, tmp_path, 3)
    kmsg = tmp_path / "kmsg"
    kmsg.write_bytes(b"")
    environ = nvml.environ | {"STABILITY_KMSG": str(kmsg), "STABILITY_GPU_POLL_S": "0.2"}
    one_each = {rank: {"CUDA_VISIBLE_DEVICES": str(2 - rank)} for rank in (0, 1)}
    with Gateway() as gateway, SmallJob(agents, gateway, 2, environ, one_each) as job:
        ranks = job.wait_health(
            lambda r, s: {rank: entry["gpu"] for rank, entry in r.items()} if s["gpu"]["visible"] else None,
            "the agent sees the GPUs",
        )
        assert {rank: gpu["index"] for rank, gpu in ranks.items()} == {0: 2, 1: 1}
        assert ranks[1]["uuid"] == nvml.gpu[1].uuid.decode()
        nvml.gpu[1].ecc_uncorrected = 1
        (error,) = job.wait_events("gpu", 1)
        assert (error.data["what"], error.data["ranks"], error.step) == ("ecc_uncorrected", [1], 3)
        nvml.gpu[2].fault = GPU_IS_LOST
        with open(kmsg, "a") as file:
            file.write("3,1,1,-;NVRM: Xid (PCI:0000:12:00): 79, pid=1, name=python, GPU has fallen off the bus.\n")
        events = job.wait_events("gpu", 3)
        assert {(e.data["what"], e.data["state"], tuple(e.data["ranks"])) for e in events[1:]} == {
            ("lost", "on", (0,)),
            ("xid", "event", (0,)),
        }
        wait_until(
            lambda: [gpu["ranks"] for gpu in job.wait_events("gpu_inventory", 1)[-1].data["gpus"]] == [[], [1], [0]],
            15,
            "the inventory names the ranks",
        )

        def points() -> dict[str, float]:
            return {name: value for _, _, metrics in gateway.store.rows(None) for name, value in metrics.items()}

        wait_until(lambda: points().get("gpu/1/ecc_uncorrected") == 1.0, 15, "the points arrive")
        nvml.gpu[0].hang = b"*"
        job.wait_health(
            lambda r, s: any("does not come back" in spot["why"] for spot in s["blind"]), "the call that hangs is told"
        )
        pid, before = job.agent_pid(), time.monotonic()
        os.kill(pid, signal.SIGTERM)
        wait_until(lambda: not is_alive(pid, 0), 20, "the agent leaves")
        assert time.monotonic() - before < 5.0 * PATIENCE
