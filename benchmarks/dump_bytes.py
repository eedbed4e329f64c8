"""Measures the bytes that one look at all ranks of a node puts into the run's stream.

    python benchmarks/dump_bytes.py [--ranks 8] [--out FILE] [--json]

Real ranks (``examples/faults``: torch, gloo, Flight Recorder) under one real agent, of which one waits for its data for
ever and the others wait for it in a collective. A gateway of our tests orders ``dump_stacks`` and counts what comes.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

_ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(_ROOT / "examples" / "faults"), str(_ROOT / "tests")]

from catalog import FAULTS  # noqa: E402
from stabilityclient.wire import EventBlock, Frame, SourceInfo, encode_message  # noqa: E402
from stage import FaultyJob  # noqa: E402
from support.agent.gateway import Gateway  # noqa: E402

#: Longest wait for all ranks to stand, and for the look, seconds: eight torch processes come up on two busy cores.
UP_S, LOOK_S = 300.0, 60.0
#: Seconds for which the others have to stand too before the look.
STAND_S = 5.0


def bytes_of(event: EventBlock) -> int:
    """Return what an event adds to a frame."""
    source = SourceInfo("a1-1", None, 1, 0, "node-0", 1, 1.0)
    return len(encode_message(Frame(source, 1, 1, [event]))) - len(encode_message(Frame(source, 1, 1, [])))


def look(ranks: int) -> list[EventBlock]:
    """Return the ``stacks`` events of one look at a job of so many ranks that stands."""
    fault = next(fault for fault in FAULTS if fault.name == "data_loader")
    with tempfile.TemporaryDirectory() as folder, Gateway() as gateway:
        options: dict[str, Any] = {"url": gateway.url, "run_id": "look", "folder": Path(folder)}
        with FaultyJob(fault, world_size=ranks, torch=True, step=10, **options) as job:
            wait(lambda: job.happened is not None, UP_S, "the fault")
            time.sleep(STAND_S)
            expires = time.time() + LOOK_S
            gateway.send(
                {"command_id": "d1", "kind": "dump_stacks", "state": "pending", "attempt": 1, "expires": expires}
            )
            wait(lambda: bool(gateway.store.events("command", None)), LOOK_S, "the answer")
            print(gateway.store.events("command", None)[0].data["detail"], file=sys.stderr)
            return gateway.store.events("stacks", None)


def wait(condition: Any, timeout_s: float, what: str) -> None:
    """Return when ``condition()`` holds."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError(f"{what}: not within {timeout_s:g} s")
        time.sleep(0.1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, default=8)
    parser.add_argument("--out", type=Path, help="write the events here, as JSON")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    events = look(arguments.ranks)
    if arguments.out is not None:
        arguments.out.write_text(json.dumps([event.data for event in events], indent=1))
    total = sum(bytes_of(event) for event in events)
    result = {"ranks": arguments.ranks, "events": len(events), "bytes": total, "bytes_a_rank": total / arguments.ranks}
    print(json.dumps(result) if arguments.json else "  ".join(f"{name} {value:,.0f}" for name, value in result.items()))


if __name__ == "__main__":
    main()
