"""Starts the user's command for one leg of a drill, follows it, and ends it with all its processes."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from stabilitybackend.base.errors import StabilityBoardError
from stabilityplugins.drill.trace import LegReader, LegTrace

__all__ = ["DrillFailed", "run_leg"]

#: Seconds between two looks at the job's output.
_POLL_S = 0.05
#: Seconds from SIGTERM to SIGKILL, and for the processes of a killed job to be gone.
_GRACE_S = 30.0
#: Bytes of the job's output that are kept in mind to show why it failed.
_TAIL_BYTES = 2_000
_PROBE = Path(__file__).parent / "probe"
#: In the environment of all processes of a leg: torchrun gives each rank a session of its own.
_MARK = "STABILITY_DRILL_LEG"


class DrillFailed(StabilityBoardError):
    """The drill could not be run: the job's failure in the message, the remedy in the hint."""

    default_code = "drill_failed"


def run_leg(
    command: Sequence[str],
    folder: Path,
    *,
    job_dir: Path,
    cwd: Path,
    environ: Mapping[str, str],
    timeout_s: float,
    enough: Callable[[LegTrace], bool],
    wait_after: str = "",
    stop_signal: int = signal.SIGKILL,
) -> LegTrace:
    """Run the command until ``enough`` is true, it ends by itself, or time is up; return its trace.

    The job records offline, below ``folder``, and sends nothing to a server.

    Args:
        command: program and arguments. folder: of this leg's records. cwd: working folder of the job.
        job_dir: STABILITY_DRILL_DIR of the job, where it may keep its checkpoints.
        environ: the user's. timeout_s: longest run, seconds.
        wait_after: where the probe lets the job wait to be ended: ``rounds:<n>`` or ``saved:<n>``.
        stop_signal: how the job is stopped once it is enough; SIGKILL ends it without any chance to tidy up.

    Raises:
        DrillFailed: the program can't be started, or time is up.
    """
    folder.mkdir(parents=True, exist_ok=True)
    mark = f"{_MARK}={os.getpid()}-{folder}"
    log = folder / "output.log"
    with log.open("wb") as output:
        try:
            process = subprocess.Popen(
                command,
                cwd=cwd,
                env=_environment(folder, job_dir, environ, mark) | {"STABILITY_DRILL_ENOUGH": wait_after},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        except OSError as error:
            raise DrillFailed(f"the command can't be started: {error}", hint="is it on the PATH?") from error
    reader = LegReader(folder / "spool", folder / "probe")
    deadline = time.monotonic() + timeout_s
    try:
        while process.poll() is None:
            if enough(reader.read()):
                _signal(process, mark, stop_signal)
                if _gone(process, mark, _GRACE_S):
                    break
            elif time.monotonic() >= deadline:
                raise DrillFailed(
                    f"the job was not done within {timeout_s:.0f} s; it had come to step {reader.read().last_step}",
                    hint=f"--timeout gives it longer; its output is in {log}",
                )
            time.sleep(_POLL_S)
    finally:
        _signal(process, mark, signal.SIGKILL)
        _gone(process, mark, _GRACE_S)
        reader.read()
        reader.close()
    trace = reader.trace
    trace.code = None if enough(trace) else process.returncode
    trace.output = _tail(log)
    return trace


def _environment(folder: Path, job_dir: Path, environ: Mapping[str, str], mark: str) -> dict[str, str]:
    name, _, value = mark.partition("=")
    path = os.pathsep.join(part for part in (str(_PROBE), environ.get("PYTHONPATH", "")) if part)
    return {
        **environ,
        name: value,
        "PYTHONPATH": path,
        "STABILITY_DRILL_DIR": str(job_dir),
        "STABILITY_DRILL_PROBE": str(folder / "probe"),
        "STABILITY_DIR": str(folder / "spool"),
        "STABILITY_MODE": "offline",
        "STABILITY_RUN_ID": "drill",
    }


def _signal(process: subprocess.Popen[bytes], mark: str, number: int) -> None:
    """Send a signal: SIGKILL to all processes of the leg, any other to the first one, which passes it on."""
    if number != signal.SIGKILL:
        with contextlib.suppress(ProcessLookupError):
            process.send_signal(number)
        return
    for pid in _marked(mark):
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, signal.SIGKILL)


def _gone(process: subprocess.Popen[bytes], mark: str, within_s: float) -> bool:
    deadline = time.monotonic() + within_s
    while process.poll() is None or _marked(mark):
        if time.monotonic() >= deadline:
            return False
        time.sleep(_POLL_S)
    return True


def _marked(mark: str) -> list[int]:
    """Return the living processes with ``NAME=value`` in their environment."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # it has just ended, or belongs to another user
            if mark.encode() in (process / "environ").read_bytes().split(b"\0"):
                found.append(int(process.name))
    return found


def _tail(log: Path) -> str:
    data = log.read_bytes()[-_TAIL_BYTES:]
    return "\n".join(data.decode(errors="replace").splitlines()[-15:])
