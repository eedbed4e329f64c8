"""A kind of incidents that a user adds: an entry of the table and a detector, and every screen knows it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

import pytest

from stabilitybackend.judging.detectors.engine.base import Detector, Finding, Point
from stabilitybackend.judging.detectors.registry import DETECTORS
from stabilitybackend.schema.kinds import KINDS, IncidentKind
from stabilitybackend.storage.redis_server.embedded import EmbeddedRedis
from support.gateway_stack import log_frames
from support.job_frames import Job
from support.server_stack import RunningServer

if TYPE_CHECKING:
    from playwright.sync_api import Page

KIND = IncidentKind(
    name="clock_skew",
    label="Clock skew </script>",
    short="skewed clock",
    about="process",
    sign="◷",
    blame="known",
    advice="Start chronyd on the node.",
)


class ClockSkewDetector(Detector):
    """Opens one incident at the first point of ``clock_offset_s`` above a second."""

    name: ClassVar[str] = "clock_skew"
    kinds: ClassVar[tuple[str, ...]] = ("clock_skew",)
    title: ClassVar[str] = "Clocks that differ"

    def wants(self, metric: str) -> bool:
        return metric == "clock_offset_s"

    def update(self, point: Point) -> list[Finding]:
        if point.value <= 1.0:
            return []
        return [
            Finding(
                detector=self.name,
                key="clock_skew:0",
                kind="clock_skew",
                state="open",
                severity="warning",
                title=f"Clock is {point.value:.0f} s off at step {point.step}",
                text="Times of this node can't be compared with those of others.",
                onset_step=point.step,
                step=point.step,
                now_step=point.step,
                metric=point.metric,
            )
        ]


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[RunningServer]:
    monkeypatch.setitem(KINDS, KIND.name, KIND)
    monkeypatch.setitem(DETECTORS, ClockSkewDetector.name, ClockSkewDetector)
    with EmbeddedRedis(tmp_path) as redis, RunningServer(redis.url, tmp_path / "data") as server:
        offsets = [0.1] * 50 + [7.0] + [0.1] * 9
        log_frames(server.url, Job().rows(range(1, 61), {"loss": [2.0] * 60, "clock_offset_s": offsets}))
        server.wait_for("/runs/run-1/incidents", lambda found: found["incidents"], "the clock is an incident")
        yield server


@pytest.mark.soak
def test_a_kind_that_a_user_adds_has_its_label_sign_and_advice_in_the_api_and_on_every_page(
    server: RunningServer, visit: Callable[..., Page]
) -> None:
    (found,) = server.get("/runs/run-1/incidents")["incidents"]
    listed = {kind["name"]: kind for kind in server.get("/incident_kinds")["kinds"]}
    assert (found["kind"], found["label"], found["about"]) == ("clock_skew", KIND.label, "process")
    assert found["suggestion"]["text"] == KIND.advice
    assert (listed["clock_skew"]["label"], listed["clock_skew"]["sign"]) == (KIND.label, KIND.sign)
    page = visit(server.url)
    page.wait_for_selector("tr[data-run] .pill.warning")
    assert page.inner_text("tr[data-run] .pill.warning") == KIND.label
    page = visit(f"{server.url}/runs/run-1")
    page.wait_for_selector(".lane-mark")
    assert page.inner_text(".lane-mark i") == KIND.sign
    assert page.inner_text(".lane-mark span") == KIND.short
    page = visit(f"{server.url}/runs/run-1/incidents/{found['incident_id']}")
    page.wait_for_selector("#incident-head h1")
    assert f"{KIND.sign} {KIND.label}" in page.inner_text("#incident-head")
    assert KIND.advice in page.inner_text("#incident-advice")


@pytest.mark.soak
def test_a_kind_that_the_page_does_not_know_is_called_by_its_name(scripts: Page) -> None:
    told = scripts.evaluate(
        """() => ["of_a_newer_server", "constructor", ""].map((name) => window.stability.incidentKind(name))
             .map(({ label, short, sign, band, about }) => [label, short, sign, band, about])"""
    )
    assert told == [
        ["Of a newer server", "of a newer server", "", True, "model"],
        ["Constructor", "constructor", "", True, "model"],
        ["", "", "", True, "model"],
    ]
