"""What the real agent says of a sick GPU is understood by the server: a node of our own NVML, fault by fault."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from stabilitybackend.judging.detectors.engine.base import Finding
from stabilitybackend.judging.gpus.view import gpus_view
from stabilitybackend.judging.gpus.watch import GPU_EVENTS, GpuWatch
from stabilitybackend.lineage.changes import LineageEvent
from stabilityclient.wire import SourceInfo
from support.nvml.fake_nvml import GPU_IS_LOST, FakeNvml
from support.waiting import wait_until

_PROGRAM = Path(__file__).parents[2] / "support" / "nvml" / "watched_node.py"


class _Watched:
    """A process that watches four GPUs with ranks 0 to 3, and what the server makes of its words."""

    def __init__(self, nvml: FakeNvml, folder: Path) -> None:
        self.nvml, self.watch = nvml, GpuWatch()
        self.findings: dict[str, Finding] = {}
        (folder / "kmsg").write_bytes(b"")
        self.process = subprocess.Popen(
            [sys.executable, str(_PROGRAM), "0.1", *(f"{rank}:{99_999_990 + rank}:{rank}" for rank in range(4))],
            env=os.environ | nvml.environ | {"STABILITY_KMSG": str(folder / "kmsg")},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            said = json.loads(line)
            if said["kind"] in GPU_EVENTS:
                event = LineageEvent(SourceInfo("a1", node="n1"), 0, said["kind"], time.time(), None, said["data"])
                for finding in self.watch.event(event, 7):
                    self.findings[finding.key] = finding

    def wait(self, condition: Callable[[Finding], Any], what: str) -> Finding:
        """Return the newest finding of a fault for which the condition holds."""
        return wait_until(lambda: next((f for f in [*self.findings.values()] if condition(f)), None), 15, what)

    def close(self) -> None:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.close()
        self.process.wait(10)
        self._reader.join(5)
        self.process.stdout.close()


@pytest.fixture
def node(nvml_library: Path, tmp_path: Path) -> Iterator[_Watched]:
    watched = _Watched(FakeNvml(nvml_library, tmp_path, 4), tmp_path)
    yield watched
    watched.close()


def test_faults_of_a_real_process_are_one_each_and_end_with_their_cause(node: _Watched) -> None:
    wait_until(lambda: len(list(node.watch.devices)) == 4 and node.nvml.waits, 15, "the agent knows its GPUs")
    node.nvml.gpu[1].ecc_uncorrected = 2
    node.nvml.gpu[1].recovery_action = 1
    node.nvml.xid(1, 48)
    memory = node.wait(lambda f: f.evidence["recovery_action"] == 1 and f.evidence["xids"], "a memory error")
    assert (memory.rank, memory.evidence["class"], memory.evidence["family"]) == (1, "reset", "hbm")
    node.nvml.gpu[2].fault = node.nvml.gpu[3].fault = GPU_IS_LOST
    lost = node.wait(lambda f: len(f.evidence["gpus"]) == 2, "two GPUs that are lost")
    assert (lost.evidence["ranks"], lost.severity) == ([2, 3], "critical")
    assert [gpu.state for gpu in gpus_view(node.watch, [], lambda uuid: None, lambda node: {})] == [
        "ok",
        "sick",
        "lost",
        "lost",
    ]
    node.nvml.gpu[1].recovery_action = node.nvml.gpu[2].fault = node.nvml.gpu[3].fault = 0
    node.wait(lambda f: f.key == memory.key and f.state == "resolved", "the GPU was reset")
    node.wait(lambda f: f.key == lost.key and f.state == "resolved", "the two are back")
    assert len(node.findings) == 2
