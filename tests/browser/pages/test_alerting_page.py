"""The page of alerting with a real job, and a real receiver that writes down what it gets."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx
import pytest

from support.ports import free_port
from support.processes import Ranks, Server
from support.waiting import wait_until

if TYPE_CHECKING:
    from playwright.sync_api import Page

Visit = Callable[..., "Page"]
ROUTES = "routes:\n  - match: {kind: process_death}\n    receivers: [webhook]\n  - receivers: []\n"


class Receiver(ThreadingHTTPServer):
    """Takes every POST, and keeps its JSON."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Keep)
        self.bodies: list[dict[str, Any]] = []

    def told(self) -> list[tuple[str, str]]:
        return [(one["incident"]["run_id"], one["type"]) for one in self.bodies]


class _Keep(BaseHTTPRequestHandler):
    server: Receiver

    def do_POST(self) -> None:
        self.server.bodies.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
        self.send_response(200)
        self.end_headers()

    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture(scope="module")
def receiver() -> Iterator[Receiver]:
    with Receiver() as receiver:
        threading.Thread(target=receiver.serve_forever, daemon=True).start()
        yield receiver
        receiver.shutdown()


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, receiver: Receiver) -> Iterator[Server]:
    env = {
        "STABILITY_WEBHOOK_URL": f"http://127.0.0.1:{receiver.server_address[1]}/hook",
        "STABILITY_WEBHOOK_SECRET": "s3cret",
    }
    with Server(tmp_path_factory.mktemp("alerting") / "data", free_port(), env=env) as server:
        yield server


def die(server: Server, folder: Path, run_id: str) -> str:
    """Run a job whose one rank is killed; return the id of its incident."""
    plan = json.dumps({"stop": 100_000, "period_s": 0.02, "die_at": [0, 10]})
    with Ranks(
        "job.py", [plan], url=server.url, folder=folder / "s", run_id=run_id, world_size=1, STABILITY_DRAIN_S="5"
    ):
        found = server.wait_for(
            f"/runs/{run_id}/incidents", lambda answer: answer["incidents"], "the death is an incident", 60
        )
    return str(found["incidents"][0]["incident_id"])


@pytest.mark.soak  # a minute; mutes and routes themselves are in tests/alerting
def test_from_a_mute_on_the_incidents_page_to_the_alert_at_its_end(
    server: Server, receiver: Receiver, visit: Visit, tmp_path: Path
) -> None:
    incident_id = die(server, tmp_path, "first")
    wait_until(lambda: ("first", "incident.opened") in receiver.told(), 20, "the first death is sent")

    # The incident's page leads to a form that is filled in.
    page = visit(f"{server.url}/runs/first/incidents/{incident_id}", quiet=False)
    page.click("#rating-noise")
    wait_until(lambda: "local called it noise" in page.inner_text("#incident-rating"), 20, "the rating is kept")
    page.click("#incident-mute")
    page.wait_for_selector("#mute-form")
    assert [page.input_value(f"#mute-{label}") for label in ("run", "kind")] == ["first", "process_death"]
    page.fill("#mute-run", "*")
    page.click("#mute-save")
    assert "Say why" in page.inner_text("#mute-trouble")
    page.fill("#mute-reason", "<b>disk swap</b>")
    page.keyboard.press("Enter")
    page.wait_for_selector("#alerting-mutes tr[data-mute]")
    assert "<b>disk swap</b>" in page.inner_text("#alerting-mutes tr[data-mute]")
    for width in (2560, 820, 390):
        page.set_viewport_size({"width": width, "height": 860})
        assert page.evaluate("document.documentElement.scrollWidth") == width
    row = "#alerting-preview tr[data-receiver=webhook]"
    wait_until(lambda: "muted by local" in page.inner_text(row), 20, "who would get it is asked again")

    precision = page.inner_text("#alerting-precision tr[data-kind=process_death]").split("\t")
    assert precision[1:5] == ["1", "0", "1", "0 %"]
    assert page.inner_text("#alerting-precision tr[data-receiver=webhook]").split("\t") == ["webhook", "0", "1", "0 %"]

    # Nobody hears of the second death until somebody ends the mute.
    die(server, tmp_path, "second")
    wait_until(
        lambda: "1 muted" in page.inner_text("#alerting-receivers tr[data-receiver=webhook]"), 20, "it is held back"
    )
    assert [run for run, _ in receiver.told()] == ["first"]
    page.click("#alerting-mutes tr[data-mute] button")
    # It was on the node of the first: it comes in a summary behind that one.
    wait_until(lambda: ("first", "incident.grouped") in receiver.told(), 40, "the second death is in a summary")
    assert "1 more incident in 1 run with the same node" in receiver.bodies[-1]["why"]
    assert ": second." in receiver.bodies[-1]["why"]

    # Routes: tried before they are saved, refused with a line, and then they hold.
    page.fill("#routes-text", ROUTES.replace("process_death", "spike"))
    page.wait_for_selector("#alerting-preview tr[data-gets=no]")
    wait_until(lambda: "not saved yet" in page.inner_text("#alerting-preview"), 20, "it says by which routes")
    page.fill("#routes-text", ROUTES.replace("webhook", "nobody"))
    page.click("#routes-save")
    wait_until(lambda: "line 3" in page.inner_text("#routes-trouble"), 20, "it says where it is wrong")
    assert "expected some of: webhook" in page.inner_text("#routes-trouble")
    page.fill("#routes-text", ROUTES)
    page.click("#routes-save")
    wait_until(lambda: "Version 1, changed by local" in page.inner_text("#routes-about"), 20, "it is saved")
    page.wait_for_selector("#alerting-preview tr[data-gets=now]")
    audit = httpx.get(f"{server.url}/api/v1/audit", timeout=30).json()["entries"]
    assert [one["action"] for one in audit][:4] == [
        "alerting.routes", "alerting.unmute", "alerting.mute", "incident.rate",
    ]  # fmt: skip
