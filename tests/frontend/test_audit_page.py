"""The page of the audit log: what is in it is text, and what is chosen is asked for."""

from __future__ import annotations

import json
from typing import Any

from stabilityfrontend.fleet.audit_page import audit_page

ENTRY = {
    "time": 1.0, "who": "anna", "key_id": "ab", "action": "command.order", "target": "c-1", "run": "r",
    "detail": "<b>roll back</b>",
}  # fmt: skip


class Answers:
    """The API; writes down what it was asked."""

    def __init__(self, entries: list[dict[str, Any]]) -> None:
        self.entries, self.asked = entries, list[dict[str, Any]]()

    def get(self, path: str, **given: Any) -> dict[str, Any]:
        self.asked.append(given)
        return {"entries": self.entries}


def drawn(entries: list[dict[str, Any]], query: dict[str, str]) -> tuple[str, list[dict[str, Any]]]:
    api = Answers(entries)
    shown = audit_page(api, query)  # type: ignore[arg-type]
    return json.dumps([part.to_plotly_json() for part in shown], default=lambda one: one.to_plotly_json()), api.asked


def test_an_entry_is_a_row_with_its_run_as_a_link() -> None:
    text, asked = drawn([ENTRY], {})
    assert '"/runs/r"' in text
    assert "<b>roll back</b>" in text
    assert asked == [{"count": 500}]


def test_what_the_address_chooses_is_asked_for_and_goes_into_the_file() -> None:
    text, asked = drawn([], {"who": "anna", "run": "r", "foreign": "x"})
    assert asked[0] == {"count": 500, "who": "anna", "run": "r"}
    assert "/api/v1/audit/export?format=csv&who=anna&run=r" in text
    assert "No entry fits these filters." in text


def test_an_empty_log_tells_what_will_be_in_it() -> None:
    text, _ = drawn([], {})
    assert "No entry yet. Each order to a job" in text
