"""Starts the embedded server so that it can't outlive us. Run as a script, with the standard library only.

On Linux the kernel is asked to end this process when its parent's thread dies, and the process then becomes the
server: no process stays. Elsewhere it stays as a watchdog: it holds the read end of a pipe whose write end only
the parent has, and ends the server when that pipe closes, which happens however the parent dies.

    python -I -S embedded_guard.py (kernel|pipe) PARENT_PID PIPE_FD KEEP_FD SERVER ARGUMENT...
"""

from __future__ import annotations

import os
import signal
import sys

__all__ = ["main"]

_PR_SET_PDEATHSIG = 1  # linux/prctl.h


def main(arguments: list[str]) -> int:
    """Become the server, or watch over it, and return its exit status."""
    way, parent, pipe_fd, keep_fd, command = arguments[0], *map(int, arguments[1:4]), arguments[4:]
    if way == "kernel":
        import ctypes

        libc = ctypes.CDLL(None, use_errno=True)
        if libc.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0) != 0:
            return 70
        if os.getppid() != parent:  # it died before the kernel knew
            return 0
        os.close(pipe_fd)
        os.execv(command[0], command)
    return _watch(pipe_fd, keep_fd, command)


def _watch(pipe_fd: int, keep_fd: int, command: list[str]) -> int:
    import subprocess
    import threading

    server = subprocess.Popen(command, pass_fds=(keep_fd,))

    def end_with_parent() -> None:
        os.read(pipe_fd, 1)  # returns only when the write end is closed
        server.terminate()

    signal.signal(signal.SIGTERM, lambda *_: server.terminate())
    threading.Thread(target=end_with_parent, daemon=True).start()
    return server.wait()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
