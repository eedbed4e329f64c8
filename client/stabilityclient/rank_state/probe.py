"""Answers the agent's question for the current call and wait: a counter file asks, ``probe.json`` is the answer.

The stacks of Python are in it: taken with the interpreter's lock they are safe, where faulthandler, which reads them
without it, can crash a process whose threads run.

A daemon thread of its own answers: the Flight Recorder asks the driver about events, and a faulty driver
may hold that call without end. The heartbeat thread must beat on.
"""

from __future__ import annotations

import sys
import time

from stabilityclient.rank_state.calls import call_at
from stabilityclient.rank_state.flight_recorder import has_group, read_recorder
from stabilityclient.rank_state.slot import FLAG_RECORDER
from stabilityclient.rollback.command_files import MAILBOX_BYTES, map_counter

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import FrameType
    from typing import Any

    from stabilityclient.rank_state.slot import Slot

__all__ = ["Probe", "python_stacks"]

#: Frames of a thread, threads, and characters in total, at most.
MAX_FRAMES = 100
MAX_THREADS = 64
MAX_STACK_CHARS = 60_000
#: Threads of this package are of no interest.
_OURS = "stability-"


class Probe:
    """The probe counter of one process. ``poll`` is called by the heartbeat thread, with each beat.

    Args:
        counter: path of the counter file, made if it is not there.
        answer: path of ``probe.json``.
        slot: gets the number that was answered, and whether there is a Flight Recorder.

    Raises:
        OSError: the counter can't be made or mapped.
    """

    def __init__(self, counter: str, answer: str, slot: Slot) -> None:
        self._map = map_counter(counter)
        self._seen = self._map[:MAILBOX_BYTES]  # questions put before this process began are not for it
        self._answer = answer
        self._slot = slot
        self._asking: Any = None
        self._asking_since = 0.0

    def poll(self) -> None:
        """Answer a new question."""
        counter = self._map[:MAILBOX_BYTES]
        if counter == self._seen:
            return
        self._seen = counter
        number = int.from_bytes(counter, "little")
        if self._asking is not None and self._asking.is_alive():
            waited_s = time.monotonic() - self._asking_since
            why = f"the call of the Flight Recorder has not come back for {waited_s:.0f} s"
            self._write(number, None, why, python_stacks())
            return
        import threading

        self._asking_since = time.monotonic()
        self._asking = threading.Thread(target=self._ask, args=(number,), name=_OURS + "probe", daemon=True)
        self._asking.start()

    def _ask(self, number: int) -> None:
        try:
            # First: it needs this interpreter only, and the recorder's call may never come back.
            threads = python_stacks()
            if "torch" in sys.modules:
                self._write(number, None, "the Flight Recorder has not answered yet", threads, whole=False)
            try:
                collectives, why = read_recorder(sys.modules, time.time())
            except Exception as error:  # any version of torch may be there, in any state
                collectives, why = None, f"the Flight Recorder could not be read: {type(error).__name__}: {error}"[:500]
            if collectives is not None:
                self._slot.flag(FLAG_RECORDER)
            self._write(number, collectives, why, threads)
        except Exception:
            pass  # a full disk: the agent reports a missing answer

    def _write(
        self, number: int, collectives: dict[str, Any] | None, why: str | None, threads: str, *, whole: bool = True
    ) -> None:
        import json

        from stabilityclient.start import write_whole

        answer = {"n": number, "time": time.time(), "collectives": collectives, "why": why, "threads": threads}
        answer["group"] = _in_group()
        write_whole(self._answer, json.dumps(answer).encode())
        if whole:
            self._slot.probed(number)

    def close(self) -> None:
        """Unmap the counter."""
        self._map.close()


def _in_group() -> bool:
    try:
        return has_group(sys.modules)
    except Exception:
        return True  # any version of torch may be there: its answer can't be read, which is reported


def python_stacks() -> str:
    """Return the stacks of all Python threads but this package's, newest call first, in faulthandler's format.

    Below a thread's innermost frame is its open call in C, if any: ``    ~ with cache``.
    """
    import threading

    names = {thread.ident: thread.name for thread in threading.enumerate()}
    main = threading.main_thread().ident
    stacks = []
    frames = {ident: frame for ident, frame in sys._current_frames().items() if _OURS not in names.get(ident, "")}
    for ident in sorted(frames, key=lambda ident: ident == main)[-MAX_THREADS:]:
        title = "Current thread" if ident == main else "Thread"
        frame = frames[ident]
        head = f"{title} 0x{ident:016x} (most recent call first):\n"
        stacks.append((head, frame.f_code, frame.f_lasti, _lines(frame)))
    # The frames go on while instructions are read: last.
    parts = []
    for head, code, at, (innermost, *outer) in stacks:
        called = call_at(code, at)
        parts.append("".join((head, innermost, f"    ~ {called}\n" if called else "", *outer)))
    return "\n".join(parts)[-MAX_STACK_CHARS:]


def _lines(frame: FrameType | None) -> list[str]:
    lines: list[str] = []
    while frame is not None and len(lines) < MAX_FRAMES:
        code = frame.f_code
        lines.append(f'  File "{code.co_filename}", line {frame.f_lineno} in {code.co_name}\n')
        frame = frame.f_back
    return lines
