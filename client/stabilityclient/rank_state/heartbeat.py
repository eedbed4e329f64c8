"""The client's one thread in the training process: a beat each second, a spare chunk, an eye on the agent."""

from __future__ import annotations

import itertools
import operator
import os
import sys
import time
from math import inf

from stabilityclient.rank_state.calls import call_at
from stabilityclient.rank_state.slot import FLAG_PENDING

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from types import CodeType, FrameType

    from stabilityclient.guard import Guard
    from stabilityclient.identity import Ranks
    from stabilityclient.rank_state.slot import Slot
    from stabilityclient.sidecar import Sidecar
    from stabilityclient.spool import SpoolWriter

__all__ = ["HeartbeatThread", "WaitSamples", "waits"]

#: Seconds between two samples, on average; by chance half as much to half as much again. At even moments, or by turns,
#: samples go along with the steps and see one part of them only.
SAMPLE_S = 0.25
#: Numbers that seem random (Knuth's MMIX): the job's own generators are not to be touched.
_TIMES, _PLUS, _STATES = 6364136223846793005, 1442695040888963407, 2**64
#: Libraries by which ranks meet; where none is imported there is nothing to wait for.
_LIBRARIES = ("torch.distributed", "horovod", "mpi4py")
#: Files in which a thread meets other ranks or may wait for them: backward waits for the gradients' sum, and a GPU's
#: queue for the collectives in it. Of those in brackets behind, the code is the rank's own work.
_MEETS = ("torch/distributed/", "torch/nn/parallel/", "torch/autograd/", "torch/cuda/", "/horovod/", "/mpi4py/")
_OWN = ("torch/distributed/checkpoint/", "torch/distributed/elastic/")
#: Files that only lead there: the caller decides.
_LEADS = ("torch/_ops.py", "torch/_tensor.py")
#: Calls into C by which a thread waits for a collective, or for the GPU in whose queue collectives are.
_CALLS = frozenset(
    ("allgather", "allreduce", "alltoall", "barrier", "bcast", "cpu", "item", "synchronize", "tolist", "wait")
)
#: Places whose meaning is remembered: a loop has tens.
MAX_PLACES = 1_024

#: Whether a thread at this instruction waits.
_places: dict[tuple[CodeType, int], bool] = {}


class WaitSamples:
    """The samples of one process. A step counts once, however long it is: an evaluation of minutes is one step.

    Args:
        slot: receives the observations. ranks: of the job.

    Attributes:
        due: monotonic seconds of the next sample, infinite while the ranks can't meet.
    """

    def __init__(self, slot: Slot, ranks: int) -> None:
        self.due = inf
        self._slot = slot
        self._ranks = ranks
        self._random = os.getpid()
        self._step = -1
        self._of_step = 0
        self._waited = 0

    def begin(self, now: float) -> None:
        """Begin to sample as soon as ranks may meet; called with each beat."""
        if self.due == inf and self._ranks > 1 and any(name in sys.modules for name in _LIBRARIES):
            self.due = now

    def sample(self, step: int, now: float) -> None:
        """Sample, in the newest step that the loop reported; -1 where it reported none: no sample."""
        self._random = (self._random * _TIMES + _PLUS) % _STATES
        self.due = now + SAMPLE_S * (0.5 + self._random / _STATES)
        if step < 0:
            return
        if step != self._step:
            self._close()
            self._step = step
        frame = sys._current_frames().get(self._slot.owner or _main_thread())
        self._of_step += 1
        self._waited += waits(frame)

    def _close(self) -> None:
        """Publish the step that has ended."""
        if self._of_step and self._step >= 0:
            self._slot.add_waits(self._waited / self._of_step)
        self._of_step = self._waited = 0


def waits(frame: FrameType | None) -> bool:
    """Return whether a thread in this frame meets other ranks, or may wait for them."""
    while frame is not None and frame.f_code.co_filename.endswith(_LEADS):
        frame = frame.f_back
    if frame is None:
        return False
    place = (frame.f_code, frame.f_lasti)
    known = _places.get(place)
    if known is None:
        if len(_places) >= MAX_PLACES:  # code that is made again and again
            _places.clear()
        known = _places[place] = _meets(*place)
    return known


