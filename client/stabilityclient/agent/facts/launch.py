"""The facts of one start of a rank, read from outside of its process: /proc, git, and the launcher's variables."""

from __future__ import annotations

import os
import pwd
from collections.abc import Mapping
from typing import Any

from stabilityclient.agent.facts.git import checkout
from stabilityclient.secrets.texts import clean_text
from stabilityclient.secrets.values import clean_arguments

__all__ = ["IMAGES", "LAUNCHER", "launch_facts"]

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
    """Return the facts of a living process of ours, None where they can't be read.

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
