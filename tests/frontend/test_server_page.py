"""The server's page as a function of the API's answer."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from dash.development.base_component import Component

from stabilityfrontend.fleet.server_page import server_page

_OFF = {"set_up": False, "status": "off", "accepted": None, "refused": None, "why": ""}
_WELL = {"set_up": True, "status": "accepted", "accepted": 1000.0, "refused": None, "why": ""}


def shown(**changes: Any) -> list[str]:
    """Return the texts of the page in order."""
    data = {
        "time": 2000.0, "ready": True, "reasons": [], "heartbeat": {"name": "heartbeat", **_OFF},
        "watchdog": {"name": "watchdog", **_OFF}, "receivers": [],
    } | changes  # fmt: skip

    class Answers:
        def get(self, path: str) -> Any:
            return {"/receivers": data}[path]

    return [text for part in server_page(Answers()) for text in _texts(part)]  # type: ignore[arg-type]


def _texts(part: Any) -> Iterator[str]:
    if isinstance(part, str):
        yield part
    for child in part if isinstance(part, list) else [getattr(part, "children", None)]:
        if isinstance(child, str | list | Component):
            yield from _texts(child)


def test_a_server_of_which_nobody_notices_that_it_is_away_says_so_and_what_to_set() -> None:
    note = "Nothing outside watches this server. Set STABILITY_HEARTBEAT_URL or STABILITY_ALERTMANAGER_URL."
    assert note in shown()
    assert note not in shown(heartbeat={"name": "heartbeat", **_WELL})


def test_a_server_without_a_receiver_does_not_say_that_alerts_can_be_sent() -> None:
    slack = {"name": "slack", **_WELL}
    assert "Every live run is judged and stored, and no receiver of alerts is set up." in shown()
    assert "Every live run is judged and stored, and alerts can be sent." in shown(receivers=[slack])


def test_what_a_receiver_refused_is_said_with_the_status_code_of_its_answer() -> None:
    refused = {"name": "slack", "set_up": True, "status": "refused", "accepted": None, "refused": 900.0}
    texts = shown(receivers=[refused | {"why": "answered 403"}])
    assert texts[texts.index("Slack") :][:4] == ["Slack", "refused", "–", "answered 403"]


def test_a_server_that_is_not_ready_says_why_and_what_to_do() -> None:
    why = {"code": "redis_full", "message": "Redis is full", "hint": "Raise maxmemory."}
    texts = shown(ready=False, reasons=[why])
    assert texts[:4] == ["This server", "not ready", "Redis is full", ". Raise maxmemory."]
