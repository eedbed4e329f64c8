"""One rank of the demo's training job that writes down when each of its steps began.

    stamped_train.py OUT [arguments of examples/multimodal/train.py]

OUT.<rank> gets one float64 a step, monotonic seconds, in the order of the steps. What it adds to a step is one write
of 8 bytes, whatever the client does.
"""

from __future__ import annotations

import os
import runpy
import struct
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import stabilityclient

_SCRIPT = Path(__file__).resolve().parents[1] / "examples" / "multimodal" / "train.py"


def main() -> None:
    """Train with a ``run.steps`` that keeps the time."""
    out = os.open(f"{sys.argv[1]}.{os.environ['RANK']}", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    init = stabilityclient.init

    def stamped_init(*args: Any, **settings: Any) -> stabilityclient.Run:
        run = init(*args, **settings)
        steps = run.steps

        def stamped(*args: Any) -> Iterator[int]:
            for step in steps(*args):
                os.write(out, struct.pack("<d", time.monotonic()))
                yield step

        run.steps = stamped  # type: ignore[method-assign]
        return run

    stabilityclient.init = stamped_init
    sys.argv = [str(_SCRIPT), *sys.argv[2:]]
    sys.path.insert(0, str(_SCRIPT.parent))
    runpy.run_path(str(_SCRIPT), run_name="__main__")


if __name__ == "__main__":
    main()
