"""Parts that several pages use: navigation, the bar at the top, choices, headline numbers, heads of panels, places."""

from __future__ import annotations

from typing import Any

from dash import html

__all__ = [
    "choice",
    "fact_list",
    "frame",
    "links",
    "more_panels",
    "panel_head",
    "rail_link",
    "segmented",
    "totals",
]


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


def links(id_: str, label: str, options: list[tuple[str, str, bool]]) -> html.Nav:
    """Return a row of links of which one is on: of a page that the server draws, whose address is what is chosen.

    Args:
        id_: the element's id.
        label: what the row chooses, for those who can't see it.
        options: text, address and whether it is on, of each.
    """
    return html.Nav(
        [
            html.A(text, href=href, className="on" if on else "", **({"aria-current": "true"} if on else {}))
            for text, href, on in options
        ],
        id=id_,
        className="segmented",
        **{"aria-label": label},
    )


def choice(
    id_: str,
    label: str,
    name: str,
    options: list[tuple[str, str]],
    chosen: str,
    *,
    put: str = "",
    disabled: bool = False,
) -> html.Div:
    """Return a list to choose from: what is chosen goes into the page's address, or to the server.

    Args:
        id_: the element's id.
        label: words beside it.
        name: parameter of the address, or field of what is sent.
        options: value and text of each; "" takes the parameter away, and is sent as null.
        chosen: value that is on.
        put: path below ``/api/v1`` that a choice is sent to with PUT; the page is drawn again then.
        disabled: nothing can be chosen.
    """
    parts = [html.Option(text, value=value, selected=value == chosen) for value, text in options]
    data = {"data-name": name, "data-chosen": chosen} | ({"data-put": put} if put else {})
    select = html.Select(parts, id=id_, className="choice-list", disabled=disabled, **data)
    place = "tool command" if put else "tool"
    return html.Div([html.Label(label, htmlFor=id_, className="tool-label"), select], className=place)


def totals(prefix: str, numbers: list[tuple[str, str, str, str, str]], **attributes: Any) -> html.Section:
    """Return headline numbers.

    Args:
        prefix: of the elements' ids.
        numbers: id, words above, the number, a note below, and exactly how it is computed (under the pointer).
        attributes: of the section.
    """
    return html.Section(
        [
            html.Div(
                [
                    html.Div(label, className="kpi-label"),
                    html.Div(html.Span(shown, className="kpi-value"), className="kpi-line"),
                    html.Div(note, className="kpi-note"),
                ],
                id=f"{prefix}-{id_}",
                className="total",
                title=how,
                tabIndex="0",
            )
            for id_, label, shown, note, how in numbers
        ],
        **attributes,
    )


def fact_list(facts: list[tuple[str, Any]]) -> html.Dl:
    """Return names and what is known of each; nothing of those that are empty."""
    return html.Dl([html.Div([html.Dt(name), html.Dd(what)]) for name, what in facts if what], className="fact-list")


def panel_head(title: str, *parts: Any, title_id: str = "") -> html.Div:
    """Return the head of a panel: its title, then whatever else is in that line."""
    heading = html.H2(title, id=title_id) if title_id else html.H2(title)
    return html.Div([heading, *parts], className="panel-head")


def more_panels() -> html.Div:
    """Return the place of panels that are declared for a page."""
    return html.Div(id="more-panels")


def rail() -> html.Div:
    """Return the navigation that every page has: links to the pages that declare an order, the search, the keys."""
    return html.Div(
        [
            html.A(html.Span(className="mark"), href="/", id="home", **{"aria-label": "Stabilityboard: all runs"}),
            html.Nav(id="pages", **{"aria-label": "Pages"}),
            html.Span(className="grow"),
            html.Button(
                [html.Span(className="rail-icon icon-search"), html.Span("Search")],
                id="palette-open",
                className="rail-item",
                type="button",
                title="Search everything (Ctrl-K)",
                **{"aria-keyshortcuts": "Control+K Meta+K"},
            ),
            html.Button(
                [html.Span(className="rail-icon icon-keys"), html.Span("Keys")],
                id="keys-open",
                className="rail-item",
                type="button",
                title="All keys (?)",
            ),
        ],
        id="rail",
    )


def rail_link(name: str, href: str, *, here: bool) -> html.A:
    """Return a link of the navigation. The script writes how many incidents are open into its count."""
    word = name.lower().replace(" ", "-")
    return html.A(
        [
            html.Span(className=f"rail-icon page-{word}"),
            html.Span(name),
            html.Span(className="rail-count", **{"data-count": word}),
        ],
        href=href,
        className="rail-item",
        **({"aria-current": "page"} if here else {}),
    )


def frame(middle: list[Any], *parts: Any) -> html.Div:
    """Return a page: the navigation, the bar at the top, the place of what is wrong with the connection, and the rest.

    Args:
        middle: what the page puts into the bar, before the theme switch.
        parts: the rest.
    """
    bar = html.Header(
        [
            *middle,
            html.Span(id="who"),
            # With a target it is a new page and no change of this one's address.
            html.A("Wall", href="?wall=1", target="_self", id="wall-open", title="For a large screen on the wall"),
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
    return html.Div([rail(), bar, html.Div(id="banner", role="alert", hidden=True), *parts], className="page")
