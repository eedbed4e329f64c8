"""Audit: orders, approvals, changes, deletions and views by person, newest first. For keys with ``admin``.

Person, action and run stand in the address (``who``, ``action``, ``run``), so that a link shows the same.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from urllib.parse import urlencode

from dash import html

from stabilityfrontend.controls import choice, panel_head
from stabilityfrontend.declared import page
from stabilityfrontend.format import count
from stabilityfrontend.tables import Cell, Column, table
from stabilityfrontend.viewer import Api

__all__ = ["audit_page"]

#: Newest entries that are shown; the file has all.
SHOWN = 500
#: Begin of an action -> label of the choice. The whole list is in docs/security.md.
ACTIONS = {
    "command": "orders",
    "proposal": "proposals",
    "incident": "acknowledged",
    "settings": "settings",
    "see": "output and samples seen",
    "run": "runs changed or deleted",
    "segment": "segments undone",
    "annotation": "annotations",
    "interruption": "interruptions",
    "alerting": "routes and mutes",
    "autopilot": "autopilot",
    "view": "views",
    "key": "keys",
    "login": "logins",
    "logout": "logouts",
}


_EMPTY = "No entry yet. Each order to a job, each change of settings and each login becomes one."


@page("/audit", name="Audit", order=30)
def audit_page(api: Api, query: Mapping[str, str]) -> list[Any]:
    """Return the page."""
    asked = {name: query.get(name, "") for name in ("who", "action", "run")}
    given = {name: value for name, value in asked.items() if value}
    entries = api.get("/audit", count=SHOWN, **given)["entries"]
    # An answer about one person lacks the others.
    everyone = entries if not given else api.get("/audit", count=SHOWN)["entries"]
    people = sorted({entry["who"] for entry in everyone} | {asked["who"]} - {""})
    runs = sorted({entry["run"] for entry in everyone if entry["run"]} | {asked["run"]} - {""})
    tools = html.Div(
        [
            choice("audit-who", "Person", "who", [("", "all"), *((one, one) for one in people)], asked["who"]),
            choice("audit-action", "Action", "action", [("", "all"), *ACTIONS.items()], asked["action"]),
            choice("audit-run", "Run", "run", [("", "all"), *((one, one) for one in runs)], asked["run"]),
            html.Span(className="grow"),
            *(
                html.A(f"Save as {name}", href=_file(kind, given), className="button", target="_self", download=True)
                for kind, name in (("csv", "CSV"), ("jsonl", "JSON lines"))
            ),
        ],
        className="fleet-tools",
    )
    if not entries:
        none = "No entry fits these filters." if given else _EMPTY
        return [tools, html.Section(html.P(none, className="nothing"), className="panel")]
    newest = f"the newest {count(len(entries))}" if len(entries) == SHOWN else count(len(entries))
    return [
        tools,
        html.Section(
            [
                panel_head("Who did what", html.Span(newest, className="sub")),
                table(
                    [_row(entry) for entry in entries],
                    [
                        Column("when", "When", width=150),
                        Column("who", "Who", width=130),
                        Column("action", "Action", width=150),
                        Column("run", "Run", width=130),
                        Column("detail", "What", grow=3, width=260),
                    ],
                    id="audit-table",
                ),
                html.P(
                    "Only ever appended to. With a run chosen, each change of its commands is here too. What was seen "
                    "is noted once an hour for each person and run.",
                    className="panel-note",
                ),
            ],
            className="panel",
        ),
    ]


def _row(entry: Mapping[str, Any]) -> dict[str, Cell | str | float | None]:
    run = entry["run"]
    target = entry["target"] if entry["target"] != run else ""
    key = f"key {entry['key_id']}" if entry["key_id"] else ""
    return {
        "when": Cell(entry["time"], moment=True),
        "who": Cell(entry["who"], sub=key),
        "action": Cell(entry["action"]),
        "run": Cell(run, href=f"/runs/{run}" if run else ""),
        "detail": Cell(entry["detail"], sub=target, title=entry["detail"]),
    }


def _file(kind: str, given: Mapping[str, str]) -> str:
    return f"/api/v1/audit/export?{urlencode({'format': kind, **given})}"
