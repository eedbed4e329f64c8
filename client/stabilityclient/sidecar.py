"""Starts the node's agent process, keeps it alive, and reads its files. No network here."""

from __future__ import annotations

import os
import sys
import threading
import time

from stabilityclient.errors import NotReadyError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from subprocess import Popen
    from typing import Any

__all__ = ["JOB_PATH_VARIABLE", "LOG_BYTES", "Sidecar", "agent_lives", "read_json"]

#: Where the job looks for its modules, for the agent: missing ones are searched there last (agent/modules.py).
JOB_PATH_VARIABLE = "STABILITY_JOB_PATH"

#: agent.log is cut to nothing when it is longer than this, bytes.
LOG_BYTES = 1024 * 1024
#: finish() does not wait out its time for a server that the agent has not reached for so long, seconds.
AWAY_S = 5.0
#: The same for a server that refused the data for good: long enough for a new agent to report otherwise.
REFUSED_S = 1.0
#: Seconds between two polls of the agent's files.
POLL_S = 0.02
#: An agent that ended within so long did not come to work, seconds.
STEADY_S = 10.0
#: So many such ends in a row are reported: the first may have been an accident.
DEATHS_TOLD = 2
#: Longest wait before another one is started, seconds: each start costs the node a third of a second of CPU.
MAX_WAIT_S = 60.0
#: Bytes of agent.log that are read for the reason of a death.
REASON_BYTES = 4096
#: Of the variables that Python itself reads, those that an agent gets. PYTHONPATH, a start-up file or warnings as
#: errors are meant for the job: with them a file next to the script (uuid.py, sitecustomize.py) would be the agent's.
_KEPT = ("PYTHONHOME", "PYTHONPLATLIBDIR", "PYTHONPYCACHEPREFIX", "PYTHONDONTWRITEBYTECODE")
#: Loads this very package, wherever the job has it from, in an interpreter that searches neither the working folder nor
#: the job's paths. Not by ``-I``: it knows no PYTHONHOME. Not by ``-P``: Python 3.10 has none.
_FOR_THE_JOB = ("PYTHON", "PYTEST_")
_START = """\
import sys
sys.path[:] = [entry for entry in sys.path if entry]
from importlib.machinery import PathFinder
from importlib.util import module_from_spec
spec = PathFinder.find_spec("stabilityclient", [{root!r}])
sys.modules["stabilityclient"] = package = module_from_spec(spec)
spec.loader.exec_module(package)
from stabilityclient.agent.modules import search_job_path
search_job_path()
from stabilityclient.agent.main import main
sys.exit(main(sys.argv[2:]))
"""


