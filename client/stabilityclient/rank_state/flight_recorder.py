"""Reads PyTorch's Flight Recorder: which collectives this rank has joined and which ones it waits in.

Never imports torch, and never asks for stack traces: gathering them needs the GIL and can deadlock.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

__all__ = ["MAX_ACTIVE", "has_group", "read_recorder"]

#: Longest dump that is parsed, bytes of JSON. An entry has about 500.
MAX_DUMP_BYTES = 8 * 1024 * 1024
#: Groups and active collectives in one answer, newest first; ranks of a group and sizes that are reported.
MAX_GROUPS = 64
MAX_ACTIVE = 64
MAX_RANKS = 4096
MAX_SIZES = 8
#: Longest name taken from a dump, characters.
MAX_NAME_CHARS = 80
#: The dumps of NCCL's recorder and of the other back-ends', as PyTorch 2.4 to 2.13 call them.
_DUMPS = ("_dump_nccl_trace_json", "_dump_fr_trace_json")


def has_group(modules: Mapping[str, Any]) -> bool:
    """Return whether a process with these ``sys.modules`` is in a process group of torch."""
    distributed = modules.get("torch.distributed")
    return distributed is not None and bool(distributed.is_available() and distributed.is_initialized())


def read_recorder(modules: Mapping[str, Any], now: float) -> tuple[dict[str, Any] | None, str | None]:
    """Return (content of the recorder, None) or (None, reason of its absence), as ``collectives`` in docs/wire.md.

    May hang as long as a faulty driver does: call it in a daemon thread.

    Args:
        modules: ``sys.modules``. now: unix seconds.
    """
    if "torch" not in modules:
        return None, "this process has not imported torch"
    if not has_group(modules):
        return None, "torch.distributed has no process group here"
    inner = getattr(getattr(modules["torch"], "_C", None), "_distributed_c10d", None)
    calls = [getattr(inner, name) for name in _DUMPS if hasattr(inner, name)]
    if not calls:
        return None, "this version of torch has no Flight Recorder that answers in JSON"
    groups: dict[str, dict[str, Any]] = {}
    active: list[dict[str, Any]] = []
    for call in calls:
        dump = call(includeCollectives=True, onlyActive=True)
        if len(dump) > MAX_DUMP_BYTES:
            return None, f"the Flight Recorder gave {len(dump)} bytes, more than the {MAX_DUMP_BYTES} that are read"
        _add_dump(dump, now, groups, active)
    if not groups:
        return None, (
            "the Flight Recorder is off or empty: "
            "set TORCH_FR_BUFFER_SIZE=2000 and TORCH_NCCL_TRACE_BUFFER_SIZE=2000 before the process group is made"
        )
    active.sort(key=lambda entry: float(entry["age_s"]))
    return {"pgs": list(groups.values())[:MAX_GROUPS], "active": active[:MAX_ACTIVE]}, None


def _add_dump(text: bytes, now: float, groups: dict[str, dict[str, Any]], active: list[dict[str, Any]]) -> None:
    import json

    dump = json.loads(text)
    described = dump.get("pg_config") or {}
    entries = dump.get("entries") or []
    # Gloo's recorder leaves name and description empty; each entry has both.
    names = {str(entry["process_group"][0]): str(entry["process_group"][1]) for entry in entries}
    for name, status in (dump.get("pg_status") or {}).items():
        config = described.get(name) or (described.get("") if len(dump["pg_status"]) == 1 else None) or {}
        groups[name] = {
            "name": name[:MAX_NAME_CHARS],
            "desc": (config.get("desc") or names.get(name) or "")[:MAX_NAME_CHARS],
            "ranks": _ranks(config.get("ranks")),
            "enqueued": int(status.get("last_enqueued_collective", -1)),
            "started": int(status.get("last_started_collective", -1)),
            "completed": int(status.get("last_completed_collective", -1)),
        }
    for entry in entries:
        if entry.get("retired") or entry.get("state") == "completed":
            continue  # "only active" is not always meant so
        name = str(entry["process_group"][0])
        seq = entry["p2p_seq_id"] if entry.get("is_p2p") else entry["collective_seq_id"]
        active.append(
            {
                "pg": name[:MAX_NAME_CHARS],
                "seq": int(seq),
                "op": str(entry.get("profiling_name", "")).rpartition(":")[2][:MAX_NAME_CHARS],
                "state": str(entry.get("state", ""))[:MAX_NAME_CHARS],
                "age_s": round(max(0.0, now - entry.get("time_created_ns", 0) / 1e9), 3),
                "sizes": (entry.get("input_sizes") or [])[:MAX_SIZES],
            }
        )


def _ranks(text: object) -> list[int]:
    """Return the ranks of a group: a text such as ``[0, 1]``, empty where it is something else."""
    parts = str(text or "").strip("[]").split(",", MAX_RANKS)[:MAX_RANKS]
    return [int(part) for part in parts if part.strip().isdigit()]
