"""Result of each resume, on the run page: a row each, with verdict, seven parts and the numbers behind them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dash import html

from stabilityfrontend.declared import panel
from stabilityfrontend.format import count, moment, number, plural, sentence
from stabilityfrontend.rollback_cost_panel import changes
from stabilityfrontend.tables import plain_table

__all__ = ["resumes"]

#: Steps shown on either side of the steps that both branches trained, at least; else this share of them.
AIR_STEPS, AIR_SHARE = 20, 0.4
#: Verdict -> its words on the page.
_VERDICTS = {
    "identical": "Identical",
    "same_data": "Same data",
    "other_order": "Other order",
    "other_data": "Other data",
    "repeated": "Repeated data",
    "skipped": "Skipped ahead",
    "not_comparable": "Not comparable",
}
#: Grade -> colour of the verdict.
_PILLS = {"good": "good", "differs": "warning", "wrong": "critical", "unknown": "quiet"}
#: State of a part -> its sign, and its words for a screen reader.
_SIGNS = {"equal": ("=", "equal"), "different": ("≠", "different"), "not_seen": ("·", "not seen")}
_PARTS = {
    "weights": "Weights",
    "optimizer": "Optimizer",
    "learning_rate": "Rate",
    "rng": "RNG",
    "loader": "Loader",
    "mixture": "Mixture",
    "environment": "Env.",
}
#: Where the loader resumed by its own position -> words under its sign.
_WENT = {
    "goes_on": "goes on",
    "began_again": "began again",
    "skipped": "skipped",
    "repeats": "behind",
    "elsewhere": "elsewhere",
}
_CAUSES = {"command": "rollback", "declared": "by the job", "restart": "restart", "resume": "went on"}
#: State of batches that were to be skipped -> its words, and their colour.
_SKIPS = {"equal": ("skipped as ordered", ""), "different": ("not skipped", "bad"), "not_seen": ("skip not seen", "")}
#: Head of each column, how it is computed, and whether it holds numbers.
_HEADS = (
    ("", "", False),
    ("Step", "The step whose state the job went on from", True),
    ("Verdict", "The new branch against the one that was left, at the steps that both have trained", False),
    *(
        (name, "= as it was, ≠ different, · not seen; the reason is under the pointer", False)
        for name in _PARTS.values()
    ),
    ("Common", "Steps at which both branches logged the loss, and how many of the first are bit-equal", True),
    ("r", "Correlation of the two losses' residuals, and its distance from chance in sigmas of this run", True),
    ("Δ loss", "Median distance of the two losses, and its share of the noise from batch to batch", True),
)


@panel(page="/runs/{run}", title="Resumes")
def resumes(run: str, api: Any) -> Any:
    """Return the panel."""
    found = api.get("/runs/{run}/resumes", run=run)
    if not found["resumes"]:
        return html.P(
            "No resume so far. After each rollback or restart both branches are compared here: whether weights, "
            "optimizer, rate, RNG, loader and mixture came back as they were, and what the job computes with.",
            className="sub",
        )
    segments = api.get("/runs/{run}/segments", run=run)["segments"]
    labels = {one["id"]: one["label"] for one in segments}
    rows = [row for one in found["resumes"] for row in _rows(one, labels)]
    older = f" {plural(found['left_out'], 'older resume')} no longer kept." if found["left_out"] else ""
    note = html.P(
        [html.B("Determinism: "), sentence(found["determinism"]["text"]), older],
        className="panel-note",
        **{"data-determinism": found["determinism"]["known"]},
    )
    return [note, plain_table(_HEADS, rows, "resumes", "resumes")]


def _rows(one: Mapping[str, Any], labels: Mapping[int, str]) -> list[html.Tr]:
    """Return the row of numbers and, below it, the findings in words."""
    fork = one["fork_step"]
    last = max(one["last_step"] or fork, fork + 10)
    air = max(AIR_STEPS, AIR_SHARE * (last - fork))
    zoom = f"?from={max(0, round(fork - air))}&to={round(last + air)}"
    label = labels.get(one["segment"]) if one["cause"] != "resume" else ""
    pill = html.Span(_VERDICTS[one["verdict"]], className=f"pill {_PILLS[one['grade']]}")
    skip = _SKIPS[one["skip"]["known"]] if one["skip"] else ("", "")
    below = [html.Div(words, className=f"sub {look}") for words, look in (skip,) if words]
    below += [_sub("other numerics")] if one["verdict"] == "same_data" else []
    below += [] if one["settled"] else [_sub("still compared")]
    parts = {part["part"]: part for part in one["parts"]}
    data = {"data-resume": one["segment"], "data-verdict": one["verdict"], "data-grade": one["grade"]}
    numbers = html.Tr(
        [
            html.Td(html.A(label or "show", href=zoom, className="flag", title="Show its steps in the chart")),
            html.Td([html.B(count(fork)), _sub(_CAUSES.get(one["cause"], ""))], className="num"),
            html.Td([pill, *below]),
            *(_part(parts[name], _below(name, one)) for name in _PARTS),
            html.Td([count(one["points"]), _sub(f"{count(one['equal_points'])} equal")], className="num"),
            html.Td(_correlation(one), className="num"),
            html.Td(_difference(one), className="num"),
        ],
        **data,
    )
    words = html.Td(
        html.Div([_text(one), " ", html.Span(moment(one["created"]) if one["created"] else "", className="sub")]),
        colSpan=len(_HEADS) - 1,
    )
    return [numbers, html.Tr([html.Td(), words], className="in-words")]


def _part(part: Mapping[str, Any], below: str) -> html.Td:
    sign, words = _SIGNS[part["known"]]
    ordered = part["known"] == "different" and part["ordered"]
    look = f"came-back {part['known']}" + (" ordered" if ordered else "")
    reason = f"{words}{', as ordered' if ordered else ''}: {part['why']}"
    shown = html.Span([sign, html.Span(f" {words}", className="unseen")], className=look)
    return html.Td([shown, _sub(below)] if below else shown, title=reason, className="mid")


def _below(name: str, one: Mapping[str, Any]) -> str:
    """Return the words under the sign of a part: the loader's new place, the changed share of the environment."""
    position, changes = one["position"], one["environment"] or ()
    if name == "loader" and position is not None and position["went"] in _WENT:
        by = position["by"]
        far = f" {count(abs(by))}" if position["went"] in ("skipped", "repeats") and by else ""
        return _WENT[position["went"]] + far
    if name == "environment" and changes:
        return f"{count(len(changes))} changed"
    return ""