def _meets(code: CodeType, at: int) -> bool:
    file = "/" + code.co_filename.replace("\\", "/")
    if any(part in file for part in _MEETS):
        return not any(part in file for part in _OWN)
    return call_at(code, at).rpartition(".")[2].lower().replace("_", "") in _CALLS


def _main_thread() -> int:
    import threading

    return threading.main_thread().ident or 0


#: Seconds between beats. A slot whose beat does not move means that Python itself is held (see the design, hang).
BEAT_S = 1.0
#: Beats between two checks of the agent, for the first rank of the node.
POLL_BEATS = 2
#: Checks in a row that find the server away before that is reported: two or three reconnects are normal.
AWAY_POLLS = 10
#: The same for the other ranks: they only matter when the first rank is gone.
OTHER_POLL_BEATS = 7


class HeartbeatThread:
    """Runs from ``start`` to ``stop``. Nothing in it ends the thread but ``stop``.

    Args:
        slot, spool: of this process. sidecar: None when offline.
        ranks: only the first rank of a node checks often whether the agent lives.
        logged: returns the step of the newest log() and its unix seconds.
        polls: called at each beat.
        report_environment: called once, when the job has begun to train: its imports are complete by then.
    """

    def __init__(
        self,
        slot: Slot,
        spool: SpoolWriter,
        sidecar: Sidecar | None,
        guard: Guard,
        ranks: Ranks,
        logged: Callable[[], tuple[int, float]],
        polls: Iterable[Callable[[], object]],
        report_environment: Callable[[], object] | None,
    ) -> None:
        import threading

        self._slot = slot
        self._spool = spool
        self._sidecar = sidecar
        self._pending: PendingCalls | None = None
        self._pending_tried = False
        self._guard = guard
        self._logged = logged
        self._polls = tuple(polls)
        self._environment = report_environment
        self._poll_beats = POLL_BEATS if ranks.local_rank == 0 else OTHER_POLL_BEATS
        self._waits = WaitSamples(slot, ranks.world_size)
        self._wake = threading.Event()
        self._stopped = False
        self._published = 0.0
        self._reported = ""
        self._away = 0
        self._stepping = False
        self._thread = threading.Thread(target=self._work, name="stability-heartbeat", daemon=True)

    def start(self) -> None:
        """Begin to beat."""
        self._spool.notify_spare_taken(self._wake.set)
        self._thread.start()

    def stop(self) -> None:
        """End the thread; waits for it, a second at most."""
        self._stopped = True
        self._wake.set()
        self._thread.join(1.0)

    def stepping(self, running: bool) -> None:
        """Leave the slot's step to the loop of steps() while it runs."""
        self._stepping = running

    def publish(self) -> None:
        """Write the fields that the hot path does not write each time into the slot."""
        step, when = self._logged()
        if when != self._published:  # not "later": a clock that is set back must not hide the steps that follow
            self._published = when
            if not self._stepping:
                self._slot.logged(step, when)
        self._slot.write_losses(self._guard.refused, self._spool.no_room)
        self._slot.publish(self._spool.last_seq, self._spool.dropped)

    def report_environment(self, *, begun: bool = False) -> None:
        """Report the environment, once, where the job has begun to train."""
        if begun or self._slot.step >= 0 or self._logged()[0] >= 0:
            report = self._environment
            self._environment = None
            if report is not None:
                report()

    def _work(self) -> None:
        next_beat = time.monotonic() + BEAT_S
        while not self._stopped:
            try:
                self._spool.prepare_spare(_pause)
                self._wake.wait(max(0.0, min(next_beat, self._waits.due) - time.monotonic()))
                self._wake.clear()
                now = time.monotonic()
                if self._stopped:
                    continue
                if now >= self._waits.due:
                    self._waits.sample(self._slot.step if self._stepping else self._logged()[0], now)
                if now < next_beat:
                    continue
                next_beat = max(next_beat + BEAT_S, now)
                self._slot.count_beat()
                self.publish()
                self.report_environment()
                self._leave_signal()
                for poll in self._polls:
                    poll()
                self._ask_main_thread()
                self._waits.begin(now)
                if self._sidecar is not None and self._poll_due():
                    self._poll(self._sidecar)
            except Exception as error:  # strict or not: an exception in a daemon thread would stay unseen
                self._guard.count()
                self._guard.note("heartbeat", f"{type(error).__name__}: {error}")
                time.sleep(0.1)

    def _poll_due(self) -> bool:
        """Whether to look at the agent now; the first rank does so after its first beat, too: it may die early."""
        return self._slot.beat % self._poll_beats == 0 or (self._slot.beat == 1 and self._poll_beats == POLL_BEATS)

    def _leave_signal(self) -> None:
        """Give the dump signal up when training has set a handler of its own for it since: it is theirs."""
        import signal

        number = self._slot.dump_signal
        if number and signal.getsignal(number) not in (signal.SIG_DFL, None):
            self._slot.set_dump_signal(0)

    def _ask_main_thread(self) -> None:
        """Publish how often the main thread ran the pending call, and ask again."""
        if not self._pending_tried:
            self._pending_tried = True
            try:
                self._pending = PendingCalls()
                self._slot.flag(FLAG_PENDING)
            except Exception:  # an interpreter without ctypes: the slot shows that nothing is asked
                return
        if self._pending is not None:
            self._slot.answered(self._pending.done())
            self._pending.ask()

    def _poll(self, sidecar: Sidecar) -> None:
        sidecar.ensure()
        died = sidecar.problem()
        if died:
            self._guard.note("agent start", died)
        state = sidecar.state()
        if state.get("state") == "refused" and state.get("error") != self._reported:
            self._reported = str(state.get("error"))
            self._guard.note("agent", f"the server refuses this run's data, it stays in the spool: {self._reported}")
        self._away = self._away + 1 if state.get("state") == "connecting" else 0
        if self._away == AWAY_POLLS:
            where, why = state.get("url"), state.get("error")
            self._guard.note(
                "agent", f"the server at {where} can't be reached, what is logged waits in the spool: {why}"
            )


