"""One rank of the demo's training job that writes down when each of its steps began.

    stamped_train.py OUT STEPS_A_TURN [arguments of examples/multimodal/train.py]

OUT.<rank> gets a ``Stamp`` a step, in the order of the steps; what that adds to a step is the same whatever the client
does. With STEPS_A_TURN above 0 the run records for so many steps and is as if disabled for as many; a seeded coin says
which comes first, so that nothing with a period in the job can pass for us. Its heart, agent and server go on
throughout.
"""

from __future__ import annotations

import itertools
import os
import random
import runpy
import struct
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import stabilityclient

__all__ = ["Stamp", "read_stamps"]

_SCRIPT = Path(__file__).resolve().parents[2] / "examples" / "multimodal" / "train.py"
_STAMP = struct.Struct("<dd?")


class Stamp(NamedTuple):
    """The begin of a step: monotonic seconds, CPU seconds of the training thread, and whether the step is recorded."""

    at: float
    cpu_s: float
    recorded: bool


def read_stamps(path: Path) -> list[Stamp]:
    """Return all stamps of one rank; a last one that is not whole is left out."""
    data = path.read_bytes()
    return [Stamp(*fields) for fields in _STAMP.iter_unpack(data[: len(data) // _STAMP.size * _STAMP.size])]


def main() -> None:
    """Train with a ``run.steps`` that keeps the time."""
    out = os.open(f"{sys.argv[1]}.{os.environ['RANK']}", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    steps_a_turn = int(sys.argv[2])
    init = stabilityclient.init

    def stamped_init(*args: Any, **settings: Any) -> stabilityclient.Run:
        run = init(*args, **settings)
        steps = run.steps
        parts, append = run._components, run._append
        coin, first = random.Random(1), True

        def stamped(*args: Any) -> Iterator[int]:
            nonlocal first
            every = steps(*args)
            for number in itertools.count():
                if steps_a_turn and number % (2 * steps_a_turn) == 0:
                    first = coin.random() < 0.5
                begins = not steps_a_turn or number % (2 * steps_a_turn) < steps_a_turn
                recorded = parts is not None and begins is first
                if parts is not None:  # what init() sets, and leaves unset in a disabled run
                    run._components, run._append = (parts, append) if recorded else (None, None)
                os.write(out, _STAMP.pack(time.monotonic(), time.thread_time(), recorded))
                step = next(every, None)
                if step is None:
                    return
                yield step

        run.steps = stamped  # type: ignore[method-assign]
        return run

    stabilityclient.init = stamped_init
    sys.argv = [str(_SCRIPT), *sys.argv[3:]]
    sys.path.insert(0, str(_SCRIPT.parent))
    runpy.run_path(str(_SCRIPT), run_name="__main__")


if __name__ == "__main__":
    main()
