"""The server's page: its health, the watchers for an outage, and the fate of the newest messages."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from dash import html

from stabilityfrontend.controls import panel_head
from stabilityfrontend.declared import page, panel
from stabilityfrontend.format import moment
from stabilityfrontend.tables import plain_table
from stabilityfrontend.viewer import Api

__all__ = ["server_page", "watchers_panel"]

_TONES = {"refused": " critical", "late": " critical"}
#: Description and settings of each of the two.
_WATCHERS = {
    "heartbeat": (
        "Heartbeat",
        "While all is well an address outside is asked for, each 30 s or as set. Who runs it raises the alarm when it "
        "stops.",
        "STABILITY_HEARTBEAT_URL",
    ),
    "watchdog": (
        "Watchdog",
        "Fires in Alertmanager as long as all is well. Its receiver there raises the alarm when that stops.",
        "STABILITY_ALERTMANAGER_URL",
    ),
}
_HEADS = [
    ("Who", "", False),
    ("Newest message", "Refused: it is tried again. Late: one should have been accepted since", False),
    ("Last accepted", "", False),
    ("Last refused", "With what the receiver answered", False),
]


@page("/server", name="Server")
def server_page(api: Api) -> list[Any]:
    """Return the page."""
    data = api.get("/receivers")
    watchers = _panel("server-watchers", "Outside watch of this server", [], *_watchers(data))
    return [_state(data), watchers, _receivers(data["receivers"])]


@panel(page="/alerting", title="Outside watch of this server")
def watchers_panel(api: Api) -> list[Any]:
    """Return the panel of the page of alerting."""
    more = html.P(html.A("What each receiver accepted and refused last", href="/server"), className="panel-note")
    return [*_watchers(api.get("/receivers")), more]


def _state(data: Mapping[str, Any]) -> html.Section:
    word, look = ("ready", "chip") if data["ready"] else ("not ready", "chip critical")
    why = [html.Li([html.Strong(one["message"]), f". {one['hint']}"]) for one in data["reasons"]]
    alerts = "alerts can be sent" if data["receivers"] else "no receiver of alerts is set up"
    well = f"Every live run is judged and stored, and {alerts}."
    said = html.Ul(why) if why else html.P(well, className="nothing")
    return _panel("server-state", "This server", [html.Span(word, className=look)], said)


def _watchers(data: Mapping[str, Any]) -> list[Any]:
    rows = [_row(data[name], label) for name, (label, _, _) in _WATCHERS.items()]
    missing = [variable for name, (_, _, variable) in _WATCHERS.items() if not data[name]["set_up"]]
    notes = [f"{label}: {does}" for label, does, _ in _WATCHERS.values()]
    if len(missing) == len(_WATCHERS):
        notes = [f"Nothing outside watches this server. Set {' or '.join(missing)}."]
    table = plain_table(_HEADS, rows, "server-watchers-table")
    return [table, html.Div([html.P(note) for note in notes], className="panel-note server-notes")]


def _receivers(receivers: Sequence[Mapping[str, Any]]) -> html.Section:
    said = html.P("No receiver is set up: incidents are shown here and nowhere else.", className="nothing")
    rows = [_row(one, one["name"].capitalize()) for one in receivers]
    table = plain_table(_HEADS, rows, "server-receivers-table") if rows else said
    return _panel("server-receivers", "Receivers of incidents", [], table)


def _row(one: Mapping[str, Any], label: str) -> html.Tr:
    status = "not set up" if one["status"] == "off" else one["status"]
    refused = [moment(one["refused"]), html.Div(one["why"], className="sub") if one["why"] else None]
    return html.Tr(
        [
            html.Th(label, scope="row"),
            html.Td(html.Span(status, className=f"chip{_TONES.get(one['status'], '')}")),
            html.Td(moment(one["accepted"])),
            html.Td(refused),
        ],
        **{"data-receiver": one["name"]},
    )


def _panel(place: str, title: str, beside: list[Any], *parts: Any) -> html.Section:
    head = panel_head(title, *beside)
    return html.Section([head, *filter(None, parts)], className="panel", id=place, **{"aria-label": title})
