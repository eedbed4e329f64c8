"""A real Alertmanager (Debian's ``prometheus-alertmanager``) with the routes that docs/alertmanager.yml shows."""

from __future__ import annotations

import os
import shutil
import subprocess
import urllib.error
import urllib.request
from pathlib import Path
from types import TracebackType
from typing import Any

import httpx
import pytest

from support.ports import free_port
from support.waiting import wait_until

__all__ = ["Alertmanager"]

_EXAMPLE = Path(__file__).parents[3] / "docs" / "alertmanager.yml"
#: What the tests change: where messages go, and how long Alertmanager waits for more.
_ADDRESSES = ("https://hooks.slack.com/services", "https://events.pagerduty.com/v2/enqueue", "https://hc-ping.com")
_PLACES = ("slack", "pagerduty", "watchdog")
_TIMES = {"5s": "20ms", "0s": "0s", "30s": "100ms", "1m": "200ms"}


class Alertmanager:
    """Runs while the context lasts; where none is installed the test is skipped at home and fails in CI.

    Args:
        folder: where it keeps silences and what it sent.
        receiver: address of what stands for Slack, PagerDuty and the watchdog's receiver: ``/slack/...`` and so on.
    """

    def __init__(self, folder: Path, receiver: str) -> None:
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        config = _EXAMPLE.read_text()
        for address, place in zip(_ADDRESSES, _PLACES, strict=True):
            assert address in config
            config = config.replace(address, f"{receiver}/{place}")
        for name in ("group_wait", "group_interval", "repeat_interval"):
            for time, short in _TIMES.items():
                config = config.replace(f"{name}: {time}\n", f"{name}: {short}\n")
        (folder / "alertmanager.yml").write_text(config)
        self._command = [
            _binary(), f"--config.file={folder / 'alertmanager.yml'}", f"--storage.path={folder}",
            f"--web.listen-address=127.0.0.1:{self.port}", "--cluster.listen-address=", "--log.level=error",
        ]  # fmt: skip
        self._process: subprocess.Popen[bytes]

    def __enter__(self) -> Alertmanager:
        self._process = subprocess.Popen(self._command, stderr=subprocess.DEVNULL)
        wait_until(self._is_ready, 10, "Alertmanager is ready")
        return self

    def kill(self) -> None:
        """kill -9."""
        self._process.kill()
        self._process.wait()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.kill()

    def alerts(self, **labels: str) -> list[dict[str, Any]]:
        """Return the alerts that fire and have these labels, also silenced ones."""
        filters = [f"{name}={value}" for name, value in labels.items()]
        found: list[dict[str, Any]] = httpx.get(f"{self.url}/api/v2/alerts", params={"filter": filters}).json()
        return found

    def silence(self, until: str, **labels: str) -> None:
        """Mute alerts with these labels until then (ISO 8601)."""
        matchers = [{"name": name, "value": value, "isRegex": False} for name, value in labels.items()]
        body = {
            "matchers": matchers, "startsAt": "2000-01-01T00:00:00Z", "endsAt": until, "createdBy": "test",
            "comment": "of a test",
        }  # fmt: skip
        httpx.post(f"{self.url}/api/v2/silences", json=body).raise_for_status()

    def _is_ready(self) -> bool:
        assert self._process.poll() is None, "Alertmanager ended at once"
        try:
            with urllib.request.urlopen(f"{self.url}/-/ready", timeout=1) as answer:
                return bool(answer.status == 200)
        except (urllib.error.URLError, OSError):
            return False


def _binary() -> str:
    found = shutil.which("prometheus-alertmanager") or shutil.which("alertmanager")
    if found is None:
        message = "no Alertmanager on the PATH: apt-get install prometheus-alertmanager runs the tests of it"
        if os.environ.get("CI"):
            pytest.fail(message)
        pytest.skip(message)
    return found
