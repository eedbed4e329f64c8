"""The skeleton of the page of all incidents of all runs."""

from __future__ import annotations

from dash import html

from stabilityfrontend.controls import frame, more_panels, segmented
from stabilityfrontend.declared import page

__all__ = ["skeleton"]


@page("/incidents", name="Incidents", order=5, live="incidents")
def skeleton() -> html.Div:
    """Return the page."""
    bar = [
        html.H1("Incidents", className="crumb-here"),
        html.Span(id="incidents-open", className="chip"),
        html.Span(className="grow"),
        html.Span(id="live-pill", className="pill quiet"),
    ]
    tools = [
        # The fields are made by the script: what is chosen there is of no interest to Dash.
        html.Div(id="incidents-search"),
        segmented("incidents-state", "Which incidents", [("open", "Open"), ("", "All"), ("over", "Over")]),
        segmented(
            "incidents-severity", "Severity", [("", "Any"), ("critical", "Critical"), ("warning", "Warning and up")]
        ),
        html.Div(id="incidents-more-filters", className="tools-row"),
        html.Span(className="grow"),
        html.Div(id="incidents-chosen", className="tools-row"),
    ]
    table = html.Section(
        [
            html.Div(tools, className="panel-head wrap"),
            html.Div(id="incidents-list"),
            html.Div(id="incidents-foot", className="runs-more", hidden=True),
            html.Div(id="incidents-empty", hidden=True),
        ],
        className="panel",
        **{"aria-label": "Incidents"},
    )
    return frame(bar, html.Main([table, more_panels()], className="list stack"))
