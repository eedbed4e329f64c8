"""The server behind a real nginx with TLS, with the configuration of docs/proxy/nginx.conf."""

from __future__ import annotations

import socket
import ssl
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
from websockets.exceptions import InvalidStatus
from websockets.sync.client import connect

from stabilityclient.wire import Hello, Welcome, decode_message, encode_message
from support.installed import needed_program
from support.ports import free_port
from support.processes import Server
from support.waiting import wait_until

CONFIGURATION = Path(__file__).parents[2] / "docs" / "proxy" / "nginx.conf"
NAME = "board.example.org"
#: What lies around a file of /etc/nginx/conf.d, with every path in a folder of ours.
MAIN = """daemon off; worker_processes 1; pid {folder}/nginx.pid; error_log {folder}/error.log;
events {{ worker_connections 64; }}
http {{
  access_log off; client_body_temp_path {folder}/body; proxy_temp_path {folder}/proxy;
  fastcgi_temp_path {folder}/fastcgi; uwsgi_temp_path {folder}/uwsgi; scgi_temp_path {folder}/scgi;
  include {folder}/site.conf;
}}
"""


@dataclass
class Proxied:
    """The server, and who talks to it through nginx."""

    port: int
    key: str
    trust: ssl.SSLContext

    @property
    def origin(self) -> str:
        return f"https://{NAME}:{self.port}"

    def call(self, method: str, path: str, **options: Any) -> httpx.Response:
        """Make one call under the public name, by an address that needs no name server."""
        headers = {"Host": f"{NAME}:{self.port}"} | options.pop("headers", {})
        with httpx.Client(verify=self.trust, trust_env=False, timeout=20) as client:
            extensions = {"sni_hostname": NAME}
            url = f"https://127.0.0.1:{self.port}{path}"
            return client.request(method, url, headers=headers, extensions=extensions, **options)

    def socket(self, path: str, **headers: str) -> Any:
        """Open a WebSocket under the public name."""
        return connect(
            f"wss://{NAME}:{self.port}{path}",
            sock=socket.create_connection(("127.0.0.1", self.port)),
            ssl=self.trust,
            additional_headers=headers,
            compression=None,
            proxy=None,
        )

    @property
    def bearer(self) -> dict[str, str]:
        return {"Authorization": f"Bearer {self.key}"}


@pytest.fixture(scope="module")
def proxied(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Proxied]:
    nginx, openssl = (needed_program(name, "the proxy of these tests") for name in ("nginx", "openssl"))
    folder = tmp_path_factory.mktemp("proxy")
    inner, outer = free_port(), free_port()
    certificate = [
        "-keyout",
        "board.key",
        "-out",
        "board.crt",
        "-subj",
        f"/CN={NAME}",
        "-addext",
        f"subjectAltName=DNS:{NAME}",
    ]
    subprocess.run(
        [openssl, "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", *certificate],
        cwd=folder,
        check=True,
        capture_output=True,
    )
    site = CONFIGURATION.read_text().replace("/etc/ssl", str(folder)).replace("127.0.0.1:8080", f"127.0.0.1:{inner}")
    (folder / "site.conf").write_text(site.replace("listen 443 ", f"listen 127.0.0.1:{outer} "))
    (folder / "nginx.conf").write_text(MAIN.format(folder=folder))

    server = Server(folder / "data", inner, env={"STABILITY_PUBLIC_URL": f"https://{NAME}:{outer}"})
    made = [sys.executable, "-m", "stabilitybackend.cli", "keys", "create", "tests", "--data-dir", str(folder / "data")]
    done = subprocess.run(made, capture_output=True, text=True, check=True, timeout=60, env=server.environ)
    key = done.stdout.strip()
    with server:
        process = subprocess.Popen([nginx, "-c", str(folder / "nginx.conf"), "-p", str(folder)])
        try:
            client = Proxied(outer, key, ssl.create_default_context(cafile=str(folder / "board.crt")))

            def answers() -> bool:
                assert process.poll() is None, (folder / "error.log").read_text()
                try:
                    return client.call("GET", "/healthz").status_code == 200
                except httpx.HTTPError:
                    return False

            wait_until(answers, 20, "nginx answers")
            yield client
        finally:
            process.terminate()
            process.wait(60)


def test_through_the_proxy_nothing_is_open_without_a_key(proxied: Proxied) -> None:
    assert proxied.call("GET", "/api/v1/runs").status_code == 401
    assert proxied.call("GET", "/api/v1/runs", headers=proxied.bearer).status_code == 200


def test_a_page_behind_the_proxy_logs_in_and_writes(proxied: Proxied) -> None:
    page = {"Origin": proxied.origin}
    login = proxied.call("POST", "/api/v1/login", json={"key": proxied.key}, headers=page)
    assert login.status_code == 200
    assert login.headers["set-cookie"].startswith(f"__Host-stabilityboard_{proxied.port}=")
    assert "; Secure" in login.headers["set-cookie"]
    cookie = login.headers["set-cookie"].split(";")[0]
    order = {"kind": "rollback", "to_step": 5}
    answer = proxied.call("POST", "/api/v1/runs/none/commands", json=order, headers={**page, "Cookie": cookie})
    assert answer.status_code == 404  # there is no such run: everything before that was right
    with proxied.socket("/api/v1/live", Origin=proxied.origin, Cookie=cookie) as live:
        live.send('{"type": "subscribe", "run_id": null, "cursor": null}')
        assert '"hello"' in live.recv(timeout=20)


def test_an_agent_sends_through_the_proxy(proxied: Proxied) -> None:
    with proxied.socket("/api/v1/agent", **proxied.bearer) as agent:
        agent.send(encode_message(Hello("run-1", "a1", "n0", "0.1.0", project="p", name="n", sources=[])))
        assert isinstance(decode_message(agent.recv(timeout=20)), Welcome)


@pytest.mark.parametrize("origin", ["https://evil.example", "http://board.example.org", "null"])
def test_pages_of_other_sites_are_refused_through_the_proxy(proxied: Proxied, origin: str) -> None:
    answer = proxied.call("POST", "/api/v1/logout", headers={**proxied.bearer, "Origin": origin})
    assert (answer.status_code, answer.json()["error"]["code"]) == (403, "foreign_origin")
    with pytest.raises(InvalidStatus), proxied.socket("/api/v1/live", Origin=origin, **proxied.bearer):
        pass


def test_another_name_at_the_proxys_address_reads_nothing(proxied: Proxied) -> None:
    answer = proxied.call("GET", "/api/v1/runs", headers={**proxied.bearer, "Host": "evil.example"})
    assert answer.status_code >= 400
    assert "runs" not in answer.text
