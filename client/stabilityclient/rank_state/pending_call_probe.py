"""Asks the interpreter to run something in its main thread: does Python still run there?

The heartbeat thread asks once a beat, with at most one request open: the interpreter's queue is short and others use it
too (NVRx's progress watchdog). A main thread that is blocked, or in C, does not run it, though the heartbeat thread
beats on.
"""

from __future__ import annotations

import itertools
import operator

__all__ = ["PendingCalls"]


class PendingCalls:
    """Counts the calls that the main thread ran for us.

    What is called is made of builtin iterators alone. A Python function in its place would let the main thread handle
    a signal inside of it, and a KeyboardInterrupt raised there would be lost to training.

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
        return int(repr(self._counter)[len("count(") : -1])  # looking without taking has no other spelling

    def ask(self) -> None:
        """Ask for one more, unless the last one still waits."""
        if self.done() >= self._asked and self._add(self._function, None) == 0:
            self._asked += 1
