"""Keeps what the tests of this folder compare with: compact files, written anew on purpose only (README.md)."""

from __future__ import annotations

import gzip
import json
import math
import os
from pathlib import Path
from typing import Any

__all__ = ["FOLDER", "WRITE", "different", "read", "shown_then", "without_words", "write"]

FOLDER = Path(__file__).parent
#: Two machines' math libraries may differ in the last bits of a logarithm, and a sum of such carries it on.
LAST_BITS = 1e-12
#: Of a moment or a machine: what agents are connected, clocks, and where the files lie on the disk.
_OF_THE_MOMENT = {"agents", "now", "written", "location", "limit_bytes", "running_s", "gpu_hours", "mtbi_s"}
_OF_THE_MOMENT |= {"per_1000_gpu_hours"}
#: Files are written anew where their state is of an older form; theirs is what a restart needs, no point of a curve.
_OF_THE_FILES = {"bytes"}
#: What is offered about an open incident depends on its job, which is over by now.
_OF_THE_JOB = {"actions", "suggestion", "updated", "version"}
#: What a run's time was worth counts to the end of its last process, since; before, to its newest row.
_OF_THE_END = {"goodput", "ettr", "wall_s", "idle_s", "downtime_s"}
#: Whether answers are written instead of compared.
WRITE = os.environ.get("STABILITY_GOLDEN") == "write"


def read(name: str) -> Any:
    """Return a stored answer; floats come back to the last bit."""
    return json.loads(gzip.decompress((FOLDER / name).read_bytes()))


def write(name: str, answer: Any) -> None:
    """Store an answer; the same answer gives the same bytes."""
    text = json.dumps(answer, separators=(",", ":"), sort_keys=True)
    (FOLDER / name).write_bytes(gzip.compress(text.encode(), 9, mtime=0))


def without_words(value: Any) -> Any:
    """Return a JSON value with an ellipsis for each string that has a blank in it."""
    if isinstance(value, dict):
        return {key: without_words(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [without_words(item) for item in value]
    return "..." if isinstance(value, str) and " " in value else value


def shown_then(then: Any, now: Any) -> Any:
    """Return an answer of today without what the older one did not have, and without what is of the moment."""
    if isinstance(then, dict) and isinstance(now, dict):
        kept = then.keys() - _OF_THE_MOMENT - _OF_THE_FILES
        if "dead_s" in then:
            kept -= _OF_THE_END
        if then.get("incident_id") and then.get("state") == "open":
            kept -= _OF_THE_JOB
        return {key: shown_then(then[key], now.get(key, "missing")) for key in kept}
    if isinstance(then, list) and isinstance(now, list) and len(then) == len(now):
        return [shown_then(*pair) for pair in zip(then, now, strict=True)]
    return now


def different(now: Any, then: Any, at: str = "") -> str | None:
    """Return where two JSON values differ by more than the last bits of a number, None where they do not."""
    if isinstance(now, dict) and isinstance(then, dict) and now.keys() == then.keys():
        parts = ((now[key], then[key], f"{at}.{key}") for key in now)
    elif isinstance(now, list) and isinstance(then, list) and len(now) == len(then):
        parts = ((one, other, f"{at}[{i}]") for i, (one, other) in enumerate(zip(now, then, strict=True)))
    elif isinstance(now, float) and isinstance(then, float):
        both_nan = math.isnan(now) and math.isnan(then)
        return None if both_nan or math.isclose(now, then, rel_tol=LAST_BITS) else f"{at}: {now!r}, was {then!r}"
    else:
        return None if now == then and type(now) is type(then) else f"{at}: {now!r}, was {then!r}"
    return next((found for part in parts if (found := different(*part)) is not None), None)
