"""Follows the files that the ranks of a node print to, and keeps the newest lines until they are sent.

Each line has the step at which its rank was when it was read. Bounded: bytes read of a file at a time, bytes a
second of a node, lines that wait. The excess is left out and counted; the newest is kept, as readers look at the
end. Never before points: ``Uplink`` sends lines only while hardly anything else is on its way.
"""

from __future__ import annotations

import asyncio
import os
import re
import stat
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from stabilityclient.agent.sources import Source
from stabilityclient.rank_state.slot import SlotView, read_slot
from stabilityclient.wire import Output, OutputLine

__all__ = ["MAX_LINE_CHARS", "Lines", "OutputFile", "OutputFollower", "output_files", "readable", "switched_off"]

#: Longest line, characters; the rest is cut.
MAX_LINE_CHARS = 2_000
#: Bytes kept of a line that has no end yet; a progress bar that is drawn again and again is cut to its newest form.
MAX_OPEN_BYTES = 16 * 1024
#: Share of bytes that are no text from which on a line is called binary.
BINARY_SHARE = 0.3
_ANSI = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)?|[@-Z\\-_])")
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f\u2028\u2029]")


class Lines:
    """Cuts the bytes of one file into lines, as they come; ``readable`` makes texts of those that are wanted."""

    def __init__(self) -> None:
        self._open = b""
        self._cut = False

    def jump(self) -> None:
        """The next bytes begin anywhere in a line: that line is left out, as its begin may have named a secret."""
        self._open, self._cut = b"", True

    def feed(self, data: bytes) -> list[bytes]:
        """Return the lines that are whole now."""
        if self._cut:
            _, *rest = re.split(rb"[\r\n]", data, maxsplit=1)
            self._cut, data = not rest, b"".join(rest)
        *whole, self._open = (self._open + data).split(b"\n")
        if len(self._open) > MAX_OPEN_BYTES:
            self._open = self._open.rpartition(b"\r")[2][-MAX_OPEN_BYTES:]
        return whole

    def rest(self) -> list[bytes]:
        """Return the last line without an end of line, of a process that has ended."""
        line, self._open = self._open, b""
        return [line] if line else []


def readable(line: bytes) -> str:
    """Return a line as printed: without colours, in its last form, cut."""
    # A progress bar goes back to the start of its line: only its last form is of interest.
    line = line.rstrip(b"\r").rpartition(b"\r")[2][: 4 * MAX_LINE_CHARS]
    text = line.decode("utf-8", "replace")
    plain = _CONTROL.sub("", _ANSI.sub("", text)).rstrip()
    bad = plain.count("\ufffd") + len(_CONTROL.findall(_ANSI.sub("", text)))
    if len(text) > 8 and bad > BINARY_SHARE * len(text):
        return f"({len(line)} bytes that are no text)"
    return plain if len(plain) <= MAX_LINE_CHARS else f"{plain[:MAX_LINE_CHARS]} …"


#: Files of one node that are followed: of more ranks the lowest ones.
MAX_FILES = 64
_STREAMS = {1: "out", 2: "err"}


@dataclass(frozen=True)
class OutputFile:
    """A file that ranks print to.

    Attributes:
        path: under which it is opened. key: unique among the files of the node.
        rank: the lowest rank that prints to it. stream: ``out`` or ``err``; ``out`` where both are one file.
        source: the id of the process of that rank.
    """

    path: str
    key: str
    rank: int
    stream: str
    source: str


def switched_off(setting: str) -> bool:
    """Return whether a ``STABILITY_OUTPUT`` switches reading off."""
    return setting.strip().lower() in ("off", "0", "none")


