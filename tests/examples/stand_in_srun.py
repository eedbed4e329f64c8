"""Stands in for ``srun``: starts the tasks of all nodes here and tells each what Slurm would tell it.

Options before the command are Slurm's own and passed over. SIGTERM goes to all tasks; when one ends badly the others
are ended, as with ``--kill-on-bad-exit``. ``$FOLDER/srun.pid`` is this process, for the stand-in of ``scontrol``.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from types import FrameType


def main() -> int:
    command = sys.argv[1:]
    while command[0].startswith("--"):
        del command[0]
    nodes, per_node = os.environ["SLURM_JOB_NODELIST"].split(","), int(os.environ["SLURM_NTASKS_PER_NODE"])
    tasks: list[subprocess.Popen[bytes]] = []

    def end(number: int, frame: FrameType | None) -> None:
        for task in tasks:
            if task.poll() is None:
                task.terminate()

    signal.signal(signal.SIGTERM, end)
    for at in range(len(nodes) * per_node):
        own = {
            "SLURM_PROCID": at,
            "SLURM_LOCALID": at % per_node,
            "SLURM_NODEID": at // per_node,
            "SLURM_NTASKS": len(nodes) * per_node,
            "SLURM_STEP_NUM_TASKS": len(nodes) * per_node,
            "SLURM_TASKS_PER_NODE": f"{per_node}(x{len(nodes)})",
            "SLURMD_NODENAME": nodes[at // per_node],
        }
        tasks.append(subprocess.Popen(command, env=os.environ | {name: str(value) for name, value in own.items()}))
    Path(os.environ["FOLDER"], "srun.pid").write_text(str(os.getpid()))
    worst = 0
    for task in tasks:
        code = task.wait()
        if code:
            end(0, None)
        worst = max(worst, 128 - code if code < 0 else code)
    return worst


sys.exit(main())
