"""The skeleton of the fleet's page: what interrupted all runs, how much time that cost, which GPUs do it again."""

from __future__ import annotations

from typing import Any

from dash import html

from stabilityfrontend.controls import more_panels, panel_head, segmented, topbar
from stabilityfrontend.declared import page

__all__ = ["HEADLINES", "bar", "body"]

#: Headline numbers: id, words above, exactly how it is computed (under the pointer).
HEADLINES = (
    ("count", "Interruptions", "Stops of a job that nobody asked for. One a stop, however many ranks it took along."),
    (
        "lost",
        "Time lost",
        "Of all interruptions: from the last progress until training went on, and the steps that were trained twice.",
    ),
    ("mtbi", "Mean time between", "Hours that all runs of the period trained, divided by the interruptions."),
    (
        "rate",
        "Per 1,000 GPU-hours",
        "Interruptions per 1,000 GPU-hours that all runs of the period trained. Makes fleets of different sizes alike.",
    ),
)


@page("/fleet", name="Fleet", order=10, live="fleet")
def skeleton() -> html.Div:
    """Return the page."""
    return html.Div([topbar(bar()), *body()], className="page")


def bar() -> list[Any]:
    """Return what the page puts into the top bar."""
    return [
        html.A("Runs", href="/", className="crumb", id="crumb-runs"),
        html.Span("/", className="crumb-sep"),
        html.Span("Fleet", className="crumb-here"),
        html.Span(className="grow"),
        html.Span(id="live-pill", className="pill quiet"),
    ]


def body() -> list[Any]:
    """Return the regions below the top bar."""
    return [
        html.Div(id="banner", role="alert", hidden=True),
        html.Main(
            [
                html.Div(
                    [
                        segmented(
                            "fleet-days",
                            "Period",
                            [("7", "7 days"), ("30", "30 days"), ("90", "90 days"), ("all", "All")],
                        ),
                        # Made by the script: projects are known when the list of runs is.
                        html.Div(id="fleet-project", className="tool"),
                        html.Span(className="grow"),
                        html.Span(id="fleet-note", className="sub"),
                    ],
                    className="fleet-tools",
                ),
                html.Section(
                    [_headline(*headline) for headline in HEADLINES],
                    id="fleet-totals",
                    className="panel totals four",
                    **{"aria-label": "In this period"},
                ),
                html.Div(id="fleet-empty", hidden=True),
                html.Section(
                    [
                        panel_head("What interrupted training", html.Span(id="fleet-table-note", className="sub")),
                        html.Div(id="fleet-table", className="wide-table"),
                    ],
                    className="panel",
                    id="fleet-table-panel",
                ),
                html.Section(
                    [
                        panel_head("Interruptions", html.Span(id="fleet-list-note", className="sub")),
                        html.Div(id="fleet-list"),
                    ],
                    className="panel",
                    id="fleet-list-panel",
                ),
                html.Section(
                    [
                        panel_head("GPUs with faults", html.Span(id="fleet-gpus-note", className="sub")),
                        html.Div(id="fleet-gpus", className="wide-table"),
                    ],
                    className="panel",
                    id="fleet-gpus-panel",
                ),
                more_panels(),
            ],
            className="list stack",
            id="fleet-main",
        ),
    ]


def _headline(id_: str, label: str, how: str) -> html.Div:
    return html.Div(
        [
            html.Div(label, className="kpi-label"),
            html.Div([html.Span("–", className="kpi-value"), html.Span(className="kpi-unit")], className="kpi-line"),
            html.Div(className="kpi-note"),
        ],
        id=f"fleet-total-{id_}",
        className="total",
        title=how,
        tabIndex="0",
    )
