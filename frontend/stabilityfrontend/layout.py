"""The skeletons of the pages: which regions there are, in which order, under which id.

No data here. ``assets/`` finds the regions by id and fills them, so that a page shows its shape at once and a point
never waits for a callback. Texts that come from a run (names, reasons, metrics) are only ever set as text there.
"""

from __future__ import annotations

import json
from typing import Any

from dash import dcc, html
from plotly.io.json import to_json_plotly

from stabilityfrontend import compare_page, fleet_page, incident_page, run_page

__all__ = ["layout", "login_page", "missing_page", "runs_page", "skeletons", "topbar"]


def layout(config: dict[str, Any]) -> html.Div:
    """Return the frame that stays while pages come and go.

    Args:
        config: what ``figures.browser_config`` returns.
    """
    return html.Div(
        [
            dcc.Location(id="location", refresh=False),
            dcc.Store(id="chart-config", data=config),
            dcc.Store(id="skeletons", data=skeletons()),
            html.Div(id="page"),
            html.Div(id="toasts", role="status", **{"aria-live": "polite"}),
        ],
        id="root",
    )


def skeletons() -> dict[str, Any]:
    """Return every page's skeleton as plain JSON, by the name that ``assets/core/route.js`` knows it by.

    They come with the frame: going to a page then costs no request, and the first chart waits for one less.
    """
    pages = {
        "runs": runs_page(),
        "login": login_page(),
        "run": html.Div([topbar(run_page.bar()), *run_page.body()], className="page"),
        "compare": html.Div(
            [topbar(compare_page.bar()), *compare_page.body()], className="page", **{"data-page": "compare"}
        ),
        "incident": html.Div(
            [topbar(incident_page.bar()), *incident_page.body()], className="page", **{"data-page": "incident"}
        ),
        "fleet": html.Div([topbar(fleet_page.bar()), *fleet_page.body()], className="page", **{"data-page": "fleet"}),
        "missing": missing_page(),
    }
    return {name: json.loads(to_json_plotly(page)) for name, page in pages.items()}


def topbar(middle: list[Any]) -> html.Header:
    """Return the bar at the top: mark, what the page puts in the middle, theme switch."""
    return html.Header(
        [
            html.A([html.Span(className="mark"), html.Span("Stabilityboard", className="brand")], href="/", id="home"),
            *middle,
            html.Span(id="who"),
            html.Button(
                html.Span(className="icon icon-theme"),
                id="theme-toggle",
                className="icon-button",
                type="button",
                title="Dark or light",
                **{"aria-label": "Switch between dark and light"},
            ),
        ],
        className="topbar",
    )


def runs_page() -> html.Div:
    """Return the list of runs: a table, and a place for the words that stand there while it is empty."""
    heads = ["", "Run", "Status", "Step", "Loss", "Last 200 steps", "Incidents", "Rollbacks", "Updated"]
    numeric = {"Step", "Loss", "Incidents", "Rollbacks", "Updated"}
    return html.Div(
        [
            topbar(
                [
                    html.Span("Runs", className="crumb-here"),
                    html.Span(id="runs-count", className="chip"),
                    html.A("Fleet", href="/fleet", className="crumb-link", id="open-fleet"),
                    html.Span(className="grow"),
                    html.Span(id="live-pill", className="pill quiet"),
                ]
            ),
            html.Div(id="banner", role="alert", hidden=True),
            html.Main(
                html.Section(
                    [
                        # The field itself is made by the script: what is typed in it is of no interest to Dash.
                        html.Div(
                            [html.Div(id="runs-search"), html.Span(className="grow"), html.Div(id="runs-compare")],
                            className="panel-head",
                            id="runs-head",
                        ),
                        html.Table(
                            [
                                html.Thead(
                                    html.Tr(
                                        [html.Th(head, className="num" if head in numeric else "") for head in heads]
                                    )
                                ),
                                html.Tbody(id="runs-body"),
                            ],
                            className="table runs",
                            id="runs-table",
                        ),
                        # How many of them are shown, and a button for more (assets/runs/runs_page.js).
                        html.Div(id="runs-more", className="runs-more", hidden=True),
                        html.Div(id="runs-empty", hidden=True),
                    ],
                    className="panel",
                ),
                className="list",
            ),
        ],
        className="page",
        **{"data-page": "runs"},
    )


def login_page() -> html.Div:
    """Return the page where an API key is pasted."""
    return html.Div(
        html.Form(
            [
                html.Div([html.Span(className="mark"), html.Span("Stabilityboard")], className="login-brand"),
                html.P(
                    "This board is reachable from other machines, so it asks for a key. Whoever runs it makes one with "
                    "“stabilityboard keys”."
                ),
                html.Label("API key", htmlFor="login-key"),
                # Made by the script, so that a key never becomes a property of a component.
                html.Div(id="login-field"),
                html.Div(id="login-error", role="alert"),
                html.Button("Open the board", id="login-send", className="button primary", type="submit"),
            ],
            id="login-form",
            className="panel login",
        ),
        className="page centre",
        **{"data-page": "login"},
    )


def missing_page() -> html.Div:
    """Return the page of an address that means nothing here."""
    return html.Div(
        [
            topbar([html.Span(className="grow")]),
            html.Main(
                html.Div(
                    [
                        html.H2("Page not found"),
                        html.P(["The list of runs is ", html.A("here", href="/"), "."]),
                    ],
                    className="empty panel",
                ),
                className="list",
            ),
        ],
        className="page",
        **{"data-page": "missing"},
    )