def output_files(sources: Iterable[Source], setting: str) -> list[OutputFile]:
    """Return the files of some living ranks, each once.

    Args:
        setting: STABILITY_OUTPUT: "" or ``on``: their file descriptors; else a path in which ``{rank}`` and
            ``{local_rank}`` stand for the rank.
    """
    found: dict[str, OutputFile] = {}
    for source in sorted(sources, key=lambda one: one.info.rank or 0):
        rank = source.info.rank or 0
        if setting.strip().lower() not in ("", "on", "1"):
            path = setting.replace("{rank}", str(rank)).replace("{local_rank}", str(source.info.local_rank or 0))
            paths = {1: path}
        elif source.elsewhere:
            continue
        else:
            paths = {fd: f"/proc/{source.info.pid}/fd/{fd}" for fd in _STREAMS}
        for fd, path in paths.items():
            key = _key(path)
            if key and key not in found and len(found) < MAX_FILES:
                found[key] = OutputFile(path, key, rank, _STREAMS[fd], source.info.source)
    return list(found.values())


def _key(path: str) -> str:
    """Return the unique key of a plain file, "" for any other and for one that may not be read."""
    try:
        facts = os.stat(path)
    except OSError:
        return ""
    if not stat.S_ISREG(facts.st_mode) or not os.access(path, os.R_OK):
        return ""
    return f"{facts.st_dev}:{facts.st_ino}"


#: Seconds between two looks at the files, and between two looks for new ones.
POLL_S, FIND_S = 0.5, 2.0
#: Bytes read of the end of a file that is seen for the first time, and of any file in one look.
FIRST_BYTES, READ_BYTES = 16 * 1024, 64 * 1024
#: Bytes of text that a node sends a second on average, and in one burst after a quiet time.
BYTES_PER_S, BURST_BYTES = 32 * 1024, 256 * 1024
#: Bytes of lines that wait while there is no connection; the oldest go first.
MAX_WAITING_BYTES = 256 * 1024
#: Bytes of text in one message.
MESSAGE_BYTES = 48 * 1024
#: Files whose place is remembered.
MAX_PLACES = 256


