"""Incidents for the tests, read as they would be from Redis."""

from __future__ import annotations

from typing import Any

import orjson

from stabilitybackend.schema.incidents import Incident, decoded

__all__ = ["stored"]


def stored(kind: str = "spike", **fields: Any) -> Incident:
    """Return the incident of a stored one with these fields (docs/api.md), the others as of a new one at step 100."""
    new = {
        "incident_id": f"i-{kind}", "run_id": "run", "version": 1, "kind": kind, "severity": "critical",
        "state": "open", "title": f"A {kind}", "text": "", "segment": 0, "onset_step": 100, "step": 100,
        "opened": 0.0, "updated": 0.0,
    }  # fmt: skip
    evidence = {"now_step": 100} | fields.pop("evidence", {})
    return decoded(orjson.dumps(new | fields | {"evidence": evidence}))
