"""Parts of a server-drawn page: choices, headline numbers, heads of panels."""

from __future__ import annotations

from typing import Any

from dash import html

__all__ = ["choice", "fact_list", "links", "panel_head", "totals"]


def links(id_: str, label: str, options: list[tuple[str, str, bool]]) -> html.Nav:
    """Return a row of links of which one is on: of a server-drawn page, whose address is the choice.

    Args:
        id_: the element's id.
        label: purpose of the row, for those who can't see it.
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
    """Return a list to choose from: the choice goes into the page's address, or to the server.

    Args:
        id_: the element's id.
        label: words next to it.
        name: parameter of the address, or field of the request.
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
    """Return names with their facts; empty ones are left out."""
    return html.Dl([html.Div([html.Dt(name), html.Dd(what)]) for name, what in facts if what], className="fact-list")


def panel_head(title: str, *parts: Any) -> html.Div:
    """Return the head of a panel: its title, then the rest of that line."""
    return html.Div([html.H2(title), *parts], className="panel-head")
