"""Every kind of incidents is in the one table, whoever emits it, and nobody else needs to know its name."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import stabilityalerting
import stabilitybackend
import stabilityfrontend
from stabilitybackend.judging.detectors.registry import DETECTORS
from stabilitybackend.judging.incidents.rollback_target import UsableOf
from stabilitybackend.judging.incidents.suggest import suggest
from stabilitybackend.schema.incidents import as_json
from stabilitybackend.schema.kinds import KINDS, IncidentKind, add, kind_of, kinds_where, served
from support.stored.incident import stored


def _emitted() -> Iterator[tuple[str, str]]:
    """Yield (file or detector, kind) of every finding that is made with a kind's name, and of every detector."""
    yield from ((name, kind) for name, make in DETECTORS.items() for kind in make().kinds)
    for path in Path(stabilitybackend.__file__).parent.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "Finding":
                named = [word.value for word in node.keywords if word.arg == "kind"]
                yield from ((path.name, kind.value) for kind in named if isinstance(kind, ast.Constant))


def test_whatever_makes_a_finding_names_a_kind_of_the_table() -> None:
    emitted = set(_emitted())
    assert len(emitted) >= 15
    assert {one for one in emitted if one[1] not in KINDS} == set()


#: Pages that show what one kind alone has: for how long a job hung and that it obeys nothing, how a process ended, what
#: a GPU read.
SHOWN_APART = {
    "health_lane.js": {"hang"},
    "command_dialog.js": {"hang"},
    "panels.js": {"hang", "process_death", "gpu_fault"},
    "run_page.js": {"gpu_fault"},
}


def test_pages_and_alerts_have_no_kinds_of_their_own() -> None:
    words = "|".join(KINDS.keys() - {"alert", "grad_norm"})  # these are also a link's name and a metric's
    found: dict[str, set[str]] = defaultdict(set)
    for package, suffix in ((stabilityfrontend, "*.js"), (stabilityalerting, "*.py")):
        for path in Path(str(package.__file__)).parent.rglob(suffix):
            for kind in re.findall(rf"""["']({words})["']""", path.read_text()):
                found[path.name].add(kind)
    assert found == SHOWN_APART


@pytest.mark.parametrize("name", sorted(KINDS.keys() - {"alert"}))  # what a job raises is its own to advise on
def test_every_kind_has_an_advice(name: str) -> None:
    assert suggest(stored(name), UsableOf([]), 200) is not None


@pytest.mark.parametrize("name", KINDS)
def test_an_entry_stands_under_its_name_with_words_that_people_read(name: str) -> None:
    kind = KINDS[name]
    assert kind.name == name
    assert kind.label[0].isupper()
    assert "_" not in kind.label + kind.short
    assert len(kind.sign) <= 1


def test_what_damages_the_model_can_be_gone_back_for_and_what_is_ill_in_a_machine_cannot() -> None:
    assert kinds_where(lambda kind: kind.damages_weights and not kind.rollback_helps) == frozenset()
    assert kinds_where(lambda kind: kind.rollback_helps and kind.of_machine) == frozenset()
    assert kinds_where(lambda kind: kind.stops_job and not kind.of_machine) == frozenset()


def test_a_kind_that_the_table_lacks_is_called_by_its_name_and_claims_nothing() -> None:
    assert kind_of("clock_skew") == IncidentKind(name="clock_skew", label="Clock skew", short="clock skew")
    assert served()[""] == {**served()["plateau"], "name": "", "label": "", "short": ""}


GOOD = {"name": "full_disk", "label": "Full disk", "short": "full disk"}


@pytest.mark.parametrize(
    ("field", "message"),
    [
        ({"name": "hang"}, "there is an incident kind 'hang' already, give this one another name"),
        ({"name": "My Kind"}, "an incident kind has the name 'My Kind', expected lower-case letters, digits and _"),
        ({"about": "modell"}, "has about='modell', expected one of 'model', 'data', 'process', 'gpu', 'user'"),
        ({"status": "nonsense"}, "has status='nonsense', expected one of '', 'running', 'stalled'"),
        ({"blame": "all"}, "has blame='all', expected one of '', 'suspect', 'known'"),
        ({"sign": "abcd"}, "has sign='abcd', expected one character, or none"),
        ({"band": "yes"}, "has band='yes', expected True or False"),
        ({"label": ""}, "has label='', expected text"),
    ],
)
def test_a_kind_that_is_taken_or_not_as_it_may_be_is_refused_in_words(field: dict[str, Any], message: str) -> None:
    before = dict(KINDS)
    with pytest.raises(ValueError, match=re.escape(message)):
        add(IncidentKind(**{**GOOD, **field}))
    assert before == KINDS


def test_stored_incidents_carry_the_words_of_todays_table(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(KINDS, "hang", IncidentKind("hang", "Stalled job", "stalled job", about="process"))
    shown = [as_json(stored("hang")), as_json(stored("of_tomorrow", label="Of yesterday"))]
    assert [(one["label"], one["about"]) for one in shown] == [
        ("Stalled job", "process"),
        ("Of tomorrow", "model"),
    ]
