"""The plan for a job that starts again: its checkpoint, the batches to leave out, the suspects (docs/restart.md).

The node's agent writes it before it ends the ranks; the job reads it when it starts. A plan holds until a process that
started after it has saved a checkpoint: a job that dies on its way there is sent back to the same place, not to the
checkpoints that the plan passed over. Then the agent notes in ``plan.used`` when that process started, and older plans
are not given out any more. Reading marks nothing, so all ranks of a node read the same.
"""

from __future__ import annotations

import os
import time

from stabilityclient.errors import SettingError
from stabilityclient.guard import Guard, under_pytest
from stabilityclient.rank_state.slot import MAX_TIME_S

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

__all__ = ["MAX_PLAN_AGE_S", "PLAN_VERSION", "mark_used", "read_plan", "write_plan"]

PLAN_VERSION = 1
#: Age beyond which a plan is void, seconds: a week in a queue is possible, a month is another job.
MAX_PLAN_AGE_S = 7 * 86_400.0
#: Longest plan that is read, bytes.
MAX_PLAN_BYTES = 1024 * 1024

_PLAN = "plan.json"
_USED = "plan.used"


def read_plan(dir: str | os.PathLike[str] | None = None, run_id: str | None = None) -> dict[str, Any] | None:
    """Return the plan of the restart that brought this job up, None where there is none, or it has served.

    It does not matter whether this comes before or after ``init()``. A node that was not there before has no plan on
    its disk: let one rank read and inform the others (``broadcast_object_list``), and name a file that all nodes see in
    ``STABILITY_PLAN`` (written by ``stabilityboard plan --output``). The newest of both is returned.

    Args:
        dir: as given to ``init()`` (``STABILITY_DIR``, default ``.stability``).
        run_id: as given to ``init()`` (``STABILITY_RUN_ID``).

    Returns:
        The plan: ``checkpoint`` (``{"step", "path"}`` or None), ``skip_range`` (``[first, last]``: the steps whose
        batches are left out, or None), ``skip_batches`` (how many behind the checkpoint that are, for a job that can
        leave out no others), ``lr_scale``, ``seed`` (new one of the data order), ``exclude_nodes``, ``suspects``,
        ``action``, ``text``, ``written`` and more. An unreadable plan is logged and counts as none.

    Raises:
        SettingError: no run id is given.
    """
    environ = os.environ
    if environ.get("STABILITY_MODE", "").strip().lower() == "disabled":
        return None
    run_id = run_id or environ.get("STABILITY_RUN_ID") or None
    if run_id is None:
        raise SettingError("run_id", run_id, "the id of the run, here or in STABILITY_RUN_ID: a plan is for one run")
    guard = Guard(strict=under_pytest(environ))
    try:
        return _read(os.path.abspath(os.fspath(dir or environ.get("STABILITY_DIR") or ".stability")), run_id, guard)
    except Exception as error:  # a plan that can't be read must not keep the job from starting
        guard.caught("read_plan()", error)
        return None


def _read(home: str, run_id: str, guard: Guard) -> dict[str, Any] | None:
    from stabilityclient.settings import node_name

    named = os.environ.get("STABILITY_PLAN")
    # The folder has the node's name in it where the job spans nodes; it may have spanned one before, and two now.
    folders = [os.path.join(home, run_id), os.path.join(home, f"{run_id}@{node_name(os.environ)}")]
    paths = [os.path.join(folder, _PLAN) for folder in folders] + ([named] if named else [])
    found = [_loaded(path, guard) for path in paths]
    plans = [plan for plan in found if plan is not None and plan.get("run_id") == run_id]
    # By the server's clock: one that was ordered since the launcher asked is newer than the launcher's file.
    plan = max(plans, key=lambda plan: _seconds(plan.get("written")), default=None)
    if plan is None or plan.get("version") != PLAN_VERSION or time.time() - _since(plan) > MAX_PLAN_AGE_S:
        return None
    if not str(plan.get("action")).startswith("relaunch"):
        return None
    used = [_loaded(os.path.join(folder, _USED), guard) for folder in folders]
    if any(_seconds(mark.get("started")) > _since(plan) for mark in used if mark is not None):
        return None
    return plan


def _since(plan: dict[str, Any]) -> float:
    """Return the plan's time of arrival on this node, unix seconds; its creation where that is unknown."""
    return _seconds(plan.get("received")) or _seconds(plan.get("written"))


def _seconds(value: object) -> float:
    """Return a time, 0.0 for another value."""
    return float(value) if isinstance(value, int | float) and abs(value) < MAX_TIME_S else 0.0


def _loaded(path: str, guard: Guard) -> dict[str, Any] | None:
    """Return the plan in one file; a damaged file hides no other."""
    try:
        return _load(path)
    except (OSError, ValueError, RecursionError) as error:
        guard.caught("read_plan()", error)
        return None


def _load(path: str) -> dict[str, Any] | None:
    import json  # here: a job without a plan does not need it

    try:
        # Not blocking: a pipe in place of the file must not be waited for.
        with open(path, "rb", opener=lambda name, flags: os.open(name, flags | os.O_NONBLOCK)) as file:
            value = json.loads(file.read(MAX_PLAN_BYTES) or b"")
    except FileNotFoundError:
        return None
    return value if isinstance(value, dict) else None


def write_plan(folder: str, plan: dict[str, Any]) -> None:
    """Write the plan of a run folder: whole, and on the disk when this returns.

    Raises:
        OSError: the folder can't be written.
    """
    import json

    from stabilityclient.start import write_whole

    write_whole(os.path.join(folder, _PLAN), json.dumps(plan).encode(), durable=True)


def mark_used(folder: str, started: float) -> None:
    """Note that a process which started then (unix seconds) saved a checkpoint: plans from before it have served.

    Raises:
        OSError: the folder can't be written.
    """
    import json

    from stabilityclient.start import write_whole

    path = os.path.join(folder, _USED)
    try:
        before = _load(path) or {}
    except (ValueError, RecursionError):
        before = {}  # damaged: written again
    if started > _seconds(before.get("started")):
        write_whole(path, json.dumps({"started": started}).encode())