def _sub(words: str) -> html.Div:
    return html.Div(words, className="sub")


def _signed(words: str) -> str:
    """Return a number with the minus that the pages have elsewhere."""
    return words.replace("-", "−")


def _correlation(one: Mapping[str, Any]) -> Any:
    shift = one["shift"]
    if one["ids"]:
        return [f"{count(one['same_ids'])} of {count(one['ids'])}", _sub("ids in place")]
    if one["verdict"] in ("repeated", "skipped") and shift is not None and shift["r"] is not None:
        return [_signed(f"{shift['r']:.2f}"), _sub(_signed(f"at {shift['steps']:+,} steps"))]
    return "–" if one["r"] is None else [_signed(f"{one['r']:.2f}"), _sub(_signed(f"{one['r_sigmas']:.1f} σ"))]


def _difference(one: Mapping[str, Any]) -> Any:
    difference, noise = one["difference"], one["noise"]
    if difference is None:
        return "–"
    share = difference / noise if noise else None
    if share is not None:
        share = _sub(f"{100 * share:.3g} % of noise" if share < 10 else f"{count(round(share))} × noise")
    return [number(difference), share]


def _text(one: Mapping[str, Any]) -> str:
    declared = changes(one["declared"], ordered=True)
    world = ""
    if one["world_before"] and one["world_before"] != one["world_after"]:
        world = f" {plural(one['world_before'], 'rank')} before, {count(one['world_after'])} since."
    others = [
        f"{part['part'].replace('_', ' ')} ({part['why']})"
        for part in one["parts"]
        if part["known"] == "different" and not part["ordered"] and part["part"] not in ("loader", "environment")
    ]
    differs = f" Different: {'; '.join(others)}." if others else ""
    return (f"Ordered: {declared}. " if declared else "") + one["text"] + differs + world