class OutputFollower:
    """The output of one node.

    Args:
        agent, node: of the sender.
        ranks: returns the node's training processes.
        setting: STABILITY_OUTPUT.
        places: file -> bytes that an earlier agent had read.
        log: takes a text when a file can't be read.
    """

    def __init__(
        self,
        agent: str,
        node: str,
        ranks: Callable[[], Iterable[Source]],
        setting: str,
        places: Mapping[str, int],
        log: Callable[[str], None],
    ) -> None:
        self._agent, self._node = agent, node
        self._ranks = ranks
        self._setting = setting
        self._log = log
        self._places = dict(places)
        self._open: dict[str, _Opened] = {}
        self._seen: set[str] = set()
        self._waiting: deque[OutputLine] = deque()
        self._waiting_bytes = 0
        self._skipped = 0
        self._find_at = 0.0
        self._allowed, self._allowed_at = float(BURST_BYTES), time.monotonic()

    def state(self) -> dict[str, int]:
        """Return how far each file has been read."""
        return dict(list(self._places.items())[-MAX_PLACES:])

    async def run(self) -> None:
        """Follow the files until cancelled."""
        while not switched_off(self._setting):
            try:
                # In a thread: a file on a network disk may hang, and nothing else of the agent is to wait for it.
                await asyncio.to_thread(self._poll)
            except Exception as error:  # with any content there, the agent continues
                self._log(f"output: {type(error).__name__}: {error}")
            await asyncio.sleep(POLL_S)
        await asyncio.Event().wait()

    def message(self) -> Output | None:
        """Return the next lines to send, oldest first, None where there are none; they are gone from here then."""
        if not self._waiting:
            return None
        lines, size = [], 0
        while self._waiting and size < MESSAGE_BYTES:
            line = self._waiting.popleft()
            size += len(line.text)
            lines.append(line)
        self._waiting_bytes = max(0, self._waiting_bytes - size)
        skipped, self._skipped = self._skipped, 0
        return Output(self._agent, self._node, lines, skipped)

    @property
    def busy(self) -> bool:
        """Whether lines of processes that are over are still to be read or sent."""
        return bool(self._open or self._waiting)

    def close(self) -> None:
        """Close the files."""
        for key in list(self._open):
            self._forget(key)

    def _poll(self) -> None:
        now = time.monotonic()
        sources = {source.info.source: source for source in self._ranks()}
        living = {name for name, source in sources.items() if source.alive}
        if now >= self._find_at or living - self._seen:
            self._find_at, self._seen = now + FIND_S, living
            for file in output_files((sources[name] for name in living), self._setting):
                self._follow(file)
        for key, opened in list(self._open.items()):
            over = opened.file.source not in living
            self._read(opened, sources.get(opened.file.source), over)
            if over:
                self._forget(key)

    def _follow(self, file: OutputFile) -> None:
        if file.key in self._open:
            # Several ranks print to it, or a new process does.
            self._open[file.key].file = file
            return
        try:
            # Kept open: the last words of a process that dies are read when its /proc is gone.
            fd = os.open(file.path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError:
            return
        facts = os.fstat(fd)
        if f"{facts.st_dev}:{facts.st_ino}" != file.key:
            os.close(fd)  # another file has its name by now: found again as such
            return
        self._open[file.key] = _Opened(file, fd)

    def _forget(self, key: str) -> None:
        os.close(self._open.pop(key).fd)

    def _read(self, opened: _Opened, source: Source | None, over: bool) -> None:
        key, size = opened.file.key, os.fstat(opened.fd).st_size
        place, passed = self._places.pop(key, None), 0
        if place is None:
            place = max(0, size - FIRST_BYTES)
            if place:
                opened.lines.jump()
        elif size < place:
            place = 0  # it was cut
        elif size - place > READ_BYTES:
            passed = size - READ_BYTES - place
            place += passed
            opened.lines.jump()
        data = os.pread(opened.fd, READ_BYTES, place)
        if passed:  # an estimate: as many as there would be of the length of those behind them, one at least
            self._skipped += max(1, passed * data.count(b"\n") // max(1, len(data)))
        self._places[key] = place + len(data)
        lines = opened.lines.feed(data) if data else []
        step, at = _step(source), time.time()
        self._take(opened, [*lines, *(opened.lines.rest() if over else [])], step, at)
        opened.step, opened.at = step, at

    def _take(self, opened: _Opened, lines: list[bytes], step: int, at: float) -> None:
        """Keep the newest lines that may go; no time is spent on those before them."""
        now = time.monotonic()
        self._allowed = min(BURST_BYTES, self._allowed + BYTES_PER_S * (now - self._allowed_at))
        self._allowed_at = now
        kept: list[OutputLine] = []
        for place in range(len(lines) - 1, -1, -1):
            text = readable(lines[place])
            if self._allowed < len(text):
                self._skipped += sum(1 for line in lines[: place + 1] if line.strip())
                break
            if text:
                self._allowed -= len(text)
                kept.append(opened.line(text, (place + 1) / len(lines), step, at))
        for line in reversed(kept):
            self._waiting.append(line)
            self._waiting_bytes += len(line.text)
        while self._waiting_bytes > MAX_WAITING_BYTES and self._waiting:
            self._waiting_bytes -= len(self._waiting.popleft().text)
            self._skipped += 1


class _Opened:
    """A file that is followed; ``step`` and ``at``: when it was read last (-1 and 0.0: not yet)."""

    def __init__(self, file: OutputFile, fd: int) -> None:
        self.file, self.fd = file, fd
        self.lines = Lines()
        self.step, self.at = -1, 0.0

    def line(self, text: str, share: float, step: int, at: float) -> OutputLine:
        """Return a line read after ``share`` of the time since the last look; its step follows from that."""
        if self.at and 0 <= self.step <= step:
            step = self.step + round(share * (step - self.step))
            at = self.at + share * (at - self.at)
        return OutputLine(at, self.file.rank, self.file.stream, step, text)


def _step(source: Source | None) -> int:
    """Return the step of a rank now; the agent's own look at its slot may be most of a second old."""
    if source is None:
        return -1
    found = read_slot(str(source.folder / "slot"))
    return found.step if isinstance(found, SlotView) else -1
