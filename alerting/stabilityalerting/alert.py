"""What alerting receives: one state of one incident. This package owns the shape and reads it tolerantly."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import Any, Literal
from urllib.parse import quote

from .errors import BadAlert

#: Severities, mildest first.
SEVERITIES: tuple[Severity, ...] = ("info", "warning", "critical")
#: Longest text that is passed on, characters.
MAX_TEXT_CHARS = 2_000
#: Longest advice in a line, characters.
MAX_LINE_CHARS = 200

Severity = Literal["info", "warning", "critical"]
Change = Literal["opened", "escalated", "grouped", "handed_over", "acknowledged", "resolved"]

#: What is passed on of a verdict: what a program can act on.
_VERDICT = ("class", "confidence", "culprits", "nodes", "gpus", "since")

__all__ = ["SEVERITIES", "Alert", "Change", "Notice", "Severity", "incident_url", "plan_url"]


@dataclass(frozen=True, slots=True)
class Alert:
    """One state of one incident.

    Args:
        incident_id: identity of the incident, the same in all its states.
        version: grows by one with each change of the incident.
        kind: what it is, e.g. ``spike`` or ``hang``.
        state: ``open``, ``recovered`` or ``resolved``; only the first is not over.
        title: one short line. text: what happened, plain sentences.
        onset_step: first step of it, -1 for before the first one.
        opened, updated: when it opened and changed last, unix seconds.
        dead: it happened on a branch that the run has left.
        advice: what to do, plain sentences. advice_line: the same in a few words.
        dataset: the data set that carries it.
        verdict: who is suspect (class, confidence, culprits, nodes, gpus, since), for programs.
        cause: what tells it from others of its kind: the class of its verdict or fault, the type of an exception.
        label: the kind as people read it.
        about: what is ill: ``model``, ``data``, ``process`` or ``gpu``; ``user`` where the job itself raised it.
        alarm: False for what is only worth knowing.
        train: id of the first of a train of alike incidents, its own where it is that, "" for none.
        nth: its place in that train.
        notify_at: it may heal by itself before, unix seconds: 0 where it is sent at once.
        recurring: it came again often enough to be sent once more, also where it is over.
        status: what it is now, for programs; status_word: as the pages say it. Both "" of an older server.
        caused_by: id of the incident that it follows from, "" for none.
        acknowledged_by: who looks after it, "" for nobody. acknowledged: since when, unix seconds.
        project: of the run, "" where it has none or is not known.
    """

    incident_id: str
    run_id: str
    version: int
    kind: str
    severity: Severity
    state: str
    title: str
    text: str
    onset_step: int | None = None
    metric: str | None = None
    rank: int | None = None
    node: str | None = None
    opened: float = 0.0
    updated: float = 0.0
    dead: bool = False
    advice: str | None = None
    dataset: str | None = None
    advice_line: str | None = None
    verdict: dict[str, Any] | None = None
    cause: str = ""
    label: str = ""
    about: str = "model"
    alarm: bool = True
    train: str = ""
    nth: int = 1
    notify_at: float = 0.0
    recurring: bool = False
    status: str = ""
    status_word: str = ""
    caused_by: str = ""
    acknowledged_by: str = ""
    acknowledged: float = 0.0
    project: str = ""

    @property
    def follows(self) -> bool:
        """True for one that is in the train of another one."""
        return self.train not in ("", self.incident_id)

    @property
    def hands_over(self) -> bool:
        """True for a message to people about another one: nobody else is at that any more."""
        return self.about == "user" and bool(self.caused_by)

    @property
    def headline(self) -> str:
        """The title, and which of several alike it is: "Loss spike at step 900, for the 4th time"."""
        return self.title if self.nth < 2 else f"{self.title}, for the {_ordinal(self.nth)} time{self._where}"

    @property
    def _where(self) -> str:
        known = self.onset_step is not None and self.onset_step >= 0 and f"step {self.onset_step}" not in self.title
        return f", at step {self.onset_step}" if known else ""

    @property
    def line(self) -> str:
        """The incident, its data set and what to do in one line."""
        where = f" (data set {self.dataset})" if self.dataset else ""
        return f"{self.headline}{where}" + (f": {self.advice_line}" if self.advice_line and self.is_open else "")

    @property
    def is_open(self) -> bool:
        """True while the incident lasts."""
        return self.state == "open"

    @property
    def is_cured(self) -> bool:
        """True where all is well again: not of what was left behind, got used to, or ended with its job."""
        return not self.is_open and self.status in ("", "recovered", "resolved")

    @property
    def became(self) -> str:
        """What became of one that is over, with a capital."""
        word = self.status_word or "resolved"
        return f"{word[:1].upper()}{word[1:]}"

    @classmethod
    def from_json(cls, data: bytes | str) -> Alert:
        """Read an incident; unknown fields are passed over.

        Raises:
            BadAlert: it is not JSON, or a needed field is missing or of a wrong type.
        """
        try:
            raw = json.loads(data)
            suggestion = raw.get("suggestion") or {}
            return cls(
                incident_id=_text(raw, "incident_id"),
                run_id=_text(raw, "run_id"),
                version=int(raw["version"]),
                kind=_text(raw, "kind"),
                severity=_severity(raw["severity"]),
                state=_text(raw, "state"),
                title=_text(raw, "title"),
                text=_text(raw, "text"),
                onset_step=raw.get("onset_step"),
                metric=raw.get("metric"),
                rank=raw.get("rank"),
                node=raw.get("node"),
                opened=float(raw.get("opened") or 0.0),
                updated=float(raw.get("updated") or 0.0),
                dead=bool(raw.get("dead")),
                advice=suggestion.get("text"),
                dataset=None if raw.get("dataset") is None else _text(raw, "dataset"),
                advice_line=_advice_line(suggestion),
                verdict=_verdict(raw.get("evidence")),
                cause=_cause(raw.get("evidence")),
                label=str(raw.get("label") or raw["kind"]),
                about=str(raw.get("about") or "model"),
                # Older servers did not say it: there what the job raised itself was one whatever its severity.
                train=str(raw.get("train") or ""),
                nth=int(raw.get("nth") or 1),
                notify_at=float(raw.get("notify_at") or 0.0),
                recurring=bool(raw.get("recurring")),
                status=str(raw.get("status") or ""),
                status_word=str(raw.get("status_word") or ""),
                caused_by=str(raw.get("caused_by") or ""),
                acknowledged_by=str(raw.get("acknowledged_by") or ""),
                acknowledged=float(raw.get("acknowledged") or 0.0),
                project=str(raw.get("project") or ""),
                alarm=bool(raw.get("alarm", raw["severity"] != "info" or raw["kind"] == "alert")),
            )
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise BadAlert(f"incident event can't be read: {type(error).__name__}: {error}") from error


@dataclass(frozen=True, slots=True)
class Notice:
    """One message to one receiver: that an incident opened, got worse, has more like it in other runs (``grouped``), is
    left to people by what was at it (``handed_over``), was acknowledged, or is over.

    Args:
        alert: the incident as it is.
        change: what happened to it since the receiver was last notified.
        url: page of the incident.
        plan: address of the run's plan, which says what a launcher should do.
        why: why this receiver gets it now, where that is not plain: nobody acknowledged it before. Of ``grouped``: what
            there is more. Of ``handed_over``: what that says.
        serial: tells apart messages of one change of one version.
        stream: where the incident was read, for keys that lie beside it.
        version: of the message that a kill cut off, in whose name this one is sent again; 0: the incident's own.
        by: of ``handed_over`` the incident that says so; ``alert`` is the one that it is about.
    """

    alert: Alert
    change: Change
    url: str
    plan: str = ""
    why: str = ""
    stream: str = ""
    serial: int = 0
    by: Alert | None = None
    version: int = 0

    @property
    def source(self) -> Alert:
        """The incident whose change this is."""
        return self.by or self.alert

    @property
    def severity(self) -> Severity:
        """How grave the news is."""
        return self.source.severity

    @property
    def line(self) -> str:
        """The incident, its data set and what to do in one line, with why it comes now where that is not plain."""
        return f"{self.why} {self.alert.line}" if self.why else self.alert.line

    @property
    def idempotency_key(self) -> str:
        """The same for every attempt to send this change, another one for every other change."""
        version = self.version or self.source.version
        return idempotency_key(self.source.incident_id, version, self.change, self.serial)

    def as_dict(self) -> dict[str, Any]:
        """Return the notice as JSON-able builtins."""
        return {
            "type": f"incident.{self.change}",
            "id": self.idempotency_key,
            "incident": asdict(self.alert),
            "url": self.url,
            "plan": self.plan,
            "why": self.why,
        }


def idempotency_key(incident_id: str, version: int, change: Change, serial: int) -> str:
    """Return what names one message about an incident; ``serial``: which of several summaries, else 0."""
    return f"{incident_id}-{version}-{change}" + (f"-{serial}" if serial else "")


def _ordinal(number: int) -> str:
    endings = {1: "st", 2: "nd", 3: "rd"}
    return f"{number}{'th' if 10 <= number % 100 <= 20 else endings.get(number % 10, 'th')}"


def incident_url(base_url: str, run_id: str, incident_id: str) -> str:
    """Return the address of an incident's page."""
    return f"{base_url.rstrip('/')}/runs/{quote(run_id, safe='')}/incidents/{quote(incident_id, safe='')}"