def agent_lives(run_folder: str) -> bool:
    """Whether an agent holds the lock of this run folder."""
    import fcntl

    try:
        fd = os.open(os.path.join(run_folder, "agent", "lock"), os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(fd)  # gives the lock back
    return False


def read_json(path: str) -> dict[str, Any]:
    """Return the JSON object in a file, {} where there is none yet."""
    import json

    try:
        # Not blocking: a pipe in place of the file must not be waited for.
        with open(path, "rb", opener=lambda name, flags: os.open(name, flags | os.O_NONBLOCK)) as file:
            value = json.loads(file.read())
    except (OSError, ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}


class Sidecar:
    """The agent of one run folder, seen from a training process.

    Args:
        run_folder: spool folder of the run on this node.
        url, api_key, drain_s: handed to the agent in its environment: a key is never written to disk.
    """

    def __init__(self, run_folder: str, url: str, api_key: str | None, drain_s: float) -> None:
        self._folder = run_folder
        self._env = {"STABILITY_URL": url, "STABILITY_DRAIN_S": repr(drain_s)}
        if api_key:
            self._env["STABILITY_API_KEY"] = api_key
        self._process: Popen[bytes] | None = None
        self._started = 0.0
        self._deaths = 0
        self._died_of = ""
        #: The heartbeat's thread and finish() look after the agent at the same time: one of them starts it.
        self._tending = threading.Lock()
        self._forgotten = False

    def start(self) -> None:
        """Start an agent. If another one lives, the new one finds its lock and leaves.

        Raises:
            NotReadyError: no process can be made.
        """
        import subprocess

        folder = os.path.join(self._folder, "agent")
        os.makedirs(folder, 0o700, exist_ok=True)
        log = os.path.join(folder, "agent.log")
        env = {name: value for name, value in os.environ.items() if name in _KEPT or not name.startswith(_FOR_THE_JOB)}
        env |= self._env
        env[JOB_PATH_VARIABLE] = os.pathsep.join(entry for entry in sys.path if isinstance(entry, str) and entry)
        # The agent must be of this very package, also when it was found through sys.path and is not installed.
        code = _START.format(root=os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
        self._started = time.monotonic()
        try:
            flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
            fd = os.open(log, flags, 0o600)
            try:
                if os.fstat(fd).st_size > LOG_BYTES:
                    os.ftruncate(fd, 0)
                # A session of its own: the launcher's signals to the job's process group don't reach it, so it
                # delivers the tail after the job was killed.
                self._process = subprocess.Popen(
                    [sys.executable, "-s", "-c", code, "stabilityclient.agent", self._folder],
                    stdin=subprocess.DEVNULL,
                    stdout=fd,
                    stderr=fd,
                    env=env,
                    start_new_session=True,
                )
            finally:
                os.close(fd)
        except OSError as error:
            raise NotReadyError(f"the agent can't be started ({error}); records stay in {self._folder}") from error

    def ensure(self) -> None:
        """Start an agent if none lives."""
        with self._tending:
            # One that we started and that still runs has the lock, will have it in a moment, or is on its way out.
            # The poll also keeps a dead agent of this package from staying a zombie.
            if self._process is not None:
                if self._process.poll() is None:
                    return
                self._note_end(self._process)
            waits_s = min(2.0**self._deaths, MAX_WAIT_S) if self._deaths >= DEATHS_TOLD else 0.0
            late = time.monotonic() - self._started >= waits_s
            if late and not self._forgotten and not agent_lives(self._folder):
                self.start()

    def problem(self) -> str:
        """Return why no agent comes to work, empty while one may."""
        if self._deaths < DEATHS_TOLD:
            return ""
        times = "twice" if self._deaths == 2 else f"{self._deaths} times"
        return f"the agent died {times} in a row, each time within {STEADY_S:.0f} s: {self._died_of}"

    def _note_end(self, process: Popen[bytes]) -> None:
        """Count the end of an agent of this package, unless it left or lived long enough to have worked."""
        self._process = None
        state = self.state()
        left = state.get("pid") == process.pid and state.get("state") in ("left", "done")
        if process.returncode == 0 or left or time.monotonic() - self._started >= STEADY_S:
            self._deaths = 0
            return
        self._deaths += 1
        log = os.path.join(self._folder, "agent", "agent.log")
        self._died_of = f"signal {-process.returncode}" if process.returncode < 0 else f"{_last_line(log)} ({log})"

    def forget(self) -> None:
        """Let the agent continue by itself after this process: no warning about a child that still runs."""
        self._forgotten = True
        tending = self._tending.acquire(timeout=POLL_S)  # a forked child may have got it locked, for ever
        if self._process is not None and self._process.poll() is None:
            self._process.returncode = 0
        if tending:
            self._tending.release()

    def state(self) -> dict[str, Any]:
        """Return the agent's report about itself (agent.json), {} before the first."""
        return read_json(os.path.join(self._folder, "agent", "agent.json"))

    def await_delivery(self, source: str, last_seq: int, timeout_s: float) -> int:
        """Wait until the server confirmed ``last_seq`` of ``source``, or waiting is of no use.

        Returns:
            How many records are not delivered.
        """
        begin = time.monotonic()
        self.ensure()
        while True:
            cursor = read_json(os.path.join(self._folder, "agent", "cursor.json"))
            acked, held = cursor.get("acked") or {}, cursor.get("held") or []
            left: int = last_seq - acked.get(source, 0)
            waited = time.monotonic() - begin
            if left <= 0 or waited >= timeout_s or self._is_away(source in held, waited):
                return max(0, left)
            if (process := self._process) is not None and process.poll() is not None:
                self.ensure()
            if self.problem() or not os.path.isdir(os.path.join(self._folder, "sources", source)):
                return left
            time.sleep(POLL_S)

    def _is_away(self, held: bool, waited: float) -> bool:
        state = self.state()
        if held or state.get("state") in ("refused", "left"):
            return waited >= REFUSED_S
        away_s = min(waited, time.time() - float(state.get("since") or 0))
        return state.get("state") == "connecting" and away_s >= AWAY_S


def _last_line(log: str) -> str:
    try:
        with open(log, "rb") as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - REASON_BYTES))
            lines = file.read().decode(errors="replace").split("\n")
    except OSError as error:
        return f"its log can't be read: {error}"
    return next((line.strip()[:300] for line in reversed(lines) if line.strip()), "its log is empty")
