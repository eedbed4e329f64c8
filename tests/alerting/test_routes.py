"""Who gets which alert: the table of routes, and what is wrong with one."""

from __future__ import annotations

import pytest

from stabilityalerting.routing import Decision, RoutingTable
from stabilitybackend.alerts.rules import read_routes
from stabilitybackend.base.yaml_file import BadYaml

RECEIVERS = ["slack", "pagerduty", "lead"]
ROUTES = """
routes:
  - match: {severity: critical, project: "llm-*"}
    receivers: [pagerduty]
    escalate:
      - after_min: 10
        receivers: [lead]
    continue: true
  - match: {kind: [spike, divergence], node: "!gpu-7"}
    receivers: [slack]
  - match: {run: nightly-*}
    receivers: []
  - receivers: [slack, lead]
"""


@pytest.fixture(scope="module")
def table() -> RoutingTable:
    return read_routes(ROUTES, "routes", RECEIVERS)


def test_the_first_route_that_fits_decides(table: RoutingTable) -> None:
    assert table.decide({"kind": "spike", "run": "nightly-1"}) == Decision(frozenset({"slack"}), {}, (1,))
    assert table.decide({"kind": "hang", "run": "nightly-1"}) == Decision(frozenset(), {}, (2,))


def test_a_route_that_goes_on_adds_to_those_below(table: RoutingTable) -> None:
    found = table.decide({"severity": "critical", "project": "llm-7b", "kind": "spike"})
    assert found == Decision(frozenset({"pagerduty", "slack"}), {"lead": 10}, (0, 1))


def test_who_gets_it_at_once_does_not_get_it_later_too(table: RoutingTable) -> None:
    found = table.decide({"severity": "critical", "project": "llm-7b", "kind": "hang"})
    assert (found.now, found.later) == (frozenset({"pagerduty", "slack", "lead"}), {})


def test_a_pattern_with_an_exclamation_mark_keeps_out_what_fits_it(table: RoutingTable) -> None:
    assert table.decide({"kind": "spike", "node": "gpu-7"}).routes == (3,)
    assert table.decide({"kind": "spike"}).routes == (1,), "an alert without the label has the empty text"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("routes: [", "routes, line 1: it is no YAML"),
        ("routes:\n  - receivers: [slack]\n    wait: 3", "line 2: routes[1]: object contains unknown field `wait`"),
        ("routes:\n  - receivers: slack", "line 2: routes[1].receivers: expected `array`, got `str`"),
        ("routes:\n  - receivers: [slack, mail]", "line 2: routes[1].receivers: no receiver 'mail', expected some"),
        ("routes:\n  - receivers: [slack]\n    match:\n      nod: x", "line 4: routes[1].match.nod: no label 'nod'"),
        ("routes:\n  - receivers: []\n    match: {run: a}", "line 2: routes[1]: the last route has a match, so some"),
        ("routes:\n  - receivers: []\n  - receivers: []", "line 2: routes[1]: it has no match and no continue, so no"),
        ("routes:\n  - receivers: []\n    escalate: [{after_min: 0, receivers: [slack]}]", "after_min: expected"),
        ("routes: &a [*a]", "line 1: an anchor or alias is there"),
        ("- 1", "line 1: expected `object`, got `array`"),
        ("", "line 1: expected `object`, got `null`"),
        ("routes: []", "expected `array` of length >= 1"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_told_with_its_line_and_what_is_allowed(text: str, message: str) -> None:
    with pytest.raises(BadYaml) as caught:
        read_routes(text, "routes", RECEIVERS)
    assert message in caught.value.message
