"""Part of the page of interruptions: runs that are down now, and the cost of rollbacks, with a row for each run."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dash import html

from stabilityfrontend.controls import panel_head, totals
from stabilityfrontend.format import count, duration, moment, number, plural
from stabilityfrontend.tables import Cell, Column, table

__all__ = ["down_now", "lost_to_rollbacks"]

#: An interruption that has lasted so long is of an abandoned run, seconds: as the server counts it.
GIVEN_UP_S = 86_400.0


def down_now(down: list[dict[str, Any]], now: float) -> html.Section:
    """Return the panel of the runs that are down.

    Args:
        down: interruptions that have not ended, as the API gives them.
        now: unix seconds by the server's clock.
    """
    recent = [one for one in down if now - one["since"] < GIVEN_UP_S]
    left = len(down) - len(recent)
    aside = f"{plural(left, 'run')} that stopped over a day ago and never came back not shown" if left else ""
    head = panel_head(
        "Down now",
        html.Span(count(len(recent)), className=f"chip{' critical' if recent else ''}"),
        html.Span(aside, className="sub"),
    )
    if not recent:
        said = html.P("No run is down.", className="nothing")
        return html.Section([head, said], className="panel", id="down-now", **{"aria-label": "Down now"})
    rows = html.Ul([_down(one) for one in recent], className="down-list")
    return html.Section([head, rows], className="panel", id="down-now", **{"aria-label": "Down now"})


def _down(one: Mapping[str, Any]) -> html.Li:
    link = (
        html.A("Incident", href=f"/runs/{one['run_id']}/incidents/{one['incident_id']}", className="button")
        if one["incident_id"]
        else None
    )
    counting = {"data-lost": one["time_lost_s"], "data-until": one["since"] + GIVEN_UP_S}
    return html.Li(
        [
            html.Div(
                [
                    html.A(one["run_name"], href=f"/runs/{one['run_id']}", className="run-link"),
                    html.Div(one["project"] or "no project", className="sub"),
                ],
                className="down-run",
            ),
            html.Div(
                [html.Strong(one["label"]), html.Div(["since ", moment(one["since"])], className="sub")],
                className="down-what",
            ),
            html.Div(
                [
                    html.Span(duration(one["time_lost_s"]), className="down-lost", **counting),
                    html.Div("lost so far", className="sub"),
                ],
                className="num",
            ),
            link,
        ],
        **{"data-down": one["run_id"]},
    )


def lost_to_rollbacks(data: Mapping[str, Any]) -> html.Section:
    """Return the card of the rollbacks' cost, and its table by run."""
    month = data["month"]
    unknown = f"{plural(data['unknown'], 'run')} still to be added up" if data["unknown"] else ""
    head = panel_head("Lost to rollbacks", html.Span(unknown, className="sub"))
    period = "in all" if data["days"] is None else f"in the last {data['days']:g} days"
    if not data["rollbacks"] and not month["rollbacks"]:
        said = html.P(f"No run went back {period}.", className="nothing")
        return html.Section([head, said], className="panel", id="lost")
    numbers = [
        (
            "month",
            "GPU-hours this month",
            _hours(month),
            f"{plural(month['rollbacks'], 'rollback')}, since the 1st (UTC)",
            "Time of discarded steps and of the downtime, times the GPUs of the job, of all rollbacks of this month.",
        ),
        (
            "hours",
            f"GPU-hours {period}",
            _hours(data),
            f"{plural(data['rollbacks'], 'rollback')} of {plural(data['run_count'], 'run')}",
            "The same for the days that are chosen above.",
        ),
        (
            "steps",
            "Steps discarded",
            count(data["steps_lost"]),
            f"trained for {duration(data['wall_lost_s'])}" if data["wall_lost_s"] else "",
            "Steps that a rollback or a restart from an earlier step threw away.",
        ),
        (
            "down",
            "Down for it",
            duration(data["downtime_s"]) if data["downtime_s"] else "0",
            "from the last row to the first one after",
            "Time in which the jobs went back and trained nothing.",
        ),
    ]
    parts = [head, totals("lost", numbers, className="totals four bare")]
    if data["runs"]:
        parts.append(_by_run(data["runs"]))
    return html.Section(parts, className="panel", id="lost")


def _by_run(runs: list[dict[str, Any]]) -> Any:
    columns = [
        Column("run", "Run", grow=1.6, width=150),
        Column("hours", "GPU-hours", number=True, width=110),
        Column("rollbacks", "Rollbacks", number=True, width=100),
        Column("steps", "Steps discarded", number=True, width=130),
        Column("wall", "Their time", number=True, width=110),
        Column("down", "Down", number=True, width=110),
        Column("last", "Last", width=150),
    ]
    rows = [
        {
            "id": one["run_id"],
            "run": Cell(one["run_name"], sub="the run is deleted")
            if one["deleted"]
            else Cell(one["run_name"], sub=one["project"] or "no project", href=f"/runs/{one['run_id']}"),
            "hours": Cell(one["gpu_hours_lost"], _hours(one)),
            "rollbacks": one["rollbacks"],
            "steps": Cell(one["steps_lost"], count(one["steps_lost"])),
            "wall": Cell(one["wall_lost_s"], duration(one["wall_lost_s"])),
            "down": Cell(one["downtime_s"], duration(one["downtime_s"])),
            "last": Cell(one["last"], moment=True),
        }
        for one in runs
    ]
    return table(rows, columns, key="id", id="lost-runs")


def _hours(lost: Mapping[str, Any]) -> str:
    """Return the GPU-hours of rollbacks; a dash where they cost time on machines without a GPU."""
    hours: float = lost["gpu_hours_lost"]
    none = "–" if lost["wall_lost_s"] or lost["downtime_s"] else "0"
    return none if not hours else "< 0.01" if hours < 0.01 else number(hours) if hours >= 100 else f"{hours:.2f}"
