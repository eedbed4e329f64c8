"""The thread that asks NVML: a cheap sample every few seconds, a dear one every minute, one immediately on request."""

from __future__ import annotations

import threading
import time
from collections import deque

from stabilityclient.agent.gpu.calls import Call
from stabilityclient.agent.gpu.listener import WAIT_S, EventListener, GpuEvent
from stabilityclient.agent.gpu.reader import GpuReader
from stabilityclient.agent.gpu.samples import NodeSample

__all__ = ["POLL_S", "GpuPoller"]

#: Seconds between two cheap samples; NVML calls are not free, and return averages anyway.
POLL_S = 10.0
#: A dear sample follows so many cheap ones: one a minute at POLL_S.
DEAR_EVERY = 6
#: Seconds between two samples at least, however many events ask for one; half the poll where that is shorter.
MIN_PAUSE_S = 1.0
#: Samples that wait for the agent's loop, which takes them four times a second.
MAX_SAMPLES = 16


class GpuPoller:
    """Samples for the agent's life. Only its own thread, and the listener's, ever wait for NVML.

    Attributes:
        samples: results so far. events: of NVML. Both are taken by the agent's loop.
        wants_pids: whether the next samples ask which processes compute on each GPU.
    """

    def __init__(self, poll_s: float) -> None:
        self.samples: deque[NodeSample] = deque(maxlen=MAX_SAMPLES)
        self.events: deque[GpuEvent] = deque()
        self.wants_pids = True
        self._poll_s = poll_s
        self._reader = GpuReader(self._stop_listening)
        self._listener: EventListener | None = None
        self._generation = 0
        self._dear_at = 0.0
        self._asked = threading.Event()
        self._ending = False
        self._thread = threading.Thread(target=self._run, name="nvml-poll", daemon=True)

    def start(self) -> None:
        """Begin to sample."""
        self._thread.start()

    def stop(self) -> None:
        """End as soon as NVML lets go, without a wait for it."""
        self._ending = True
        self._asked.set()
        if self._listener is not None:
            self._listener.stop()

    def ask_now(self) -> None:
        """Take a dear sample as soon as the one under way has ended."""
        self._dear_at = 0.0
        self._asked.set()

    @property
    def polling(self) -> Call | None:
        """Return the call in which the poll waits."""
        watch = self._reader.watch
        return watch.current if watch is not None else None

    @property
    def listening(self) -> Call | None:
        """Return the call in which the listener waits."""
        return self._listener.watch.current if self._listener is not None else None

    @property
    def listener_gap(self) -> str | None:
        """Return why no events come, None where they do or the reason is not clear yet."""
        return self._listener.blind if self._listener is not None else None

    def _run(self) -> None:
        while not self._ending:
            self._asked.clear()  # first: a request from here on is a sample of its own
            started = time.monotonic()
            dear = started >= self._dear_at
            if dear:
                self._dear_at = started + self._poll_s * DEAR_EVERY
            try:
                sample = self._reader.sample(dear, dear or self.wants_pids)
                self._listen(sample, dear)
            except Exception as error:  # a defect of this package: the thread must continue, and the defect be seen
                why = f"a defect of this agent: {type(error).__name__}: {error}"[:300]
                sample = NodeSample(False, f"no GPU visible here: {why}", blind={"gpu": why})
            self.samples.append(sample)
            if self._asked.wait(max(0.0, self._poll_s - (time.monotonic() - started))) and not self._ending:
                time.sleep(max(0.0, min(MIN_PAUSE_S, self._poll_s / 2) - (time.monotonic() - started)))
        self._reader.close()

    def _listen(self, sample: NodeSample, dear: bool) -> None:
        """Have a listener where events can come: at first, after NVML was opened again, after it ended in trouble."""
        if not sample.visible or self._reader.watch is None:
            return
        before = self._listener
        if before is not None and (before.is_alive() or (not dear and self._generation == self._reader.generation)):
            return
        if before is not None and not before.supported and self._generation == self._reader.generation:
            return
        sound = [
            device
            for device in self._reader.devices()
            if device.handle is not None and sample.samples[device.facts.key].fault is None
        ]
        if sound:
            self._generation = self._reader.generation
            self._listener = EventListener(self._reader.watch.module, sound, self.events, self.ask_now)
            self._listener.start()

    def _stop_listening(self) -> bool:
        """End the listener; return whether NVML may be shut down."""
        if self._listener is None or not self._listener.is_alive():
            return True
        self._listener.stop()
        self._listener.join(WAIT_S + 1.0)
        return not self._listener.is_alive()
