"""Interruptions of the fleet: the nodes hit, the signs seen, and the category, which a person may correct."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from urllib.parse import quote

from dash import html

from stabilityfrontend.controls import choice, fact_list, panel_head
from stabilityfrontend.format import count, duration, moment, names, plural, ranks, sentence
from stabilityfrontend.tables import Cell, Column, table

__all__ = ["interruptions"]

_WHAT = {
    "death": "a process died",
    "hang": "the job hung",
    "stall": "it stalled and went on by itself",
    "node_lost": "a node was lost",
    "restart": "it was restarted",
}


def interruptions(stops: list[dict[str, Any]], rows: list[dict[str, Any]], query: Mapping[str, str]) -> html.Section:
    """Return the panel: the list, and the facts of the open one.

    Args:
        stops: interruptions as the API gives them, newest first.
        rows: of the table of categories.
        query: parameters of the page's address; ``open`` is the id of the one that is open.
    """
    note = html.Span("newest first; open one to see why, and to correct its category", className="sub")
    columns = [
        Column("since", "Since", width=150),
        Column("run", "Run", grow=1.2, width=130),
        Column("category", "Category", grow=1.4, width=170),
        Column("who", "Who", grow=1.4, width=150),
        Column("lost", "Time lost", number=True, width=120),
        Column("incident", "Incident", grow=0.6, width=90),
    ]
    grid = table([_row(one) for one in stops], columns, key="id", id="fleet-list")
    opened = next((one for one in stops if one["id"] == query.get("open")), None)
    more = [] if opened is None else [_details(opened, rows)]
    return html.Section([panel_head("Interruptions", note), *more, grid], className="panel", id="fleet-list-panel")


def _row(one: Mapping[str, Any]) -> dict[str, Any]:
    who = [
        words
        for words in (ranks(one["ranks"]), names(one["nodes"]), names([uuid[:12] for uuid in one["gpus"]], 1))
        if words
    ]
    aside = "" if one["counted"] else "by hand, not counted" if one["category"] == "user_stop" else "not counted"
    set_by = one["set_by"]
    sub = f"set by {set_by['who']}" if set_by else f"{one['confidence']} confidence" if one["confidence"] else ""
    run = one["run_name"] or one["run_id"]
    return {
        "id": one["id"],
        "since": Cell(one["since"], moment=True, href=f"?open={quote(one['id'])}"),
        "run": Cell(run, sub="the run is deleted")
        if one["deleted"]
        else Cell(run, sub=one["project"] or "no project", href=f"/runs/{one['run_id']}"),
        "category": Cell(one["label"], sub=sub, href=f"?open={quote(one['id'])}"),
        "who": Cell(", ".join(who), who[0] if who else "nobody stands out", sub=", ".join(who[1:])),
        "lost": Cell(
            one["time_lost_s"],
            duration(one["time_lost_s"]) if one["time_lost_s"] else "–",
            sub=aside or ("not back yet" if one["open"] else ""),
            tone="quiet" if aside else "critical" if one["open"] else "",
        ),
        "incident": Cell("Incident", href=f"/runs/{one['run_id']}/incidents/{one['incident_id']}")
        if one["incident_id"] and not one["deleted"]
        else "",
    }


def _details(one: Mapping[str, Any], rows: list[dict[str, Any]]) -> html.Div:
    labels = {row["category"]: row["label"] for row in rows} | {one["category"]: one["label"]}
    seen, by = one["seen_category"], one["set_by"]
    options = [(name, f"{text}{' (as seen)' if name == seen else ''}") for name, text in labels.items()]
    correction = choice(
        "fleet-category",
        "Category",
        "category",
        [("" if name == seen else name, text) for name, text in options],
        "" if one["category"] == seen else one["category"],
        put=f"/runs/{one['run_id']}/incidents/{one['incident_id'] or one['id']}/category",
        disabled=one["deleted"],
    )
    others = [other for other in one["incidents"] if other != one["incident_id"]]
    resumed, again = one["resumed"], one["resumed_step"]
    return html.Div(
        [
            html.Div(
                [
                    html.H3([one["run_name"] or one["run_id"], ", ", moment(one["since"])]),
                    html.Span(className="grow"),
                    correction,
                    html.A("Close", href="?open=", className="toggle"),
                ],
                className="fleet-tools",
            ),
            html.P(["Set by ", by["who"], ", ", moment(by["time"]), f"; seen as {labels.get(seen, seen).lower()}"])
            if by
            else None,
            html.Div([html.H4("Evidence"), html.Ul([html.Li(line) for line in one["evidence"]])])
            if one["evidence"]
            else None,
            html.Div([html.H4("Not sure, because"), html.P(sentence(one["unsure"]))]) if one["unsure"] else None,
            fact_list(
                [
                    ("What happened", _WHAT.get(one["what"], one["what"])),
                    (
                        "Down",
                        [
                            duration(one["downtime_s"]),
                            ", on again at " if resumed else ", not on again yet",
                            moment(resumed) if resumed else "",
                        ]
                        if resumed or one["counted"]
                        else "",
                    ),
                    (
                        "Trained twice",
                        f"{plural(one['redone_steps'], 'step')}, {duration(one['redone_s'])}"
                        if one["redone_steps"]
                        else "",
                    ),
                    (
                        "Step",
                        ""
                        if one["step"] is None
                        else count(one["step"]) + ("" if again is None else f", on again from {count(again)}"),
                    ),
                    ("GPUs", [html.Div(html.Code(uuid)) for uuid in one["gpus"]]),
                    (
                        "Also",
                        []
                        if one["deleted"]
                        else [
                            html.Span(
                                [
                                    ", " if index else "",
                                    html.A(f"incident {index + 2}", href=f"/runs/{one['run_id']}/incidents/{other}"),
                                ]
                            )
                            for index, other in enumerate(others)
                        ],
                    ),
                ]
            ),
        ],
        className="interruption-more",
        id="fleet-open",
    )
