"""The page ``/gallery``: each pattern with its curve and its words. The browser draws the curves."""

from __future__ import annotations

import importlib.resources
import json
from functools import cache
from typing import Any

from dash import html

from stabilityfrontend.controls import frame
from stabilityfrontend.declared import page
from stabilityfrontend.gallery.patterns import GROUPS, PATTERNS, Pattern

__all__ = ["curves", "skeleton"]


@cache
def curves() -> dict[str, Any]:
    """Return the recorded curves by id of their pattern: ``fault``, ``seed``, ``rows`` of lines, ``found``."""
    text = importlib.resources.files(__package__).joinpath("curves.json").read_text(encoding="utf-8")
    known: dict[str, Any] = json.loads(text)
    return known


@page("/gallery", name="Gallery", order=40, live="gallery")
def skeleton() -> html.Div:
    """Return the page."""
    recorded = curves()
    bar = [
        html.H1("Gallery", className="crumb-here"),
        html.Span(className="grow"),
        html.Span(id="live-pill", className="pill quiet"),
    ]
    intro = html.Header(
        [
            html.H2("How curves look when something is wrong"),
            html.P(
                "Each curve is a real run of our laboratory, broken on purpose. A coloured band is what the board "
                "found, with no knowledge of the fault; grey and dashed is what a restart went back over. Drag to "
                "zoom; a double click or Escape shows the whole run."
            ),
        ],
        className="gallery-intro",
    )
    index = html.Nav(
        [html.A(one.title, href=f"#{one.id}", className="chip") for one in PATTERNS],
        className="gallery-index",
        **{"aria-label": "Patterns"},
    )
    groups = [
        html.Section(
            [
                html.H2(title),
                html.Div(
                    [_card(one, recorded[one.id]) for one in PATTERNS if one.group == group], className="gallery-cards"
                ),
            ],
            className="gallery-group",
        )
        for group, title in GROUPS.items()
    ]
    return frame(bar, html.Main([intro, index, *groups], className="gallery"))


def _card(pattern: Pattern, recorded: dict[str, Any]) -> html.Article:
    words = [
        ("What it looks like", pattern.look),
        ("Why it happens", pattern.why),
        ("What people do", pattern.remedy),
        ("On this board", pattern.board),
    ]
    return html.Article(
        [
            html.H3(html.A(pattern.title, href=f"#{pattern.id}", className="anchor")),
            html.Div(className="chart gallery-chart", **{"data-curve": pattern.id, "data-begin": str(pattern.begin)}),
            html.Div(className="legend", **{"data-legend": pattern.id}),
            html.P(f"Laboratory, seed {recorded['seed']}: {recorded['fault']}.", className="sub gallery-made"),
            html.Dl([html.Div([html.Dt(name), html.Dd(what)]) for name, what in words]),
            html.P(["Read: ", html.Cite(pattern.source), "."], className="sub"),
        ],
        id=pattern.id,
        className="panel gallery-card",
    )
