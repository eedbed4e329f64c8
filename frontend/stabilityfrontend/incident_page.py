"""The skeleton of the page of one incident: what, who, since when, how sure, what to do; then what it rests on."""

from __future__ import annotations

from typing import Any

from dash import html

from stabilityfrontend.controls import frame, more_panels, panel_head
from stabilityfrontend.declared import page

__all__ = ["skeleton"]


@page("/runs/{run}/incidents/{incident}", name="Incident", live="incident")
def skeleton() -> html.Div:
    """Return the page."""
    return frame(_bar(), *_body())


def _bar() -> list[Any]:
    """Return what the page puts into the top bar. The link to the run stays on a phone."""
    return [
        html.A("Runs", href="/", className="crumb", id="crumb-runs"),
        html.Span("/", className="crumb-sep"),
        html.A(id="incident-run", className="crumb-here crumb-link", href="/"),
        html.Span("/", className="crumb-sep"),
        html.Span("Incident", className="crumb"),
        html.Span(className="grow"),
        html.Span(id="live-pill", className="pill quiet"),
    ]


def _body() -> list[Any]:
    """Return the regions below the top bar, in the order in which a phone shows them."""
    return [
        html.Main(
            [
                html.Header(id="incident-head", className="incident-top"),
                html.Section(
                    id="incident-verdict", className="verdict panel", **{"aria-label": "Verdict", "aria-live": "polite"}
                ),
                html.Section(id="incident-actions", className="incident-actions", **{"aria-label": "What you can do"}),
                html.Div(
                    [
                        html.Div(
                            [
                                _panel("incident-death", "How it ended", html.Span(id="death-note", className="sub")),
                                _panel("incident-gpu", "The GPU", html.Span(id="gpu-note", className="sub")),
                                _panel(
                                    "incident-stacks",
                                    "Stacks",
                                    html.Span(id="stacks-note", className="sub"),
                                    html.Span(className="grow"),
                                    # Made by the script: which dump is looked at is of no interest to Dash.
                                    html.Div(id="stacks-choose", className="tool"),
                                ),
                                _panel("incident-collectives", "Collectives"),
                                _panel("incident-ranks", "Ranks", html.Span(id="incident-ranks-note", className="sub")),
                                _panel(
                                    "incident-batches",
                                    "Batches",
                                    html.Span(id="batches-note", className="sub"),
                                    html.Span(className="grow"),
                                    html.Div(id="batches-choose", className="tool"),
                                ),
                                _panel("incident-evidence", "Evidence"),
                                more_panels(),
                            ],
                            className="column",
                        ),
                        html.Aside(
                            [
                                _panel("incident-advice", "What to do"),
                                _panel("incident-timeline", "Timeline"),
                            ],
                            className="rail",
                        ),
                    ],
                    className="incident-columns",
                ),
            ],
            id="incident-main",
            className="incident-page",
        ),
        html.Main(id="incident-empty", hidden=True),
    ]


def _panel(id_: str, title: str, *parts: Any) -> html.Section:
    """Return a panel that the script shows as soon as it has something to say."""
    return html.Section(
        [panel_head(title, *parts), html.Div(id=id_, className="panel-body")],
        className="panel",
        id=f"{id_}-panel",
        hidden=True,
    )
