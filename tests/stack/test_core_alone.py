"""The core without any plug-in: it takes a job, judges it, rolls it back and alerts."""

from __future__ import annotations

import json
from pathlib import Path

import httpx
import pytest

from support.outside.receiver_thread import ReceiverThread
from support.ports import free_port
from support.processes import Ranks, Server

ONSET = 220


@pytest.mark.soak
def test_a_server_without_plug_ins_takes_a_job_finds_its_spike_alerts_and_rolls_it_back(tmp_path: Path) -> None:
    (checkpoints := tmp_path / "checkpoints").mkdir()
    enough = tmp_path / "enough"
    plan = {"onset": ONSET, "every": 50, "checkpoints": str(checkpoints), "period_s": 0.01, "enough": str(enough)}
    with ReceiverThread() as outside:
        env = {
            "STABILITY_INSTALLED_PLUGINS": "",
            "STABILITY_SLACK_WEBHOOK_URL": f"{outside.url}/slack",
            "STABILITY_WEBHOOK_URL": f"{outside.url}/webhook",
            "STABILITY_WEBHOOK_SECRET": "a secret of the test",
            "STABILITY_ALERTMANAGER_URL": f"{outside.url}/alertmanager",
        }
        with Server(tmp_path / "data", free_port(), env) as server:
            where = {"url": server.url, "folder": tmp_path / "spool", "run_id": "alone"}
            with Ranks("orders/spiking_rank.py", [json.dumps(plan)], **where) as ranks:
                found = server.wait_for("/runs/alone/incidents", lambda r: r["incidents"], "the spike is found", 60)
                [incident] = [one for one in found["incidents"] if one["kind"] in ("spike", "divergence")]
                for path in ("/slack", "/webhook", "/alertmanager"):
                    server.wait_for("/runs/alone", lambda _, at=path: outside.heard(at), f"{path} has the alert", 30)
                body = {"kind": "rollback", "to_step": 200, "reason": "the spike"}
                issued = httpx.post(f"{server.url}/api/v1/runs/alone/commands", json=body).json()["command_id"]
                server.wait_for(f"/runs/alone/commands/{issued}", lambda c: c["state"] == "done", "it is done", 60)
                server.wait_for("/runs/alone", lambda r: r["last_step"] > ONSET + 20, "the job trains on", 60)
                enough.touch()
                outputs = [json.loads(lines[0]) for lines in ranks.outputs()]
            pages = {httpx.get(f"{server.url}{path}").status_code for path in ("/", "/runs/alone", "/incidents")}

    assert ONSET - 2 <= incident["onset_step"] <= ONSET + 2
    assert [[went["to_step"] for went in one["went_back"]] for one in outputs] == [[200], [200]]
    assert pages == {200}
