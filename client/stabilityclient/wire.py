"""The frames that travel between an agent and the gateway: one schema, both sides import it.

A message is ``header + body``. The header is 8 bytes little-endian: magic ``SB``, protocol version (u8),
message kind (u8), CRC-32 of the body (u32). The body is MessagePack of the struct that belongs to the kind.
``docs/wire.md`` is the prose; ``tests/client/golden/`` pins the bytes. Never imported by the training process. Objects
that are many in a message are out of the garbage collector's sight (``gc=False``): none is part of a cycle.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

import msgspec

from stabilityclient.arguments import MAX_STEP
from stabilityclient.metrics.schemas import MAX_NAME_CHARS

#: Version of the messages in this file. A server answers another one with a fatal Error and closes.
PROTOCOL_VERSION = 1
#: Version in NodeFrame, Acks and Durable messages of builds before the first release. Redis and archives hold such
#: NodeFrames: they are read until release 0.2, and never written.
_UNRELEASED_VERSION = 2
#: Largest message either side accepts, bytes. An agent cuts frames well below it (FRAME_TARGET_BYTES).
MAX_MESSAGE_BYTES = 4 * 1024 * 1024
#: Sets of metrics whose rows one frame gathers when they take turns, at most: agent and server agree on it.
MAX_SETS_IN_TURN = 16
#: An agent closes a frame at about this many bytes of body.
FRAME_TARGET_BYTES = 256 * 1024
#: Sources in one NodeFrame, at most: a node has 8 to 16 GPUs.
MAX_PARTS = 256
#: Source ids whose start is remembered: each rank is asked for its own several times a second.
MAX_STARTS = 65_536

_HEADER = struct.Struct("<2sBBI")
_MAGIC = b"SB"

__all__ = [
    "FRAME_TARGET_BYTES",
    "MAX_MESSAGE_BYTES",
    "MAX_NAME_CHARS",
    "MAX_PARTS",
    "MAX_SETS_IN_TURN",
    "MAX_STEP",
    "PROTOCOL_VERSION",
    "Ack",
    "Acks",
    "BadMessage",
    "CommandMessage",
    "Durable",
    "Error",
    "EventBlock",
    "Frame",
    "FramePart",
    "Health",
    "Hello",
    "Message",
    "Nack",
    "NodeFrame",
    "Output",
    "OutputLine",
    "PointsBlock",
    "SourceInfo",
    "Welcome",
    "WrongVersion",
    "decode_message",
    "encode_message",
    "pid_of",
    "started_ns",
]


class BadMessage(ValueError):
    """A message that can't be read: wrong magic, flipped bit, truncated, or not the schema."""


class WrongVersion(BadMessage):
    """A message of another protocol version.

    Attributes:
        version: the version that the sender speaks.
    """

    def __init__(self, version: int) -> None:
        super().__init__(
            f"message speaks protocol version {version}, expected {PROTOCOL_VERSION}: "
            "install the same major version of stabilityclient and stabilityboard on both sides"
        )
        self.version = version


class SourceInfo(msgspec.Struct, omit_defaults=True, gc=False):
    """One numbered stream of records: a start of a training process, or a start of an agent.

    Args:
        source: unique id, ``r<rank>-<start>`` for a training process, ``a<start>`` for an agent.
        rank: global rank, or None for an agent.
        world_size: ranks in the job as this process saw it.
        local_rank: rank on the node, or None for an agent.
        node: host name, unique in the job.
        pid: process id on the node.
        started: unix seconds.
        generation: restart count of the launcher (TORCHELASTIC_RESTART_COUNT), 0 where unknown.
    """

    source: str
    rank: int | None = None
    world_size: int = 1
    local_rank: int | None = None
    node: str = ""
    pid: int = 0
    started: float = 0.0
    generation: int = 0


@lru_cache(MAX_STARTS)
def started_ns(source: str) -> int:
    """Return the start in a source id (``r<rank>-<start in hex ns>-<pid>``), 0 where there is none."""
    parts = source.split("-")
    try:
        return int(parts[1], 16) if len(parts) > 1 else 0
    except ValueError:
        return 0


def pid_of(source: str) -> int:
    """Return the pid in a source id, 0 where there is none."""
    last = source.rpartition("-")[2]
    return int(last) if last.isdecimal() and source.count("-") >= 2 else 0


