"""Parts that several pages use: the bar at the top, rows of exclusive buttons, heads of panels, places for more."""

from __future__ import annotations

from typing import Any

from dash import html

__all__ = ["more_panels", "navigation", "panel_head", "segmented", "topbar"]


def segmented(id_: str, label: str, options: list[tuple[str, str]]) -> html.Div:
    """Return a row of buttons of which one is on; the first is on at the start.

    Args:
        id_: the element's id.
        label: what the row chooses, for those who can't see it.
        options: (value, text) of each button.
    """
    return html.Div(
        [
            html.Button(
                text,
                type="button",
                className="on" if index == 0 else "",
                **{"data-value": value, "aria-pressed": "true" if index == 0 else "false"},
            )
            for index, (value, text) in enumerate(options)
        ],
        id=id_,
        className="segmented",
        role="group",
        **{"aria-label": label},
    )


def panel_head(title: str, *parts: Any, title_id: str = "") -> html.Div:
    """Return the head of a panel: its title, then whatever else is in that line."""
    heading = html.H2(title, id=title_id) if title_id else html.H2(title)
    return html.Div([heading, *parts], className="panel-head")


def navigation() -> html.Nav:
    """Return the place of links to the pages that declare an order."""
    return html.Nav(id="pages", **{"aria-label": "Pages"})


def more_panels() -> html.Div:
    """Return the place of panels that are declared for a page."""
    return html.Div(id="more-panels")


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
