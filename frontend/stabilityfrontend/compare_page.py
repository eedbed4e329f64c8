"""The skeletons of the pages that lay runs over each other, and one run over itself (attempts, a fork's branches)."""

from __future__ import annotations

from typing import Any

from dash import html

from stabilityfrontend.controls import frame, more_panels, panel_head, segmented
from stabilityfrontend.declared import page

__all__ = ["attempts", "skeleton"]


@page("/compare", name="Compare", order=20, live="compare")
def skeleton() -> html.Div:
    """Return the page."""
    return frame(_bar(), *_body())


def _bar() -> list[Any]:
    """Return what the page puts into the top bar."""
    return [
        html.A("Runs", href="/", className="crumb", id="crumb-runs"),
        html.Span("/", className="crumb-sep"),
        html.H1("Compare", className="crumb-here"),
        html.Span(id="compare-count", className="chip"),
        html.Span(className="grow"),
        html.Span(id="live-pill", className="pill quiet"),
    ]


def _body() -> list[Any]:
    """Return the regions below the top bar."""
    return [
        html.Main(
            [
                html.Section(
                    [
                        # Made by the script: what is chosen there is of no interest to Dash.
                        html.Div(
                            [
                                html.Div(id="compare-metric", className="tool"),
                                html.Div(
                                    [
                                        html.Span("Align by", className="tool-label"),
                                        segmented(
                                            "compare-align",
                                            "What the lines have in common at zero",
                                            [("step", "Step"), ("fork", "Last fork"), ("time", "Time")],
                                        ),
                                    ],
                                    className="tool",
                                ),
                                html.Div(id="compare-smooth", className="tool"),
                                html.Span(className="grow"),
                                segmented("compare-scale", "Value axis", [("linear", "Linear"), ("log", "Log")]),
                                html.Button(
                                    "Reset zoom", id="zoom-reset", className="toggle", type="button", hidden=True
                                ),
                            ],
                            className="tools first",
                        ),
                        html.Div(id="compare-legend", className="legend wide"),
                        html.Div(id="compare-chart", className="chart compare"),
                        html.Div(id="compare-note", className="panel-note", hidden=True),
                    ],
                    className="panel",
                    id="compare-panel",
                ),
                html.Section(
                    [
                        panel_head(
                            "Runs",
                            html.Span(id="compare-cursor", className="sub"),
                            html.Span(className="grow"),
                            html.Div(id="compare-add", className="tool"),
                        ),
                        html.Div(id="compare-table", className="wide-table"),
                    ],
                    className="panel",
                ),
                html.Section(
                    [
                        panel_head("Config", html.Span(id="compare-config-note", className="sub")),
                        html.Div(id="compare-configs", className="wide-table"),
                    ],
                    className="panel",
                    id="compare-config-panel",
                    hidden=True,
                ),
                html.Div(id="compare-empty", hidden=True),
                more_panels(),
            ],
            className="list stack",
        ),
    ]


@page("/runs/{run}/attempts", name="Attempts", live="attempts")
def attempts() -> html.Div:
    """Return the page of one run over itself."""
    bar = [
        html.A("Runs", href="/", className="crumb", id="crumb-runs"),
        html.Span("/", className="crumb-sep"),
        html.H1(html.A(id="attempts-run", className="crumb-link", href="/"), className="crumb-here"),
        html.Span("/", className="crumb-sep"),
        html.Span("Attempts", className="crumb"),
        html.Span(className="grow"),
    ]
    tools = html.Div(
        [
            html.Div(id="attempts-metric", className="tool"),
            html.Div(id="attempts-modes", className="tool"),
            html.Span(className="grow"),
            segmented("attempts-scale", "Value axis", [("linear", "Linear"), ("log", "Log")]),
        ],
        className="tools",
    )
    chart = [
        panel_head("Attempts", title_id="attempts-title"),
        html.P(id="attempts-text", className="attempts-text", role="status"),
        tools,
        html.Div(id="attempts-legend", className="legend wide"),
        html.Div(id="attempts-chart", className="chart attempts"),
    ]
    difference = [panel_head("Difference"), html.Div(id="attempts-difference", className="chart small")]
    return frame(
        bar,
        html.Main(
            [
                html.Section(chart, className="panel"),
                html.Section(difference, className="panel", id="attempts-difference-panel", hidden=True),
                html.Section([html.Div(id="attempts-table", className="wide-table")], className="panel"),
                more_panels(),
            ],
            className="list stack",
        ),
    )