class PointsBlock(msgspec.Struct, tag_field="k", tag="p", gc=False):
    """Rows of one metric set, column by column, in the order in which they were logged.

    Args:
        names: the ``m`` metric names.
        steps: ``n`` int64 little-endian.
        times: ``n`` float64 little-endian, unix seconds.
        values: ``m * n`` float64 little-endian, metric after metric (column-major). NaN and infinities as IEEE 754;
            a missing value is a name that is not in ``names``.
    """

    names: list[str]
    steps: bytes
    times: bytes
    values: bytes


class EventBlock(msgspec.Struct, tag_field="k", tag="e", omit_defaults=True):
    """One thing that happened, in its place between the points. Types and their data: ``docs/wire.md``."""

    type: str
    time: float
    step: int | None = None
    data: dict[str, Any] = {}


class Hello(msgspec.Struct, omit_defaults=True):
    """First message of an agent on a connection."""

    run_id: str
    agent: str
    node: str
    client_version: str
    project: str = ""
    name: str = ""
    config: dict[str, Any] = {}
    sources: list[SourceInfo] = []
    tags: list[str] = []
    notes: str = ""


class Welcome(msgspec.Struct, omit_defaults=True):
    """Answer of the gateway to Hello: stored numbers, pending commands, whether it takes Output and sends Durable."""

    server_version: str
    server_time: float
    last_seq: dict[str, int]
    commands: list[dict[str, Any]]
    output: bool = False
    durable: bool = False


class Frame(msgspec.Struct, omit_defaults=True):
    """Records ``first_seq..last_seq`` of one source. The gateway stores it exactly once, or answers with a Nack."""

    source: SourceInfo
    first_seq: int
    last_seq: int
    blocks: list[PointsBlock | EventBlock]


class FramePart(msgspec.Struct, array_like=True, gc=False):
    """The records ``first_seq..last_seq`` of one source in a NodeFrame.

    Args:
        blocks: in their order, events, and rows as (number of a table, how many of its next rows).
    """

    source: SourceInfo
    first_seq: int
    last_seq: int
    blocks: list[tuple[int, int] | EventBlock]


class NodeFrame(msgspec.Struct):
    """Frames of several sources of a node as one message: the rows of all of them in one table for each set of metrics.

    The gateway stores it whole, or, where a source does not follow the stored records, each part for itself.

    Args:
        parts: each source once, 2 to MAX_PARTS. tables: their rows, in the order in which the parts take them.
    """

    parts: list[FramePart]
    tables: list[PointsBlock]


class Ack(msgspec.Struct):
    """All records of ``source`` up to ``last_seq`` are stored."""

    source: str
    last_seq: int


class Acks(msgspec.Struct):
    """Several Acks in one message, by source."""

    last_seq: dict[str, int]


class Durable(msgspec.Struct):
    """Records confirmed up to these numbers, by source, are on the disk of the server's Redis and on its replicas."""

    last_seq: dict[str, int]


class Nack(msgspec.Struct):
    """A frame did not follow the stored records: send again from ``expected_seq``."""

    source: str
    expected_seq: int
    message: str


class Error(msgspec.Struct):
    """A fault of the agent's message. ``fatal`` means: a retry of the same will not help."""

    code: str
    message: str
    fatal: bool = False


class Health(msgspec.Struct):
    """The newest slot of each rank of the node and the agent's own state. Not stored as points, not acknowledged."""

    agent: str
    node: str
    time: float
    ranks: list[dict[str, Any]]
    agent_state: dict[str, Any] = {}


class OutputLine(msgspec.Struct, array_like=True):
    """A line that a rank printed: when it was read (unix s), ``out`` or ``err``, the rank's step then (-1: none)."""

    time: float
    rank: int
    stream: str
    step: int
    text: str


class Output(msgspec.Struct, omit_defaults=True):
    """Lines that the ranks of a node printed; ``skipped`` ones were too many. Not acknowledged: best effort."""

    agent: str
    node: str
    lines: list[OutputLine]
    skipped: int = 0


class CommandMessage(msgspec.Struct):
    """A command, whole, each time that it changes (see docs/api.md for the fields)."""

    command: dict[str, Any]


Message = Hello | Welcome | Frame | NodeFrame | Ack | Acks | Durable | Nack | Error | Health | CommandMessage | Output

