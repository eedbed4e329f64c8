"""What the golden files hold. ``python tests/support/agent/golden_cases.py`` writes them: only with a new version."""

from __future__ import annotations

import math
import tempfile
from array import array
from pathlib import Path

from stabilityclient.node_frames import together
from stabilityclient.rank_state.slot import FLAG_FATAL, FLAG_PENDING, STATE_EXCEPTION, Slot
from stabilityclient.spool import SpoolWriter
from stabilityclient.wire import (
    Ack,
    Acks,
    CommandMessage,
    Durable,
    Error,
    EventBlock,
    Frame,
    Health,
    Hello,
    Message,
    Nack,
    PointsBlock,
    SourceInfo,
    Welcome,
    encode_message,
)

__all__ = ["GOLDEN", "MESSAGES", "chunk_bytes", "slot_bytes"]

GOLDEN = Path(__file__).parents[2] / "client" / "golden"

_SOURCE = SourceInfo("r1-18a-77", 1, 2, 1, "node-a", 77, 1000.5, 3)
_FIRST = SourceInfo("r0-18a-76", 0, 2, 0, "node-a", 76, 1000.5, 3)
_POINTS = PointsBlock(
    ["loss", "lr"],
    array("q", [0, 2**53 - 1]).tobytes(),
    array("d", [1000.25, 1000.5]).tobytes(),
    array("d", [math.nan, math.inf, -math.inf, -0.0]).tobytes(),
)

MESSAGES: dict[str, Message] = {
    "hello": Hello("run-1", "a18b-78", "node-a", "0.1.0", "p", "n", {"lr": 0.1, "layers": [1, 2]}, [_SOURCE]),
    "welcome": Welcome("0.1.0", 1001.0, {"r1-18a-77": 12}, [{"command_id": "c1", "kind": "rollback", "to_step": 5}]),
    "frame": Frame(
        _SOURCE, 13, 16, [_POINTS, EventBlock("checkpoint", 1001.5, 7, {"path": "/c/7"}), EventBlock("finish", 1002.0)]
    ),
    "ack": Ack("r1-18a-77", 16),
    "acks": Acks({"r0-18a-76": 4, "r1-18a-77": 16}),
    "node_frame": together(
        [
            Frame(_FIRST, 4, 6, [EventBlock("batch", 1000.0, 0, {"ids": [1]}), _POINTS]),
            Frame(_SOURCE, 17, 18, [_POINTS]),
        ]
    ),
    "durable": Durable({"r1-18a-77": 16}),
    "nack": Nack("r1-18a-77", 13, "frame 14..16 came, expected 13 next"),
    "error": Error("wrong_version", "speak version 1", True),
    "health": Health("a18b-78", "node-a", 1003.0, [{"rank": 1, "step": 7, "alive": True}], {"gpu": {"visible": False}}),
    "command": CommandMessage({"command_id": "c1", "kind": "rollback", "attempt": 1, "apply_at_step": 9}),
}


def chunk_bytes() -> bytes:
    """Return the used part of a chunk with two sets, three rows and two events."""
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / "sources" / "s"
        source.mkdir(parents=True)
        writer = SpoolWriter(str(source), 2**30, print)
        writer.append_event("start", None, 1000.0, {})
        writer.append_row(("loss", "lr"), 0, 1000.25, (1.5, math.nan))
        writer.append_row(("grad_norm/ü",), 2**53 - 1, 1000.5, (-math.inf,))
        writer.append_row(("loss", "lr"), 1, 1000.75, (True, 2))
        writer.append_event("checkpoint", 1, 1001.0, {"path": "/c/ü"})
        writer.close()
        return (source / "00000001.spool").read_bytes().rstrip(b"\0")


def slot_bytes() -> bytes:
    """Return the used part of a slot with every field set."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "slot"
        slot = Slot(str(path), pid=77, rank=1, world_size=2, started=1000.0)
        slot.beat, slot.last_seq, slot.dropped = 3, 12, 1
        slot.phases.add(slot.phases.find("data")[1], 2.5)
        slot.phases.add(slot.phases.find("data")[1], 0.5)
        label, entry = slot.phases.find("évaluation" * 7)
        slot.phases.add(entry, 1.25)
        slot.show(label, 1001.0, 30.0)
        slot.pending, slot.dump_signal, slot.flags, slot.probe = 2, 40, FLAG_FATAL | FLAG_PENDING, 5
        slot._thread = 79
        slot.write_probes()
        slot.set_segment("d-0123456789abcdef")
        slot.set_step(7, 1002.5)
        slot.set_state(STATE_EXCEPTION, "ValueError: nö")
        slot.close()
        return path.read_bytes().rstrip(b"\0")


def main() -> None:
    GOLDEN.mkdir(exist_ok=True)
    for name, message in MESSAGES.items():
        (GOLDEN / f"message_{name}.bin").write_bytes(encode_message(message))
    (GOLDEN / "chunk.bin").write_bytes(chunk_bytes())
    (GOLDEN / "slot.bin").write_bytes(slot_bytes())


if __name__ == "__main__":
    main()
