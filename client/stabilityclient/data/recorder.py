"""A thread that hashes what steps saw and appends it to the spool: the training thread only copies and queues."""

from __future__ import annotations

import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from stabilityclient.data.samples import Batch

__all__ = ["MAX_QUEUED", "Recorder"]

#: Batches waiting for the thread, or for their device. Beyond it they are dropped and counted.
MAX_QUEUED = 1_000

Facts = dict[str, object]


class Recorder:
    """Hashes batches in a thread of its own and hands their events on, in order.

    Args:
        store: called as ``store(step, when, data)`` from the thread.
        trouble: called with an exception when a batch can't be hashed.

    Attributes:
        dropped: batches that did not fit the queue.
    """

    def __init__(self, store: Callable[[int, float, Facts], object], trouble: Callable[[Exception], None]) -> None:
        import queue
        import threading

        self.dropped = 0
        self._store = store
        self._trouble = trouble
        self._full = queue.Full
        self._queue: queue.Queue[tuple[int, float, Facts, dict[str, Batch]]] = queue.Queue(MAX_QUEUED)
        threading.Thread(target=self._work, name="stability-data", daemon=True).start()

    def put(self, step: int, when: float, facts: Facts, sets: dict[str, Batch]) -> bool:
        """Queue what a step saw; return False where the queue is full."""
        try:
            self._queue.put_nowait((step, when, facts, sets))
        except self._full:
            self.dropped += 1
            return False
        return True

    def drain(self, wait_s: float) -> None:
        """Wait until everything queued is stored, ``wait_s`` seconds at most."""
        deadline = time.monotonic() + wait_s
        while self._queue.unfinished_tasks and time.monotonic() < deadline:
            time.sleep(0.001)

    def _work(self) -> None:
        while True:
            step, when, facts, sets = self._queue.get()
            try:
                self._store(step, when, {**event_data(sets), **facts})
            except Exception as error:  # the thread must live as long as the run
                self._trouble(error)
            finally:
                self._queue.task_done()


def event_data(sets: dict[str, Batch]) -> Facts:
    """Return the data of a ``batch`` event (docs/wire.md)."""
    total, tokens, shown = 0, 0, []
    for name, batch in sets.items():
        part, shift, kept = batch.hashed(name)
        total += part
        tokens += batch.tokens or 0
        shown.append({"name": name, "samples": batch.samples, "shift": shift, "kept": kept})
    data: Facts = {"fingerprint": f"{total & (2**64 - 1):016x}", "of": "+".join(sorted({b.of for b in sets.values()}))}
    data["samples"] = sum(batch.samples for batch in sets.values())
    if tokens:
        data["tokens"] = tokens
    return {**data, "sets": shown}
