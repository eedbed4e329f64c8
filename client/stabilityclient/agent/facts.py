"""Reports the facts of each launch once: of the first rank of the node, as soon as its process is there."""

from __future__ import annotations

import asyncio
import os
import pwd
import subprocess
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any

from stabilityclient.agent.sources import Source
from stabilityclient.secrets.texts import clean_text, clean_url
from stabilityclient.secrets.values import clean_arguments

__all__ = ["IMAGES", "LAUNCHER", "FactsReporter", "checkout", "launch_facts"]

#: Seconds for one call of git: ``status`` of a large checkout on a network disk may take longer, and is given up.
CALL_S = 10.0
#: Bytes read of an answer; a checkout with more changes than that has "more".
ANSWER_BYTES = 256 * 1024
#: Names of changed files that are sent, and characters of each.
NAMED_FILES, NAME_CHARS = 20, 200
#: Settings against git's password prompt, pager, index writes and the hooks of the checkout.
_QUIET = {
    "GIT_TERMINAL_PROMPT": "0", "GIT_OPTIONAL_LOCKS": "0", "GIT_PAGER": "cat", "LC_ALL": "C", "GIT_ASKPASS": "true",
}  # fmt: skip
_SAFE = ("-c", "core.fsmonitor=false", "-c", "core.hooksPath=/dev/null", "-c", "diff.external=")


class _Failed(Exception):
    """git is absent, took too long, or refused."""


def checkout(folder: str) -> dict[str, Any]:
    """Return the state of the checkout at ``folder``; {} outside of one. It takes seconds on a slow disk.

    ``commit``, ``branch`` ("" when detached), ``subject`` (first line of the commit's message), ``remote`` without
    user and password, ``dirty`` (null if unknown, then ``why``), ``changed`` (number of changed files,
    files that git does not know included) and ``files`` (names of the first ones).
    """
    try:
        top = _git(folder, "rev-parse", "--show-toplevel")
        commit = _git(folder, "rev-parse", "HEAD")
    except _Failed:
        return {}
    found: dict[str, Any] = {"folder": top, "commit": commit, "branch": _or_none(folder, "branch", "--show-current")}
    found["subject"] = clean_text(_or_none(folder, "log", "-1", "--format=%s"))[:NAME_CHARS]
    found["remote"] = clean_url(_or_none(folder, "config", "--get", "remote.origin.url"))[:NAME_CHARS]
    try:
        lines = _git(folder, "status", "--porcelain", "--untracked-files=normal").splitlines()
    except _Failed as error:
        return found | {"dirty": None, "why": str(error)}
    files = [line[3:][:NAME_CHARS] for line in lines[:NAMED_FILES]]
    return found | {"dirty": bool(lines), "changed": len(lines), "files": files}


def _or_none(folder: str, *arguments: str) -> str:
    try:
        return _git(folder, *arguments)
    except _Failed:
        return ""