def plan_url(base_url: str, run_id: str) -> str:
    """Return the address of a run's plan."""
    return f"{base_url.rstrip('/')}/api/v1/runs/{quote(run_id, safe='')}/plan"


def _verdict(evidence: object) -> dict[str, Any] | None:
    found = evidence.get("verdict") if isinstance(evidence, dict) else None
    return {name: found.get(name) for name in _VERDICT} if isinstance(found, dict) else None


def _cause(evidence: object) -> str:
    """Return what tells an incident from others of its kind, "" for nothing."""
    if not isinstance(evidence, dict):
        return ""
    verdict, raised = evidence.get("verdict"), evidence.get("exception")
    found = [evidence.get("class"), verdict.get("class") if isinstance(verdict, dict) else None]
    found.append(raised.get("type") if isinstance(raised, dict) else None)
    return " ".join(one for one in found if isinstance(one, str))[:MAX_LINE_CHARS]


def _text(raw: dict[str, Any], name: str) -> str:
    value = raw[name]
    if not isinstance(value, str):
        raise TypeError(f"{name} is {type(value).__name__}, expected str")
    return value[:MAX_TEXT_CHARS]


def _advice_line(suggestion: dict[str, Any]) -> str | None:
    """Return a suggestion in a few words: of waiting and going back from its fields, else its first sentence.

    Where something is to be corrected first, that sentence is about it.
    """
    action, to_step, wait_steps = (suggestion.get(name) for name in ("action", "to_step", "wait_steps"))
    parts: list[str] = []
    if action == "wait" and isinstance(wait_steps, int):
        parts.append(f"wait {wait_steps} steps")
    again = action == "restart" and not suggestion.get("fix_first")
    if isinstance(to_step, int) and (parts or again or action == "roll_back"):
        does = "start again from the checkpoint of step" if again else "roll back to step"
        parts.append(f"{'then ' if parts else ''}{does} {to_step}")
        skip = suggestion.get("skip_range")
        if isinstance(skip, list) and len(skip) == 2:
            parts.append(f"leave out the batches of steps {skip[0]} to {skip[1]}")
        elif isinstance(suggestion.get("skip_batches"), int):
            parts.append(f"skip {suggestion['skip_batches']} batches")
        if isinstance(suggestion.get("lr_scale"), int | float):
            parts.append(f"its schedule's learning rate x {suggestion['lr_scale']:g}")
    text = suggestion.get("text")
    if not parts and isinstance(text, str):
        parts.append(text.split(". ")[0].removesuffix("."))
    return ", ".join(parts)[:MAX_LINE_CHARS] or None


def _severity(value: object) -> Severity:
    if value not in SEVERITIES:
        raise ValueError(f"severity is {value!r}, expected one of {SEVERITIES}")
    return value