#: Message kind on the wire. Numbers are never reused.
_KINDS: dict[int, type[msgspec.Struct]] = {
    1: Hello,
    2: Frame,
    3: Health,
    4: Output,
    5: NodeFrame,
    16: Welcome,
    17: Ack,
    18: Nack,
    19: Error,
    20: CommandMessage,
    21: Acks,
    22: Durable,
}
_NUMBERS = {cls: number for number, cls in _KINDS.items()}
_ENCODER = msgspec.msgpack.Encoder()
_DECODERS = {number: msgspec.msgpack.Decoder(cls) for number, cls in _KINDS.items()}


def encode_message(message: Message) -> bytes:
    """Return the bytes of a message, header included."""
    body = _ENCODER.encode(message)
    return _HEADER.pack(_MAGIC, PROTOCOL_VERSION, _NUMBERS[type(message)], zlib.crc32(body)) + body


def decode_message(data: bytes, typed: Mapping[Any, msgspec.msgpack.Decoder[Any]] | None = None) -> Message:
    """Return the message in ``data``; ``typed`` has decoders to subclasses of some messages, with types for free data.

    Raises:
        WrongVersion: the header names a protocol version that is not served here.
        BadMessage: anything else that is wrong; the text has the found and the expected value.
    """
    kind, crc = _header(data)
    decoder = (typed or {}).get(_KINDS.get(kind)) or _DECODERS.get(kind)
    if decoder is None:
        raise BadMessage(f"message kind {kind} is unknown, expected one of {sorted(_KINDS)}")
    body = memoryview(data)[_HEADER.size :]
    if zlib.crc32(body) != crc:
        raise BadMessage(
            f"checksum is {zlib.crc32(body):#010x}, the header says {crc:#010x}: "
            "a bit flipped on the way; send it again"
        )
    try:
        message = decoder.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:  # names that are no UTF-8 are the second
        raise BadMessage(f"body of message kind {kind} is not its schema: {error}") from error
    if isinstance(message, Frame):
        _check_numbers(message)
        for block in message.blocks:
            if isinstance(block, PointsBlock):
                _check_points(block)
    elif isinstance(message, NodeFrame):
        _check_node_frame(message)
    return message  # type: ignore[return-value]


def _header(data: bytes) -> tuple[int, int]:
    """Return kind and checksum of a message."""
    if len(data) < _HEADER.size:
        raise BadMessage(f"message of {len(data)} bytes, expected at least {_HEADER.size}: it was cut off")
    magic, version, kind, crc = _HEADER.unpack_from(data)
    if magic != _MAGIC:
        raise BadMessage(f"message starts with {magic!r}, expected {_MAGIC!r}: not a Stabilityboard agent")
    if version not in (PROTOCOL_VERSION, _UNRELEASED_VERSION):
        raise WrongVersion(version)
    return kind, crc


def _check_numbers(frame: Frame | FramePart) -> None:
    if not 1 <= frame.first_seq <= frame.last_seq:
        raise BadMessage(f"frame numbers {frame.first_seq}..{frame.last_seq}, expected 1 <= first <= last")


def _check_points(block: PointsBlock) -> None:
    rows, odd = divmod(len(block.steps), 8)
    if odd or len(block.times) != 8 * rows or len(block.values) != 8 * rows * len(block.names):
        raise BadMessage(
            f"points of {len(block.names)} metrics have {len(block.steps)} bytes of steps, {len(block.times)} of "
            f"times and {len(block.values)} of values, expected 8 n, 8 n and 8 n m"
        )


def _check_node_frame(frame: NodeFrame) -> None:
    for table in frame.tables:
        _check_points(table)
    sources, taken = set(), [0] * len(frame.tables)
    for part in frame.parts:
        _check_numbers(part)
        sources.add(part.source.source)
        for block in part.blocks:
            if isinstance(block, EventBlock):
                continue
            number, rows = block
            if not 0 <= number < len(taken) or rows < 1:
                raise BadMessage(f"{rows} rows of table {number}, expected 1 or more of 0 to {len(taken) - 1}")
            taken[number] += rows
    if not 2 <= len(sources) == len(frame.parts) <= MAX_PARTS:
        raise BadMessage(
            f"{len(frame.parts)} parts of {len(sources)} sources, expected 2 to {MAX_PARTS}, each of its own source"
        )
    there = [len(table.steps) // 8 for table in frame.tables]
    if taken != there:
        raise BadMessage(f"parts take {taken} rows of tables with {there}, expected all of them")