def _git(folder: str, *arguments: str) -> str:
    environ = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")} | _QUIET
    try:
        done = subprocess.run(
            ["git", *_SAFE, *arguments],
            cwd=folder,
            env=environ,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=CALL_S,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise _Failed(f"git {arguments[0]} took longer than {CALL_S:.0f} s") from error
    except OSError as error:
        raise _Failed(f"git can't be run: {error.strerror or error}") from error
    if done.returncode:
        said = done.stderr[:400].decode("utf-8", "replace").strip()
        raise _Failed(f"git {arguments[0]} failed: {clean_text(said)}")
    # Not strip(): the first character of a line of `status` may be a space that means something.
    return done.stdout[:ANSWER_BYTES].decode("utf-8", "replace").rstrip()


#: Variables of a launcher, scheduler or container that are sent where they are set. No other one is ever looked at.
LAUNCHER = (
    "SLURM_JOB_ID", "SLURM_JOB_NAME", "SLURM_JOB_NODELIST", "SLURM_JOB_PARTITION", "SLURM_CLUSTER_NAME",
    "SLURM_NNODES", "SLURM_NTASKS", "SLURM_ARRAY_JOB_ID", "SLURM_ARRAY_TASK_ID", "SLURM_RESTART_COUNT",
    "TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT", "TORCHELASTIC_MAX_RESTARTS", "GROUP_WORLD_SIZE",
    "LOCAL_WORLD_SIZE", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE",
    "LSB_JOBID", "PBS_JOBID", "JOB_ID", "RAY_JOB_ID", "FLUX_JOB_ID",
    "KUBERNETES_SERVICE_HOST",
    "POD_NAME", "POD_NAMESPACE", "NODE_NAME", "JOB_NAME", "JOBSET_NAME", "JOB_COMPLETION_INDEX",
    "CONDA_DEFAULT_ENV", "VIRTUAL_ENV", "CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES",
)  # fmt: skip
#: Variables that name the image of a container.
IMAGES = (
    "CONTAINER_IMAGE", "IMAGE_NAME", "DOCKER_IMAGE", "SLURM_CONTAINER_IMAGE", "APPTAINER_CONTAINER",
    "SINGULARITY_CONTAINER", "SINGULARITY_NAME",
)  # fmt: skip
#: Arguments that are sent, and characters of one and of any other text.
MAX_ARGUMENTS, MAX_CHARS = 256, 512
#: Bytes read of a file of /proc.
PROC_BYTES = 1024 * 1024


def launch_facts(pid: int) -> dict[str, Any] | None:
    """Return the facts of a living process of this package, None where they can't be read.

    It may take many seconds (git on a slow disk): call it in a thread.
    """
    environ = _environ(pid)
    arguments = [part.decode("utf-8", "replace") for part in _read(f"/proc/{pid}/cmdline").split(b"\0")[:-1]]
    if environ is None or not arguments:
        return None
    folder = _link(f"/proc/{pid}/cwd")
    script = _script(arguments, folder)
    git = checkout(os.path.dirname(script) if script else folder) or checkout(folder) if folder else {}
    more = len(arguments) - MAX_ARGUMENTS
    command = [one[:MAX_CHARS] for one in clean_arguments(arguments[:MAX_ARGUMENTS])]
    return {
        "host": os.uname().nodename,
        "user": _user(pid),
        "command": [*command, f"… and {more} more"] if more > 0 else command,
        "folder": folder[:MAX_CHARS],
        "script": script[:MAX_CHARS],
        "python": _link(f"/proc/{pid}/exe")[:MAX_CHARS],
        "image": _image(environ),
        "launcher": {name: clean_text(environ[name])[:MAX_CHARS] for name in LAUNCHER if environ.get(name)},
        "git": git,
    }


def _environ(pid: int) -> dict[str, str] | None:
    """Return the variables of LAUNCHER and IMAGES that a process began with; no other one is kept."""
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:
            data = file.read(PROC_BYTES)
    except OSError:
        return None
    wanted = {*LAUNCHER, *IMAGES}
    found = {}
    for entry in data.split(b"\0"):
        name, _, value = entry.partition(b"=")
        if name.decode("utf-8", "replace") in wanted:
            found[name.decode()] = value.decode("utf-8", "replace")
    return found


def _script(arguments: list[str], folder: str) -> str:
    """Return the file that Python was started with: the first argument that is one, "" without."""
    for argument in arguments[1:]:
        if argument in ("-c", "-m"):
            return ""
        path = os.path.join(folder, argument)
        if not argument.startswith("-") and os.path.isfile(path):
            return os.path.normpath(path)
    return ""


def _image(environ: Mapping[str, str]) -> str:
    given = next((environ[name] for name in IMAGES if environ.get(name)), "")
    return clean_text(given)[:MAX_CHARS]


def _user(pid: int) -> str:
    try:
        uid = os.stat(f"/proc/{pid}").st_uid
    except OSError:
        return ""
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)


def _read(path: str) -> bytes:
    try:
        with open(path, "rb") as file:
            return file.read(PROC_BYTES)
    except OSError:
        return b""


def _link(path: str) -> str:
    try:
        return os.readlink(path)
    except OSError:
        return ""


#: Seconds between two looks for a new launch.
POLL_S = 0.5


class FactsReporter:
    """Sends an event ``launch`` for each start of the node's first rank.

    Args:
        ranks: returns the node's training processes.
        event: sends an event: its type and data.
        log: takes a text when something fails.
        known: ids of the processes that an earlier agent reported.
        reported: called after each report.
    """

    def __init__(
        self,
        ranks: Callable[[], Iterable[Source]],
        event: Callable[[str, dict[str, Any]], None],
        log: Callable[[str], None],
        known: Collection[str],
        reported: Callable[[], None],
    ) -> None:
        self._ranks = ranks
        self._event = event
        self._log = log
        self._known = set(known)
        self._reported = reported
        #: Whether the facts of a launch are being collected: the agent does not leave before they are sent.
        self.busy = False

    def state(self) -> list[str]:
        """Return the ids of the processes that need no report any more."""
        return sorted(self._known & {source.info.source for source in self._ranks()})

    async def run(self) -> None:
        """Report until cancelled."""
        while True:
            for source in self._due():
                self.busy = True
                self._known.add(source.info.source)
                await self._report(source)
                self.busy = False
            await asyncio.sleep(POLL_S)

    def _due(self) -> list[Source]:
        return [
            source
            for source in self._ranks()
            if not source.info.local_rank and source.alive and source.facts and source.info.source not in self._known
        ]

    async def _report(self, source: Source) -> None:
        try:
            # Of a process in another container the pid means nothing here.
            facts = {} if source.elsewhere else await asyncio.to_thread(launch_facts, source.info.pid)
        except Exception as error:  # any error of /proc or git: the launch is reported without it
            self._log(f"facts of {source.info.source}: {type(error).__name__}: {error}")
            facts = {}
        info, facts = source.info, facts or {}
        facts.setdefault("host", info.node or os.uname().nodename)
        known = {"source": info.source, "rank": info.rank or 0, "world_size": info.world_size, "node": info.node}
        self._event("launch", {**facts, **known})
        self._reported()
