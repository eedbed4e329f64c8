"""Real proxies that serve a board below a path, as clusters do: nginx and jupyter-server-proxy.

Each both takes the path off and passes it on. A board that is served at ``kept_path`` by one of them knows that path
alone (``STABILITY_ROOT_PATH``); of the others it is told nothing that it believes.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path

import httpx
import pytest

from support.installed import needed_program
from support.ports import free_port
from support.waiting import wait_until

__all__ = ["USER", "jupyter", "kept_path", "nginx"]

#: Where a hub serves all that is a user's.
USER = "/user/jo.e"
_NGINX = """daemon off; worker_processes 1; pid {folder}/nginx.pid; error_log {folder}/error.log;
events {{ worker_connections 256; }}
http {{
  access_log off; client_body_temp_path {folder}/body; proxy_temp_path {folder}/proxy;
  fastcgi_temp_path {folder}/fastcgi; uwsgi_temp_path {folder}/uwsgi; scgi_temp_path {folder}/scgi;
  map $http_upgrade $connection_upgrade {{ default upgrade; "" ""; }}
  server {{
    listen 127.0.0.1:{port};
    proxy_http_version 1.1; proxy_buffering off;
    proxy_set_header Host $http_host;
    proxy_set_header Upgrade $http_upgrade; proxy_set_header Connection $connection_upgrade;
    location {kept}/ {{ proxy_pass http://127.0.0.1:{board}; }}
    location /taken/off/ {{ proxy_pass http://127.0.0.1:{board}/; }}
    location / {{ return 404; }}
  }}
}}
"""


def kept_path(board: int) -> str:
    """Return the path that both pass on to the board at this port; jupyter-server-proxy has no other."""
    return f"{USER}/proxy/absolute/{board}"


@contextmanager
def nginx(folder: Path, board: int) -> Iterator[dict[str, str]]:
    """Run nginx in front of the board at this port; gives ``{"kept": url, "taken off": url}``."""
    program, port = needed_program("nginx", "the proxy of these tests"), free_port()
    folder.mkdir()
    file = folder / "nginx.conf"
    file.write_text(_NGINX.format(folder=folder, port=port, board=board, kept=kept_path(board)))
    urls = {"kept": f"http://127.0.0.1:{port}{kept_path(board)}", "taken off": f"http://127.0.0.1:{port}/taken/off"}
    with _running([program, "-c", str(file), "-p", str(folder)], folder / "error.log", urls["kept"], {}):
        yield urls


@contextmanager
def jupyter(folder: Path, board: int) -> Iterator[dict[str, str]]:
    """Run a Jupyter server with jupyter-server-proxy in front of the board at this port; gives as ``nginx`` does."""
    if find_spec("jupyter_server_proxy") is None:
        message = "jupyter-server-proxy is not installed"
        pytest.fail(message) if os.environ.get("CI") else pytest.skip(message)
    port = free_port()
    folder.mkdir()
    options = {
        "ip": "127.0.0.1", "port": port, "port_retries": 0, "base_url": f"{USER}/", "root_dir": folder,
        "open_browser": False, "allow_root": True, "jpserver_extensions": {"jupyter_server_proxy": True},
    }  # fmt: skip
    command = [sys.executable, "-m", "jupyter_server", "--IdentityProvider.token="]
    command += [f"--ServerApp.{name}={value}" for name, value in options.items()]
    own = {f"JUPYTER_{name}_DIR": str(folder / name) for name in ("CONFIG", "DATA", "RUNTIME")}
    own |= {"JUPYTER_NO_CONFIG": "1", "IPYTHONDIR": str(folder / "ipython")}
    origin = f"http://127.0.0.1:{port}"
    urls = {"kept": f"{origin}{kept_path(board)}", "taken off": f"{origin}{USER}/proxy/{board}"}
    with _running(command, folder / "jupyter.log", urls["taken off"], own):
        yield urls


@contextmanager
def _running(command: list[str], log: Path, url: str, own: dict[str, str]) -> Iterator[None]:
    with log.open("ab") as file:
        process = subprocess.Popen(command, stdout=file, stderr=file, env=dict(os.environ) | own)
    try:
        wait_until(_answers(process, url, log), 60, f"the board answers at {url}")
        yield
    finally:
        process.terminate()
        process.wait(60)


def _answers(process: subprocess.Popen[bytes], url: str, log: Path) -> Callable[[], bool]:
    def answers() -> bool:
        assert process.poll() is None, log.read_text(errors="replace")[-3000:]
        try:
            return httpx.get(f"{url}/healthz", trust_env=False).status_code == 200
        except httpx.HTTPError:
            return False

    return answers
