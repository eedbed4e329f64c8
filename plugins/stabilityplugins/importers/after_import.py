"""What follows an import, over HTTP, once the points are on the server: the annotations of our own exports are brought
along, and rollbacks that were inferred from the steps alone are named, with the way to refuse them."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any
from urllib.parse import quote

import msgspec

from stabilitybackend.base.api_client import ApiClient, run_path
from stabilitybackend.base.errors import StabilityBoardError
from stabilitybackend.schema.lineage import Segments

__all__ = ["bring_annotations", "inferred_lineage"]

#: The server has stored the last frame, and may take a moment more to see its segments, seconds.
FOLDED_WITHIN_S = 10.0
#: Between two looks, seconds.
LOOK_S = 0.1

#: Steps in a line.
_MAX_STEPS = 8


def bring_annotations(exported: Mapping[str, Any] | None, run_id: str, url: str, api_key: str | None) -> list[str]:
    """Make the annotations of an export at the run that was imported of it; the same ids, so it may be repeated.

    Args:
        exported: what the export says about its run, None of other files.

    Returns:
        What is to be said of it: how many there are, or why they are not.
    """
    given = (exported or {}).get("annotations")
    if exported is None or not isinstance(given, list) or not given:
        return []
    try:
        with ApiClient(url, api_key) as client:
            segments = _segments(exported, client, run_id)
            for one in given:
                body = {name: one[name] for name in ("text", "first_step", "last_step", "metric", "author", "created")}
                body["segment"] = segments.get(one.get("segment"), 0)
                path = f"{run_path(run_id)}/annotations/{quote(str(one['annotation_id']), safe='')}"
                client.call("PUT", path, body)
    except (StabilityBoardError, KeyError, TypeError, AttributeError) as error:
        return [f"its {len(given)} annotations are not all on the server: {error}; a key needs the scope command"]
    return [f"{len(given)} annotation{'s' if len(given) != 1 else ''}"]


def _segments(exported: Mapping[str, Any], client: ApiClient, run_id: str) -> dict[Any, int]:
    """Return segment in the file -> segment of the run; an export of the effective timeline leaves some out."""
    from stabilityplugins.importers.lineage import ExportedLineage

    keys, until = ExportedLineage(exported).keys, time.monotonic() + FOLDED_WITHIN_S
    while True:
        known = {one["key"]: one["id"] for one in client.get(f"{run_path(run_id)}/segments")["segments"]}
        if known.keys() >= set(keys.values()) or time.monotonic() > until:
            return {0: 0} | {segment: known[key] for segment, key in keys.items() if key in known}
        time.sleep(LOOK_S)


def inferred_lineage(run_id: str, url: str, api_key: str | None) -> list[str]:
    """Return lines about what was inferred in a run that was imported: how its steps count, and its rollbacks."""
    try:
        with ApiClient(url, api_key) as client:
            _wait_until_folded(client, run_id)
            counted = [str(note) for note in client.get(run_path(run_id)).get("log_notes") or ()]
            found = msgspec.convert(client.get(f"{run_path(run_id)}/segments"), Segments, strict=False).inferred()
    except (StabilityBoardError, msgspec.ValidationError):  # a key that may only send
        return []
    if not found:
        return counted
    steps = [
        f"step {one.fork_step:,}" if one.fork_step is not None and one.fork_step >= 0 else "the start"
        for one in found[:_MAX_STEPS]
    ]
    back = ", ".join(steps) + (", ..." if len(found) > _MAX_STEPS else "")
    what = "1 rollback or restart was" if len(found) == 1 else f"{len(found)} rollbacks or restarts were"
    return [
        *counted,
        f"{what} inferred from steps that go back, to {back}; not so? import it again with --no-rollbacks --run-id NEW",
    ]


def _wait_until_folded(client: ApiClient, run_id: str) -> None:
    """Wait until the server has judged the last row: it says then that the run is over."""
    until = time.monotonic() + FOLDED_WITHIN_S
    while client.get(run_path(run_id)).get("status") not in ("finished", "crashed") and time.monotonic() < until:
        time.sleep(LOOK_S)
