"""The incident as receivers get it, and the notice of one change to it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal
from urllib.parse import quote

import msgspec

from .errors import BadAlert

#: Severities, mildest first.
SEVERITIES: tuple[Severity, ...] = ("info", "warning", "critical")
#: Longest title and longest text passed on, characters.
MAX_TEXT_CHARS = 2_000
#: Longest advice in a line, characters.
MAX_LINE_CHARS = 200

Severity = Literal["info", "warning", "critical"]
Change = Literal["opened", "escalated", "grouped", "handed_over", "acknowledged", "resolved"]

#: Fields of a verdict that are passed on: those that a program can act on.
_VERDICT = ("class", "confidence", "culprits", "nodes", "gpus", "since")

__all__ = ["SEVERITIES", "Alert", "Change", "Notice", "Severity", "incident_url", "plan_url"]


class Alert(msgspec.Struct, frozen=True, kw_only=True):
    """One state of one incident.

    Attributes:
        incident_id: identity of the incident, the same in all its states.
        version: grows by one with each change of the incident.
        kind: such as ``spike`` or ``hang``. label: the kind for display.
        state: ``open``, ``recovered`` or ``resolved``.
        status: the same in more detail, for programs. status_word: for display.
        title: one short line. text: a description in plain sentences.
        about: part of the job that is affected: ``model``, ``data``, ``process`` or ``gpu``; ``user`` where the job
            raised the incident.
        alarm: False for information only.
        onset_step: first affected step, -1 for before the first one.
        opened, updated: times of the first and the last change, unix seconds.
        dead: it happened on a branch that the run has left.
        advice: recommended action in plain sentences. advice_line: the same in a few words.
        dataset: the affected data set.
        verdict: suspects (class, confidence, culprits, nodes, gpus, since), for programs.
        cause: distinguishes incidents of one kind: class of the verdict or the fault, type of an exception.
        train: id of the first of a train of similar incidents, its own where it is that, "" for none.
        nth: position in that train, from 1.
        notify_at: time until which it may heal by itself, unix seconds; 0: sent without delay.
        recurring: one more message is due after repeated recoveries, even once resolved.
        caused_by: id of the incident that it follows from, "" for none.
        acknowledged_by: "" for none. acknowledged: time of that, unix seconds.
        project: of the run, "" where it has none.
    """

    incident_id: str
    run_id: str
    version: int
    kind: str
    label: str
    severity: Severity
    state: str
    status: str
    status_word: str
    title: str
    text: str
    about: str
    alarm: bool
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
    train: str = ""
    nth: int = 1
    notify_at: float = 0.0
    recurring: bool = False
    caused_by: str = ""
    acknowledged_by: str = ""
    acknowledged: float = 0.0
    project: str = ""

    @property
    def follows(self) -> bool:
        """True for a later one in a train."""
        return self.train not in ("", self.incident_id)

    @property
    def hands_over(self) -> bool:
        """True for a message of the server that it has stopped acting on another incident."""
        return self.about == "user" and bool(self.caused_by)

    @property
    def headline(self) -> str:
        """The title with the position in the train: "Loss spike at step 900, for the 4th time"."""
        return self.title if self.nth < 2 else f"{self.title}, for the {_ordinal(self.nth)} time{self._where}"

    @property
    def _where(self) -> str:
        new = self.onset_step is not None and self.onset_step >= 0 and f"step {self.onset_step}" not in self.title
        return f", at step {self.onset_step}" if new else ""

    @property
    def line(self) -> str:
        """Headline, data set and advice in one line."""
        where = f" (data set {self.dataset})" if self.dataset else ""
        return f"{self.headline}{where}" + (f": {self.advice_line}" if self.advice_line and self.is_open else "")

    @property
    def is_open(self) -> bool:
        """True while the incident lasts."""
        return self.state == "open"

    @property
    def is_cured(self) -> bool:
        """True after a recovery; False where it was discarded, accepted, or ended with its job."""
        return not self.is_open and self.status in ("recovered", "resolved")

    @property
    def outcome(self) -> str:
        """Status of one that has ended, with a capital."""
        return f"{self.status_word[:1].upper()}{self.status_word[1:]}"

    @classmethod
    def from_json(cls, data: bytes | str) -> Alert:
        """Read a stored incident. Unknown fields are skipped, and null counts as absent.

        Raises:
            BadAlert: no JSON, a missing field, or one of a wrong type.
        """
        try:
            raw = msgspec.json.decode(data, type=dict[str, Any])
            advice = msgspec.convert(raw.get("suggestion") or {}, _Advice)
            evidence = _part(raw, "evidence")
            verdict = _part(evidence, "verdict")
            causes = (evidence.get("class"), verdict.get("class"), _part(evidence, "exception").get("type"))
            given = {name: value for name, value in raw.items() if value is not None}
            given |= {
                "title": raw["title"][:MAX_TEXT_CHARS],
                "text": raw["text"][:MAX_TEXT_CHARS],
                "advice": advice.text,
                "advice_line": advice.line(),
                "verdict": {name: verdict.get(name) for name in _VERDICT} if verdict else None,
                "cause": " ".join(one for one in causes if isinstance(one, str))[:MAX_LINE_CHARS],
            }
            return msgspec.convert(given, cls)
        except (msgspec.MsgspecError, ValueError, KeyError, TypeError) as error:
            raise BadAlert(f"incident event can't be read: {type(error).__name__}: {error}") from error


class _Advice(msgspec.Struct):
    """The fields of a suggestion that make its line."""

    action: str = ""
    text: str | None = None
    to_step: int | None = None
    wait_steps: int | None = None
    fix_first: str = ""
    skip_range: tuple[int, int] | None = None
    skip_batches: int | None = None
    lr_scale: float | None = None

    def line(self) -> str | None:
        """Return the steps to wait for and to go back to, else the first sentence of the text.

        Where something has to be corrected first, that sentence is about it.
        """
        waits = self.action == "wait" and self.wait_steps is not None
        restarts = self.action == "restart" and not self.fix_first
        parts = [f"wait {self.wait_steps} steps"] if waits else []
        if self.to_step is not None and (waits or restarts or self.action == "roll_back"):
            verb = "start again from the checkpoint of step" if restarts else "roll back to step"
            parts.append(f"{'then ' if waits else ''}{verb} {self.to_step}")
            if self.skip_range is not None:
                parts.append(f"leave out the batches of steps {self.skip_range[0]} to {self.skip_range[1]}")
            elif self.skip_batches is not None:
                parts.append(f"skip {self.skip_batches} batches")
            if self.lr_scale is not None:
                parts.append(
                    "half the learning rate" if self.lr_scale == 0.5 else f"the learning rate x {self.lr_scale:g}"
                )
        if not parts and self.text is not None:
            parts.append(self.text.split(". ")[0].removesuffix("."))
        return ", ".join(parts)[:MAX_LINE_CHARS] or None


def _part(raw: dict[str, Any], name: str) -> dict[str, Any]:
    """Return an object in an object, an empty one where a plug-in wrote something else there."""
    found = raw.get(name)
    return found if isinstance(found, dict) else {}


@dataclass(frozen=True, slots=True)
class Notice:
    """One message to one receiver: an incident opened, escalated, was acknowledged or ended, has others like it in
    other runs (``grouped``), or is no longer acted on by the server (``handed_over``).

    Args:
        alert: the incident in its current state.
        change: its change since the last notice to this receiver.
        url: page of the incident.
        plan: address of the run's plan, for a launcher.
        why: reason for a message now, where the change alone does not explain it. Of ``grouped``: the summary. Of
            ``handed_over``: the text of the incident ``by``.
        serial: distinguishes messages of one change of one version.
        stream: stream of the incident, for keys in its hash slot.
        version: of the message interrupted by a crash, in whose name this one is sent again; 0: the incident's own.
        by: of ``handed_over`` the incident that reports it; ``alert`` is its subject.
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
        """The incident that changed."""
        return self.by or self.alert

    @property
    def severity(self) -> Severity:
        """Severity of the news."""
        return self.source.severity

    @property
    def line(self) -> str:
        """Headline, data set and advice in one line, after the reason for the message."""
        return f"{self.why} {self.alert.line}" if self.why else self.alert.line

    @property
    def idempotency_key(self) -> str:
        """The same for every attempt to send this change, another for every other change."""
        version = self.version or self.source.version
        return idempotency_key(self.source.incident_id, version, self.change, self.serial)

    def as_dict(self) -> dict[str, Any]:
        """Return the notice as JSON-able builtins."""
        return {
            "type": f"incident.{self.change}",
            "id": self.idempotency_key,
            "incident": msgspec.to_builtins(self.alert),
            "url": self.url,
            "plan": self.plan,
            "why": self.why,
        }


def idempotency_key(incident_id: str, version: int, change: Change, serial: int) -> str:
    """Return the name of one message about an incident. ``serial``: of a summary, else 0."""
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
