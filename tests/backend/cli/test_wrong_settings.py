"""Whatever somebody sets wrong: two lines say what was wrong and what to do, and no traceback."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from stabilitybackend.cli import serving
from support.cli_program import Program, program_in

GARBAGE = "no such thing!"
TOKEN = {"STABILITY_SLACK_BOT_TOKEN": "xoxb-1", "STABILITY_SLACK_CHANNEL": "C0123456789"}
OIDC = {"STABILITY_OIDC_ISSUER": "https://id.example.org", "STABILITY_PUBLIC_URL": "https://board.example.org"}
PROXY = {"STABILITY_PROXY_USER_HEADER": "X-User", "STABILITY_TRUSTED_PROXIES": "10.0.0.1"}
#: Variable -> what is wrong in it, and what else is set.
WRONG: list[tuple[str, str, dict[str, str]]] = [
    *((name, GARBAGE, {}) for name in (
        "STABILITY_PORT", "STABILITY_HOST", "STABILITY_LOG_LEVEL", "STABILITY_WINDOW_MIB",
        "STABILITY_CACHE_MIB", "STABILITY_RETENTION_DAYS", "STABILITY_HANG_FLOOR_S", "STABILITY_HANG_CEILING_S",
        "STABILITY_AGENT_LOST_S", "STABILITY_ALERT_ROUTES", "STABILITY_PUBLIC_URL", "STABILITY_TRUSTED_HOSTS",
        "STABILITY_TRUSTED_PROXIES", "STABILITY_PROXY_USER_HEADER", "STABILITY_PROXY_GROUPS_HEADER", "STABILITY_ROLES",
        "STABILITY_OIDC_ISSUER", "STABILITY_TWO_PERSONS", "STABILITY_ROLE",
        "STABILITY_ADVERTISE_URL", "STABILITY_PLUGINS", "STABILITY_REDIS_URL",
    )),
    *((name, GARBAGE, {}) for name in (
        "STABILITY_WEBHOOK_URL", "STABILITY_WEBHOOK_MIN_SEVERITY", "STABILITY_HEARTBEAT_URL", "STABILITY_HEARTBEAT_S",
        "STABILITY_HEARTBEAT_STYLE", "STABILITY_SLACK_WEBHOOK_URL", "STABILITY_SLACK_MIN_SEVERITY",
        "STABILITY_SLACK_BOT_TOKEN", "STABILITY_SLACK_CHANNEL", "STABILITY_APPRISE_URLS",
        "STABILITY_APPRISE_MIN_SEVERITY", "STABILITY_ALERTMANAGER_URL", "STABILITY_ALERTMANAGER_MIN_SEVERITY",
        "STABILITY_ALERTMANAGER_WATCHDOG", "STABILITY_PAGERDUTY_MIN_SEVERITY", "STABILITY_RECEIVERS",
        "STABILITY_SLACK_CHART", "STABILITY_SLACK_APP_TOKEN", "STABILITY_SLACK_SIGNING_SECRET",
        "STABILITY_PAGERDUTY_CHANGES", "STABILITY_WEBHOOK_SECRET",
    )),
    ("STABILITY_REDIS_SERVER", GARBAGE, {"STABILITY_REDIS_URL": ""}),
    ("STABILITY_ARCHIVE_URL", "gopher://bucket/x", {}),
    ("STABILITY_DATA_DIR", "/proc/nothing/here", {}),
    ("STABILITY_WEBHOOK_URL", "https://[", {}),
    ("STABILITY_WEBHOOK_URL", "https://x.example.org", {}),
    ("STABILITY_SLACK_USERS", "[[[", TOKEN),
    ("STABILITY_SLACK_USERS", "anna: boss", TOKEN),
    ("STABILITY_SLACK_API_URL", GARBAGE, TOKEN),
    ("STABILITY_PAGERDUTY_URL", GARBAGE, {"STABILITY_PAGERDUTY_ROUTING_KEY": "r" * 32}),
    ("STABILITY_PAGERDUTY_API_URL", GARBAGE, {"STABILITY_PAGERDUTY_ROUTING_KEY": "r" * 32}),
    ("STABILITY_OIDC_SCOPES", "email", OIDC | {"STABILITY_OIDC_CLIENT_ID": "board"}),
    ("STABILITY_OIDC_CLIENT_SECRET_FILE", GARBAGE, OIDC | {"STABILITY_OIDC_CLIENT_ID": "board"}),
    ("STABILITY_ROLES", GARBAGE, OIDC | {"STABILITY_OIDC_CLIENT_ID": "board"}),
    ("STABILITY_ROLES", GARBAGE, PROXY),
    ("STABILITY_TRUSTED_PROXIES", "*", PROXY),
    ("STABILITY_PUBLIC_URL", "https://board.example.org:port", {}),
]  # fmt: skip


@pytest.fixture
def program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Program:
    return program_in(tmp_path, monkeypatch, capsys)


@pytest.fixture
def start(program: Program, redis_url: str, monkeypatch: pytest.MonkeyPatch) -> Callable[..., tuple[int, str, str]]:
    """Return what starts a server, which must not come up."""

    def came_up(*_: object, **__: object) -> None:
        raise AssertionError("the server came up")

    monkeypatch.setattr(serving._AnnouncingServer, "run", came_up)
    monkeypatch.setenv("STABILITY_PORT", "0")
    monkeypatch.setenv("STABILITY_REDIS_URL", redis_url)
    return lambda *options: program("up", *options)


@pytest.mark.parametrize(("name", "value", "more"), WRONG, ids=[one[0] for one in WRONG])
def test_a_wrong_variable_stops_the_start_in_two_lines(
    start: Callable[..., tuple[int, str, str]],
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    value: str,
    more: dict[str, str],
) -> None:
    for variable, text in {**more, name: value}.items():
        monkeypatch.setenv(variable, text)
    assert in_two_lines(*start())


def in_two_lines(code: int, out: str, err: str) -> bool:
    """Return whether a call said in two lines on standard error what was wrong and what to do."""
    return code != 0 and out == "" and [line.partition(":")[0] for line in err.splitlines()] == ["error", "hint"]


ASKING = [
    ["runs"], ["rollback", "x"], ["export", "x", "--to", "o.jsonl"], ["interruptions"], ["audit"], ["plan", "x"],
    ["dump", "x"], ["checkpoint", "x"], ["stop", "x"], ["autopilot", "x"], ["batches", "x"], ["detectors", "x"],
    ["archive", "list"],
]  # fmt: skip


@pytest.mark.parametrize(
    ("url", "key"),
    [
        ("http://[", ""), (GARBAGE, ""), ("http://127.0.0.1:99999", ""), ("ftp://127.0.0.1", ""), ("127.0.0.1:1", ""),
        ("http://127.0.0.1:1", "schlüssel"), ("http://127.0.0.1:1", "two\nlines"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("command", ASKING, ids=[one[0] for one in ASKING])
def test_a_wrong_address_or_key_of_the_server_is_told_in_two_lines(
    program: Program, monkeypatch: pytest.MonkeyPatch, command: list[str], url: str, key: str
) -> None:
    monkeypatch.setenv("STABILITY_URL", url)
    monkeypatch.setenv("STABILITY_API_KEY", key)
    assert in_two_lines(*program(*command))


@pytest.mark.parametrize(
    "command",
    [
        ["nosuch"], ["runs", "--nosuch"], ["runs", "--limit", "many"], ["runs", "--limit", "-1"], ["rollback"],
        ["rollback", "x", "--to-step", "-1"], ["rollback", "x", "--lr-scale", "half"], ["up", "--port", "99999999"],
        ["up", "--port", "x"], ["up", "--window-mib", "-1"], ["up", "--role", "boss"], ["up", "--log-level", "loud"],
        ["backtest"], ["import"], ["import", "nowhere.jsonl"], ["keys", "create"],
        ["keys", "create", "x", "--role", "boss"], ["keys", "revoke", "x"], ["demo", "--nosuch"], ["mcp", "--nosuch"],
        ["demo", "--headless", "--port", "x"], ["demo", "--headless", "--port", "99999999"],
        ["demo", "--headless", "--example-dir", "nowhere"],
    ],
    ids=" ".join,
)  # fmt: skip
def test_wrong_use_is_told_in_two_lines(program: Program, command: list[str], tmp_path: Path) -> None:
    assert in_two_lines(*program(*command))
