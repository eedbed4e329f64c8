"""Samples the loop's thread some times a second: does it wait for other ranks?

In synchronous training all ranks need as long for a step, since they wait for the slowest. That one waits least. So
samples of where the thread is tell the slow rank, without any phase: a sample takes some microseconds, and no call of
torch is wrapped.
"""

from __future__ import annotations

import os
import sys
from math import inf

from stabilityclient.rank_state.calls import call_at

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import CodeType, FrameType

    from stabilityclient.rank_state.slot import Slot

__all__ = ["WaitSamples", "waits"]

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
#: Files that only lead there: the caller tells.
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
        slot: gets what was seen. ranks: of the job.

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
        """Sample, in the newest step that the loop reported; -1 where it reported none, which says nothing."""
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
        """Publish the step that is over."""
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
