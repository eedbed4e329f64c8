"""What threads freed goes back to the system."""

from __future__ import annotations

import subprocess
import sys

import pytest

#: Eight threads fill and free 16 MiB each, three times, and keep something small each time. Prints what stays, MiB.
PROGRAM = """
import sys, threading
import numpy as np
from stabilitybackend.base.allocator import give_memory_back
if sys.argv[1] == "set":
    assert give_memory_back()
together = threading.Barrier(8)
pins = []
def work():
    for size in (2**18, 2**20, 2**21):
        together.wait()
        blocks = [np.ones(size // 8) for _ in range(2**24 // size)]
        pins.append([np.ones(64) for _ in range(100)])
        del blocks
def resident():
    return int(open("/proc/self/statm").read().split()[1]) * 4 // 1024
before = resident()
threads = [threading.Thread(target=work) for _ in range(8)]
[thread.start() for thread in threads]
[thread.join() for thread in threads]
print(resident() - before)
"""


def kept_mib(how: str) -> int:
    done = subprocess.run([sys.executable, "-c", PROGRAM, how], capture_output=True, text=True, check=True)
    return int(done.stdout)


@pytest.mark.skipif(sys.platform != "linux", reason="glibc")
def test_a_process_that_freed_large_blocks_in_many_threads_keeps_less_of_them() -> None:
    assert kept_mib("set") < min(10, kept_mib("as it is"))
