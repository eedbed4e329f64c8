"""One message of each kind that an agent sends, and each of them with one field wrong."""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator
from typing import Any

from stabilityclient.wire import EventBlock, Health

__all__ = ["RANK_EVENTS", "VALUES", "agent_events", "faulty", "health", "rank_events"]

#: What stands in the place of a field, one at a time: every kind of JSON, and what MessagePack holds beside it.
VALUES: tuple[Any, ...] = (
    None, True, 7, -7, 2**63, 1e300, math.nan, math.inf, "", "word", "x" * 5_000, ["word"], {"a": {"b": [1]}},
)  # fmt: skip
SOURCE = "r0-3b9aca00-100"
_STACK = """Current thread 0x00007f64bdbbdb80 (most recent call first):
  File "/venv/torch/distributed/distributed_c10d.py", line 10 in all_reduce
  File "/home/me/train.py", line 10 in main
"""
_GPU = {"uuid": "GPU-1", "index": 0, "bus_id": "0000:05:00", "name": "NVIDIA H100", "ranks": [0]}
_ACTIVE = [{"pg": "0", "seq": 7, "op": "ALLREDUCE", "state": "started", "age_s": 40.0, "sizes": [[4, 4]]}]
_COUNTS = {"enqueued": 7, "started": 7, "completed": 6}
_GROUP = {"name": "0", "desc": "default_pg", **_COUNTS}
_PROC = {
    "state": "S", "wchan": "futex_wait", "threads": 9, "cpu": 0.5,
    "children": [{"pid": 5, "name": "loader", "state": "S", "wchan": "0"}],
}  # fmt: skip
_SLOT = {
    "step": 12,
    "step_start": 999.0,
    "phase": "data",
    "phase_start": 999.5,
    "expect_s": 0.0,
    "beat": 40,
    "beat_age_s": 1.0,
    "pending": 5,
}
_LOOK = {"rank": 0, "source": SOURCE, "pid": 100, "sampled": 1_010.0, "proc": _PROC, "slot": _SLOT}

#: Events that a rank sends: type, step, data.
RANK_EVENTS: tuple[tuple[str, int | None, dict[str, Any]], ...] = (
    ("start", None, {}),
    ("segment", 10, {
        "key": "d-1", "to_step": 10, "cause": "command", "reason": "a spike", "command_id": "c-1", "issuer": "ada",
        "changes": {"lr_scale": 0.5, "skip_batches": 3, "seed": 4},
    }),
    ("checkpoint", 12, {"path": "c/12"}),
    ("batch", 12, {"fingerprint": "ab12"}),
    ("alert", 12, {"title": "odd", "text": "very odd", "severity": "warning"}),
    ("command", 12, {"command_id": "c-1", "attempt": 1, "state": "ready", "detail": "stops at 20"}),
    ("exception", 12, {"type": "RuntimeError", "message": "NCCL error", "traceback": 'File "train.py", line 3'}),
    ("command", 12, {"command_id": "c-1", "state": "acted", "detail": "", "applied": {"seed": 4, "lr_scale": 0.5}}),
    ("handler", None, {"can": ["seed", "lr_scale"]}),
    ("finish", 12, {}),
)  # fmt: skip
_DEATH = {
    "source": SOURCE, "rank": 0, "pid": 100, "last_phase": "data", "cause": "signal", "signal": 9,
    "signal_name": "SIGKILL", "exit_code": None, "oom": None, "fatal": None, "how": "pidfd", "ordered": None,
    "evidence": {"text": "rank 0 was killed", "state": "running", "beat": 40, "oom_kills": 0},
}  # fmt: skip


def _gpu(what: str, state: str, **facts: Any) -> tuple[str, int | None, dict[str, Any]]:
    return "gpu", 12, {**_GPU, "what": what, "state": state, "facts": facts, "text": f"{what} was seen"}


