"""Cost of rollbacks, on the run page: the steps each one discarded and its reason, and the time that all leave."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from dash import html

from stabilityfrontend.controls import totals
from stabilityfrontend.declared import panel
from stabilityfrontend.format import count, duration, moment, plural, sentence
from stabilityfrontend.tables import plain_table
from stabilityfrontend.viewer import Api

__all__ = ["changes", "rollback_costs"]

#: Newest rollbacks that are listed.
MOST = 500
#: Steps shown on either side of the discarded ones, at least; else this share of theirs.
AIR_STEPS, AIR_SHARE = 20, 0.6
_CAUSES = {"command": "ordered", "declared": "by the job", "restart": "restart"}
#: Head of each column, how it is computed, and whether it holds numbers.
_HEADS = (
    ("", "", False),
    ("From → to", "The newest step before it and the step whose state training went back to", True),
    ("Steps lost", "Steps that it discarded; one that an earlier rollback had discarded is not counted again", True),
    (
        "Time lost",
        "Log time from the fork step to the last discarded step, without the time that the job was down",
        True,
    ),
    ("Down", "From the last row of the old segment to the first row of the new one", True),
    ("GPU-hours", "(Time lost + down) × GPUs", True),
    ("Skipped", "Batches that were skipped, as reported by the job", True),
    ("Ordered", "What was asked for beside the step", False),
    ("Done", "What the job says that it changed (what its handler returned)", False),
    ("Who and why", "", False),
    ("Incident", "The incident that it answers", False),
)


@panel(page="/runs/{run}", title="Rollback costs")
def rollback_costs(run: str, api: Api) -> Any:
    """Return the panel."""
    costs = api.get("/runs/{run}/rollback_costs", run=run)
    found = sorted(costs["rollbacks"], key=lambda one: -one["segment"])
    saving = [totals("saving", _saving(costs["saving"]), className="totals")] if costs.get("saving") else []
    if not found:
        text = "No rollback so far. Each one is listed here: what it discarded, what that cost, who asked for it, why."
        return [*saving, html.P(text, className="sub")]
    segments = api.get("/runs/{run}/segments", run=run)["segments"]
    labels = {one["id"]: one["label"] or f"#{one['id']}" for one in segments}
    titles: dict[str, str] = {}
    if any(one["incidents"] for one in found):
        incidents = api.get("/runs/{run}/incidents", run=run)["incidents"]
        titles = {one["incident_id"]: one["title"].partition(" at step ")[0] for one in incidents}
    counted = sum(not one["undone"] for one in found)
    timed = costs["totals"]["wall_s"] > 0
    gpus = costs["totals"]["gpus"] > 0
    rows = [_row(one, run, labels, titles, timed=timed, gpus=gpus) for one in found[:MOST]]
    numbers = [totals("total", _totals(costs["totals"], counted), className="totals")] if counted else []
    return [*numbers, *saving, plain_table(_HEADS, rows, "rollback-costs", "rollback-costs")]


def changes(given: Mapping[str, Any] | None, *, ordered: bool = False) -> str:
    """Return changes in words: ``LR × 0.5, seed 7, 40 batches skipped``; only ordered ones: ``skip 40 batches``."""
    words = []
    for name, value in (given or {}).items():
        if value is None:
            continue
        if name == "lr_scale":
            words.append(f"LR × {value:g}" if isinstance(value, float) else f"LR × {value}")
        elif name == "skip_batches" and isinstance(value, int):
            batches = "1 batch" if value == 1 else f"{count(value)} batches"
            words.append(f"skip {batches}" if ordered else f"{batches} skipped")
        elif name == "skip_range" and isinstance(value, list) and len(value) == 2:
            words.append(f"{'skip' if ordered else 'skipped'} the batches of steps {count(value[0])}–{count(value[1])}")
        else:
            words.append(f"{name} {json.dumps(value) if isinstance(value, dict | list) else value}")
    return ", ".join(words)


def _row(
    one: Mapping[str, Any], run: str, labels: Mapping[int, str], titles: Mapping[str, str], *, timed: bool, gpus: bool
) -> html.Tr:
    fork, last = one["fork_step"], one["last_dead_step"]
    end = max(fork if last is None else last, fork + 10)
    air = max(AIR_STEPS, AIR_SHARE * (end - fork))
    zoom = f"?from={max(0, round(fork - air))}&to={round(end + air)}"
    ordered = changes(one["changes"], ordered=True) if one["cause"] == "command" else ""
    applied = one["applied"]
    done = changes(applied) or "nothing" if applied is not None else "not reported" if ordered else "–"
    why = (f"{one['issuer']}: " if one["issuer"] else "") + (one["reason"] or "")
    notes = " ".join(map(sentence, one["notes"]))
    skipped = one["batches_skipped"]
    unknown = "Ordered; the job did not report whether it skipped any" if skipped is None else None
    links = [
        html.Div(html.A(titles.get(incident, "incident"), href=f"/runs/{run}/incidents/{incident}", className="link"))
        for incident in one["incidents"][:2]
    ]
    return html.Tr(
        [
            html.Td(html.A(labels.get(one["segment"], ""), href=zoom, className="flag", title="Show its steps")),
            html.Td([html.Span(f"{count(last)} → ", className="sub"), html.B(count(fork))], className="num"),
            html.Td(count(one["steps_lost"]), className="num"),
            html.Td(
                [_time(one["wall_lost_s"]) if timed else "–", " *" if notes else ""],
                className="num",
                title=notes or None,
            ),
            html.Td(_time(one["downtime_s"]), className="num"),
            html.Td(_hours(one["gpu_hours_lost"]) if timed and gpus else "–", className="num"),
            html.Td("?" if skipped is None else count(skipped) if skipped else "–", className="num", title=unknown),
            html.Td(ordered or "–", className="words"),
            html.Td(done, className="words"),
            html.Td(
                [
                    html.Span("taken back" if one["undone"] else _CAUSES[one["cause"]], className="fact-chip"),
                    f" {why} ",
                    html.Span(moment((one["created"] if timed else None) or None), className="sub"),
                ],
                className="words wide",
            ),
            html.Td(links or "–"),
        ],
        className="undone" if one["undone"] else "",
        **{"data-rollback": one["segment"]},
    )


def _totals(all_: Mapping[str, Any], rollbacks: int) -> list[tuple[str, str, str, str, str]]:
    # An imported log without times has steps, and nothing that they took.
    timed = all_["wall_s"] > 0
    no_times = "the log has no times"
    gpus = f"on {plural(all_['gpus'], 'GPU')}" if all_["gpus"] else "no GPU is seen"
    if all_["gpus_from"] != "agents":
        gpus = f"one GPU a rank: {count(all_['gpus'])}"
    return [
        (
            "goodput",
            "Goodput",
            _percent(all_["goodput"]),
            f"{duration(all_['effective_s'])} of {duration(all_['wall_s'])}" if timed else no_times,
            "Effective time / wall time. Effective: the time of the steps that the model in memory still has. Wall "
            "time: from the first logged row to the end of the job, or to now while it runs.",
        ),
        (
            "ettr",
            "ETTR",
            _percent(all_["ettr"]),
            f"{_time(all_['startup_s'])} of start-up" if timed else no_times,
            "Effective training time ratio: effective time / (start-up + wall time). Start-up: from the start of the "
            "first process to its first row, so this is never above the goodput. Waiting in a queue before the first "
            "process is not seen.",
        ),
        (
            "steps",
            "Steps lost",
            count(all_["steps_lost"]),
            plural(rollbacks, "rollback"),
            "Training steps that rollbacks discarded, by their numbers. A step counts once, for the rollback that "
            "discarded it.",
        ),
        (
            "wall",
            "Wall time lost",
            _time(all_["wall_lost_s"]) if timed else "–",
            f"and {_time(all_['downtime_s'])} down" if timed else no_times,
            "Time of the steps that were lost, by the log times of the job. Below it the downtime: from the last row "
            "of the old segment to the first row of the new one.",
        ),
        (
            "gpu",
            "GPU-hours lost",
            _hours(all_["gpu_hours_lost"]) if timed and all_["gpus"] else "–",
            gpus if timed else no_times,
            "(Wall time lost + downtime) x GPUs: those that agents report, at most one a rank; one a rank of an "
            "imported run.",
        ),
        (
            "data",
            "Batches skipped",
            count(all_["batches_skipped"]),
            "",
            "Sum of skip_batches of all rollbacks: data that the job skipped on command.",
        ),
    ]


def _saving(saving: Mapping[str, Any]) -> list[tuple[str, str, str, str, str]]:
    known = saving["save_s"] is not None
    whose = "this run" if saving["interruptions_of"] == "run" else "all runs"
    many = saving["interruptions"]
    stops = f"{plural(many, 'interruption')} of {whose}" if many else "none so far"
    if saving["best_s"] is None:
        why = "no interruption so far" if known else "the time of a save is not known"
    else:
        why = f"from {stops}: {_percent(saving['best_cost'])} lost, now {_percent(saving['cost'])}"
    return [
        (
            "share",
            "Time in saves",
            _percent(saving["share"]),
            f"{duration(saving['save_s'])} every {duration(saving['interval_s'])}"
            if known
            else "no save was in a phase",
            "Medians of the newest 64 saves: the time that a save holds up training (in phases with checkpoint, ckpt "
            'or save in their name: run.phase("checkpoint")) / the time between two saves.',
        ),
        (
            "best",
            "Best save interval",
            duration(saving["best_s"]),
            why,
            "sqrt(2 x time of a save x mean time between interruptions) (Young, Daly): saving less often costs more "
            "steps that are trained again after an interruption, on average half an interval. A run with fewer than "
            "3 interruptions is judged by those of all runs, by GPU-hours for as many ranks.",
        ),
        (
            "mtbi",
            "MTBI",
            duration(saving["mtbi_s"]),
            stops,
            "Mean time between interruptions: time in which the job ran / interruptions that count. Of all runs: by "
            "the time of their ranks, for as many ranks as this job has: the page of interruptions goes by runs.",
        ),
    ]


def _percent(share: float | None) -> str:
    return "–" if share is None else f"{100 * share:.{0 if share > 0.9995 or share == 0 else 1}f} %"


def _time(seconds: float | None) -> str:
    return "0" if seconds == 0 else duration(seconds)


def _hours(hours: float | None) -> str:
    """GPU-hours: seconds matter in a small job, hours in a large one."""
    if not hours:
        return "–" if hours is None else "0"
    return "< 0.01" if hours < 0.01 else f"{hours:.2f}" if hours < 10 else count(hours)
