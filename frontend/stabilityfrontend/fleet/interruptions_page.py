"""Interruptions: the runs down now, the causes over all runs, the cost, and repeated GPUs.

Period, project and the interruption that is open stand in the address (``days``, ``project``, ``open``), so that a link
shows the same.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dash import html

from stabilityfrontend.controls import choice, links, panel_head, totals
from stabilityfrontend.declared import page
from stabilityfrontend.fleet.down_and_lost import down_now, lost_to_rollbacks
from stabilityfrontend.fleet.interruption_list import interruptions
from stabilityfrontend.format import count, duration, number, percent, plural
from stabilityfrontend.tables import Cell, Column, table
from stabilityfrontend.viewer import Api

__all__ = ["interruptions_page"]

#: ``days`` of the address, and the button's label; without it they are 30.
PERIODS = {"7": "7 days", "30": "30 days", "90": "90 days", "all": "All"}
_VISIBLE = {"direct": "directly", "indirect": "indirectly", "no": "not visible"}


@page("/interruptions", name="Interruptions", order=10)
def interruptions_page(api: Api, query: Mapping[str, str]) -> list[Any]:
    """Return the page."""
    days = query["days"] if query.get("days") in PERIODS else "30"
    project = query.get("project", "")
    data = api.get("/interruptions", days=None if days == "all" else days, project=project or None)
    lost = api.get("/rollback_costs", days=None if days == "all" else days, project=project or None)
    gpus = api.get("/gpus")["gpus"]
    stops = data["interruptions"]
    shown = [down_now(data["down"], data["now"])] if data["down"] or stops else []
    shown.append(_tools(days, project, data["projects"]))
    if data["runs"] or stops:
        shown.append(totals("fleet-total", _totals(data), id="fleet-totals", className="panel totals four"))
    if data["runs"] or stops or lost["rollbacks"]:
        shown.append(lost_to_rollbacks(lost))
    if stops:
        shown += [
            html.Section([panel_head("What interrupted training"), *_table(data)], className="panel"),
            interruptions(stops, data["table"], query),
        ]
    else:
        shown.append(_empty(data["runs"], days, project))
    return [*shown, _gpus(gpus)] if gpus else shown


def _tools(days: str, project: str, projects: list[str]) -> html.Div:
    known = sorted({*projects, project} - {""})
    parts: list[Any] = [
        links("fleet-days", "Period", [(text, f"?days={name}&open=", name == days) for name, text in PERIODS.items()])
    ]
    if known:
        parts.append(
            choice("fleet-projects", "Project", "project", [("", "all"), *((one, one) for one in known)], project)
        )
    return html.Div(parts, className="fleet-tools")


def _totals(data: Mapping[str, Any]) -> list[tuple[str, str, str, str, str]]:
    lost, running, hours = data["time_lost_s"], data["running_s"], data["gpu_hours"]
    rate = data["per_1000_gpu_hours"]
    aside = f"; {count(data['not_counted'])} by hand or by themselves not counted" if data["not_counted"] else ""
    share = f"{percent(lost / (running + lost))} of the time" if lost and running else ""
    return [
        (
            "count",
            "Interruptions",
            count(data["count"]),
            f"in {plural(data['runs'], 'run')}{aside}",
            "Stops of a job that nobody asked for. One a stop, however many ranks it took along.",
        ),
        (
            "lost",
            "Time lost",
            duration(lost) if lost else "0",
            share,
            "Of all interruptions: from the last progress until training went on, and the steps that were trained "
            "twice.",
        ),
        (
            "mtbi",
            "Mean time between",
            duration(data["mtbi_s"]),
            f"{duration(running)} trained" if running else "",
            "Hours that all runs of the period trained, divided by the interruptions. Imported runs do not count: what "
            "interrupts one is not seen.",
        ),
        (
            "rate",
            "Per 1,000 GPU-hours",
            "–" if rate is None else number(rate),
            f"{number(hours)} GPU-hours{': too few to say' if rate is None else ''}" if hours else "no GPU was seen",
            "Interruptions per 1,000 GPU-hours, of the runs of the period whose agents saw GPUs, at most one a rank. "
            "Makes fleets of different sizes alike.",
        ),
    ]


def _table(data: Mapping[str, Any]) -> list[Any]:
    rows, published = data["table"], data["published"]
    most = max([one["share"] or 0 for one in rows] + [one["published_share"] or 0 for one in rows], default=0)
    heads = [
        ("Category", ""),
        ("Count", "num"),
        ("Share", "num"),
        ("Time lost", "num"),
        ("", "bars"),
        ("Llama 3", "num"),
    ]
    bars = html.Span("Shares as bars", className="unseen")
    head = [html.Th(words or bars, scope="col", className=look) for words, look in [*heads, ("Visibility", "")]]
    said = f"{count(published['count'])} unexpected interruptions in {count(published['days'])} days on " + (
        f"{count(published['gpus'])} GPUs ({published['source']}). {published['note']}"
    )
    seen = [one for one in rows if one["count"]]
    never = [one for one in rows if not one["count"]]
    return [
        html.Div(
            html.Table(
                [html.Thead(html.Tr(head)), html.Tbody([_category(one, most) for one in seen])],
                className="table dense fleet-table",
            ),
            id="fleet-table",
            className="wide-table",
        ),
        html.Details(
            [
                html.Summary(f"{count(len(never))} {'category' if len(never) == 1 else 'categories'} without a case"),
                html.Div(
                    html.Table(
                        [html.Thead(html.Tr(head)), html.Tbody([_category(one, most) for one in never])],
                        className="table dense fleet-table",
                    ),
                    className="wide-table",
                ),
            ],
            id="fleet-never",
        )
        if never
        else None,
        html.P(
            [
                html.Span([html.I(className="line"), "this fleet"], className="key"),
                " ",
                html.Span([html.I(className="line quiet"), "Llama 3"], className="key"),
                f" · {said}",
            ],
            className="panel-note",
        ),
    ]


def _category(one: Mapping[str, Any], most: float) -> html.Tr:
    theirs = one["published_share"]
    bars = [("ours", one["share"] or 0), ("theirs", theirs or 0)]
    return html.Tr(
        [
            html.Th(one["label"], scope="row"),
            html.Td(count(one["count"]), className="num strong"),
            html.Td(percent(one["share"]) if one["count"] else "–", className="num"),
            html.Td(duration(one["time_lost_s"] or None) if one["count"] else "–", className="num"),
            html.Td(
                [html.I(className=look, style={"width": f"{100 * share / (most or 1):.1f}%"}) for look, share in bars],
                className="bars",
                **{"aria-hidden": "true"},
            ),
            html.Td(
                "not in it" if theirs is None else percent(theirs),
                className="num sub",
                title=None if theirs is None else f"{count(one['published'])} of Llama 3's interruptions",
            ),
            html.Td(
                [
                    html.Span(_VISIBLE[one["visible"]], className=f"seen {one['visible']}"),
                    html.Span(f": {one['sees']}", className="sub") if one["sees"] else None,
                ],
                className="sees",
            ),
        ],
        className="" if one["count"] else "never",
        **{"data-category": one["category"]},
    )


def _gpus(gpus: list[dict[str, Any]]) -> html.Section:
    rows = []
    for gpu in sorted(gpus, key=lambda one: (-one["runs"], -one["count"], -one["last"])):
        newest = gpu["faults"][0] if gpu["faults"] else None
        again = gpu["runs"] > 1
        where = [gpu["node"], "" if gpu["index"] is None else f"GPU {gpu['index']}"]
        link = f"/runs/{newest['run_id']}/incidents/{newest['incident_id']}" if newest and newest["incident_id"] else ""
        rows.append(
            {
                "id": gpu["uuid"],
                "gpu": Cell(
                    gpu["uuid"],
                    sub=" · ".join(filter(None, [gpu["name"], "repeats" if again else ""])),
                    tone="critical" if again or gpu["recent"] > 1 else "",
                ),
                "where": " · ".join(filter(None, where)),
                "count": gpu["count"],
                "runs": gpu["runs"],
                "recent": gpu["recent"],
                "last": Cell(gpu["last"], moment=True),
                "class": newest["class"] if newest else "",
                "newest": Cell(newest["title"] or newest["what"], href=link) if newest else "",
            }
        )
    columns = [
        Column("gpu", "GPU", grow=2.6, width=190),
        Column("where", "Where", width=110),
        Column("count", "Faults", number=True, grow=0.5, width=80),
        Column("runs", "Runs", number=True, grow=0.5, width=80),
        Column("recent", "14 days", number=True, grow=0.5, width=100),
        Column("last", "Last", width=140),
        Column("class", "Class", width=90),
        Column("newest", "Newest fault", grow=2, width=180),
    ]
    note = html.Span("over all runs and projects, those that do it again first", className="sub")
    return html.Section(
        [panel_head("GPUs with faults", note), table(rows, columns, key="id", id="fleet-gpus")], className="panel"
    )


def _empty(runs: int, days: str, project: str) -> html.Div:
    period = "as long as this server remembers" if days == "all" else f"in the last {days} days"
    what = f"{plural(runs, 'run')} trained {period}, and none of them stopped without being asked to"
    said = what if runs else f"There is no run {period}"
    return html.Div(
        [
            html.H2("Nothing has interrupted training" if runs else "No run trained"),
            html.P(f"{said} in project “{project}”." if project else f"{said}."),
            html.P(
                "When a job dies, hangs, or loses a node or a GPU, the stop appears here: what it was, in the words of "
                "the table that the Llama 3 report published, what speaks for that, how sure it is, and what it cost. "
                "Nothing has to be set up for it."
            ),
        ],
        className="empty panel",
        id="fleet-empty",
    )