#: Events that an agent sends.
AGENT_EVENTS: tuple[tuple[str, int | None, dict[str, Any]], ...] = (
    ("checkpoint_gone", 10, {"path": "c/10"}),
    ("checkpoint_seen", 10, {
        "path": "c/10", "kind": "dcp", "complete": False, "writing": False, "problem": "__1_0.distcp is missing",
        "bad": ["__1_0.distcp"], "size_bytes": 1_000, "files": 2, "world_size": 2, "loads_with": "any",
    }),
    ("command", 12, {"command_id": "c-2", "attempt": 1, "state": "acted", "detail": "stacks of 1 of 1 ranks"}),
    ("left", 12, {"source": SOURCE, "rank": 0}),
    ("process_death", 12, _DEATH),
    ("process_death", 12, {**_DEATH, "cause": "oom_kill", "oom": {"source": "cgroup", "counter": "local", "kills": 1}}),
    ("process_death", 12, {**_DEATH, "cause": "crash", "signal_name": "SIGABRT", "fatal": "Fatal Python error: nccl"}),
    ("process_death", 12, {**_DEATH, "cause": "exit_code", "exit_code": 3, "signal": None, "signal_name": None}),
    ("stacks", 12, {
        "request": "d-1", "threads": [_STACK], "pgs": [{**_GROUP, "ranks": [[0, 2, 1]]}],
        "ranks": [{**_LOOK, "stack": [0], "collectives": {"pgs": [0], "active": _ACTIVE}}],
    }),
    ("stacks", 12, {
        "request": "d-1", "rank": 0, "source": SOURCE, "pid": 100, "stack": _STACK, "stack_missing": None,
        "proc": {}, "slot": {}, "collectives": {"pgs": [{"name": "0", "ranks": [0, 1]}], "active": []},
    }),
    ("lost", None, {"records": 1, "reason": "damaged"}),
    ("gpu_note", None, {"visible": True, "text": "one GPU"}),
    ("gpu_inventory", None, {
        "driver": "550.1", "text": "",
        "gpus": [{**_GPU, "serial": "s0", "memory_mib": 81_559, "mig": ["MIG-1"], "missing": False}],
    }),
    _gpu("xid", "event", xid=79, source="nvml", pid=100, process="python", repeats=2),
    _gpu("ecc_uncorrected", "event", added=1, total=3, seconds=60.0),
    _gpu("retired_pages", "on", pending=True, pages=3),
    _gpu("recovery_action", "on", action=1),
    _gpu("lost", "on", call="nvmlDeviceGetTemperature", error="GPU is lost"),
    _gpu("call_hangs", "on", call="nvmlDeviceGetTemperature", seconds=12.0),
    _gpu("throttle", "on", reason="hw_thermal", share=0.8),
    _gpu("temperature", "on", sensor="gpu", temp_c=90, limit_c=87),
    _gpu("nvlink", "on", down=[3], up=17),
    _gpu("pcie_link", "off", width=8, width_max=16, gen=5, gen_max=5, seconds=9.0),
    ("kernel", None, {
        "what": "oom", "text": "Killed process 100 (python)", "pid": 100, "comm": "python", "scope": "cgroup",
        "cgroup": "/job", "suppressed": 2,
    }),
    ("kernel", None, {"what": "xid", "text": "NVRM: Xid (PCI:0000:05:00): 79", "bus_id": "0000:05:00", "xid": 79}),
    ("of a newer agent", 12, {"anything": {"at": ["all"]}}),
)  # fmt: skip


def rank_events() -> list[EventBlock]:
    """Return one event of each kind that a rank sends."""
    return [EventBlock(kind, 1_012.0, step, copy.deepcopy(data)) for kind, step, data in RANK_EVENTS]


def agent_events() -> list[EventBlock]:
    """Return one event of each kind that an agent sends, of GPUs and deaths several."""
    return [EventBlock(kind, 1_012.0, step, copy.deepcopy(data)) for kind, step, data in AGENT_EVENTS]


def health(time: float = 1_013.0) -> Health:
    """Return a whole word of an agent with two ranks."""
    ranks: list[dict[str, Any]] = [
        {
            "rank": rank, "source": f"r{rank}-3b9aca00-10{rank}", "pid": 100 + rank, "alive": True, "time": time,
            "local_rank": rank, "world_size": 2, "gpu": {"index": rank, "uuid": f"GPU-{rank}"}, "can_dump": True,
            "trouble": "", "proc": {"state": "S", "wchan": "futex_wait", "threads": 9, "cpu": 0.5}, "state": "running",
            "step": 12, "step_start": 1_012.0, "phase": "data", "phase_start": 1_012.5, "expect_s": 0.0, "beat": 40,
            "last_seq": 20, "dropped": 0, "segment_key": "", "phases": {"data": [12, 1.5, 0.4]}, "pending": 5,
        }
        for rank in (0, 1)
    ]  # fmt: skip
    state = {
        "gpu": {"visible": True, "text": "one GPU", "time": time}, "frames_sent": 3, "records_sent": 20,
        "bad_records": 0, "version": "0.1.0", "started": 900.0, "clock_step_s": 0.0,
        "spool": {"free_mib": 900.0, "limit_mib": 1024.0, "dropped": 0, "error": ""},
        "blind": [{"what": "collectives", "why": "no recorder", "do": "set it"}],
    }  # fmt: skip
    return Health("a1-1", "n0", time, ranks, state)


def faulty(data: Any, known: set[str] | None = None) -> Iterator[tuple[str, Any]]:
    """Yield a name for each fault and ``data`` with it: each field, at each depth, gone or another value.

    Args:
        known: fields with their values that had their faults already; those of ``data`` are added.
    """
    known = set() if known is None else known
    for place in _places(data, ()):
        name = ".".join(map(str, place))
        right = f"{name}={_inner(data, place)!r}"
        if right in known:
            continue
        known.add(right)
        for at, value in enumerate(VALUES):
            yield f"{name}={at}:{value!r:.20}", _with(data, place, value)
        gone = copy.deepcopy(data)
        del _inner(gone, place[:-1])[place[-1]]
        yield f"{name} is gone", gone


def _places(data: Any, before: tuple[Any, ...]) -> Iterator[tuple[Any, ...]]:
    keys: Any = data.keys() if isinstance(data, dict) else range(len(data)) if isinstance(data, list) else ()
    for key in keys:
        yield (*before, key)
        yield from _places(data[key], (*before, key))


def _with(data: Any, place: tuple[Any, ...], value: Any) -> Any:
    changed = copy.deepcopy(data)
    _inner(changed, place[:-1])[place[-1]] = copy.deepcopy(value)
    return changed


def _inner(data: Any, place: tuple[Any, ...]) -> Any:
    for key in place:
        data = data[key]
    return data