class PendingCalls:
    """Asks the interpreter to run a call in its main thread, and counts the runs: does Python still run there?

    One request is open at most: the interpreter's queue is short and others use it too (NVRx's progress watchdog). A
    main thread that is blocked, or in C, does not run it, though the heartbeat thread beats on.

    The call is made of builtin iterators alone. A Python function in its place would let the main thread handle
    a signal inside, and a KeyboardInterrupt raised there would be lost to training.

    Raises:
        ImportError, AttributeError, OSError: this interpreter has no ctypes or no such call.
    """

    def __init__(self) -> None:
        import ctypes  # here, in the heartbeat thread: it costs more than our whole import

        self._counter = itertools.count()
        # Each next() takes one from the counter and gives 0, which means success to the interpreter.
        step = map(operator.mul, self._counter, itertools.repeat(0))
        callback = ctypes.PYFUNCTYPE(ctypes.c_int)(step.__next__)
        # Kept without end: a request may still be open when the run, the module or the interpreter ends.
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(callback))
        self._function = ctypes.cast(callback, ctypes.c_void_p)
        self._add = ctypes.pythonapi.Py_AddPendingCall
        self._add.argtypes = (ctypes.c_void_p, ctypes.c_void_p)
        self._add.restype = ctypes.c_int
        self._asked = 0

    def done(self) -> int:
        """Return how many calls the main thread has run."""
        return int(repr(self._counter)[len("count(") : -1])  # reading without taking has no other spelling

    def ask(self) -> None:
        """Ask for one more, unless the last one still waits."""
        if self.done() >= self._asked and self._add(self._function, None) == 0:
            self._asked += 1


def _pause() -> None:
    time.sleep(0.0005)
