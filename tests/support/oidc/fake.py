"""A fake OpenID provider: it keeps to the protocol until a test bends one thing that no good provider ever does.

A real one is `support.oidc.real`; what both are asked is the same.
"""

from __future__ import annotations

import base64
import json
import secrets
import threading
import time
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any
from urllib.parse import parse_qs, unquote_plus, urlencode, urlsplit

import httpx
from authlib.oauth2.rfc7636 import create_s256_code_challenge
from joserfc import jwt
from joserfc.jwk import RSAKey

__all__ = ["FakeProvider", "new_key"]

_CLIENT, _SECRET = "board", "the secret of the board"


def new_key(kid: str) -> RSAKey:
    """Return a key that signs."""
    return RSAKey.generate_key(2048, {"kid": kid, "use": "sig"})


class FakeProvider:
    """Listens while the context lasts; each attribute may be bent, ``reset`` makes it good again."""

    #: Keys take 100 ms to find.
    _KEY = new_key("first")

    def __init__(self) -> None:
        provider = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                provider._serve(self, b"")

            def do_POST(self) -> None:
                provider._serve(self, self.rfile.read(int(self.headers.get("Content-Length", 0))))

            def log_message(self, *_: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,), name="provider")
        self.issuer = f"http://127.0.0.1:{self._server.server_port}"
        self.reset()

    def reset(self) -> None:
        """Be a good provider again, with a person who has a role."""
        #: Paths that were asked for.
        self.asked: list[str] = []
        #: Codes that were given and not yet used -> the request they were given for.
        self.codes: dict[str, dict[str, str]] = {}
        self.key = self._KEY
        self.published: list[dict[str, Any]] = [self.key.as_dict(private=False)]
        self.person: dict[str, Any] = {
            "sub": "1", "email": "anna@example.org", "email_verified": True, "groups": ["ml"]
        }  # fmt: skip
        #: Changes the claims of an ID token before it is signed.
        self.bend: Callable[[dict[str, Any]], object] = lambda claims: None
        #: Makes the text of an ID token.
        self.sign: Callable[[dict[str, Any]], str] = self.signed
        #: Path -> what it answers instead: status, body.
        self.instead: dict[str, tuple[int, bytes]] = {}
        #: Changes of what it says of itself. None leaves a line out.
        self.says: dict[str, Any] = {}
        #: Added to what it sends back to the board; None leaves a parameter out.
        self.sends_back: dict[str, str | None] = {}
        #: The token endpoint waits for it.
        self.goes_on = threading.Event()
        self.goes_on.set()

    @property
    def settings(self) -> dict[str, Any]:
        """What the board has to know of it."""
        return {"oidc_issuer": self.issuer, "oidc_client_id": _CLIENT, "oidc_client_secret": _SECRET}

    def signed(self, claims: dict[str, Any], header: dict[str, Any] | None = None) -> str:
        """Return an ID token as it should be."""
        return jwt.encode(header or {"alg": "RS256", "kid": self.key.kid}, claims, self.key)

    def callback(self, location: str) -> str:
        """Return where it sends somebody whom the board sent to ``location``, and who is signed in here already."""
        answer = httpx.get(location, verify=False)  # a TLS context takes 40 ms
        assert answer.status_code == 302, answer.text
        return str(answer.headers["location"])

    def _serve(self, request: BaseHTTPRequestHandler, body: bytes) -> None:
        parts = urlsplit(request.path)
        self.asked.append(parts.path)
        query = {name: values[0] for name, values in parse_qs(parts.query or body.decode()).items()}
        location = ""
        if parts.path in self.instead:
            if parts.path == "/token":
                self.goes_on.wait(60)
            status, content = self.instead[parts.path]
        elif parts.path == "/authorize":
            status, content, location = 302, b"", self._authorize(query)
        else:
            status, found = self._answer(parts.path, query, request.headers.get("Authorization", ""))
            content = json.dumps(found).encode()
        try:
            request.send_response(status)
            if location:
                request.send_header("Location", location)
            request.send_header("Content-Type", "application/json")
            request.send_header("Content-Length", str(len(content)))
            request.end_headers()
            request.wfile.write(content)
        except ConnectionError:  # who asked did not wait
            request.close_connection = True

    def _answer(self, path: str, query: dict[str, str], authorization: str) -> tuple[int, Any]:
        if path == "/.well-known/openid-configuration":
            said = {
                "issuer": self.issuer, "authorization_endpoint": f"{self.issuer}/authorize",
                "token_endpoint": f"{self.issuer}/token", "jwks_uri": f"{self.issuer}/jwks",
                "userinfo_endpoint": f"{self.issuer}/userinfo", "end_session_endpoint": f"{self.issuer}/logout",
                "response_types_supported": ["code"], "subject_types_supported": ["public"],
                "id_token_signing_alg_values_supported": ["RS256", "HS256", "none"], **self.says,
            }  # fmt: skip
            return 200, {name: value for name, value in said.items() if value is not None}
        if path == "/jwks":
            return 200, {"keys": self.published}
        if path == "/userinfo":
            return (200, self.person) if authorization == "Bearer access" else (401, {})
        if path == "/token":
            self.goes_on.wait(60)
            return self._token(query, authorization)
        return 404, {}

    def _authorize(self, query: dict[str, str]) -> str:
        assert query["client_id"] == _CLIENT
        assert query["response_type"] == "code"
        assert query["code_challenge_method"] == "S256"
        code = secrets.token_urlsafe(16)
        self.codes[code] = query
        back = {"code": code, "state": query["state"], **self.sends_back}
        given = {name: value for name, value in back.items() if value is not None}
        return f"{query['redirect_uri']}?{urlencode(given)}"

    def _token(self, query: dict[str, str], authorization: str) -> tuple[int, Any]:
        user, _, secret = base64.b64decode(authorization.removeprefix("Basic ")).decode().partition(":")
        if (unquote_plus(user), unquote_plus(secret)) != (_CLIENT, _SECRET):
            return 401, {"error": "invalid_client"}
        asked = self.codes.pop(query.get("code", ""), None)
        if asked is None or asked["redirect_uri"] != query["redirect_uri"]:
            return 400, {"error": "invalid_grant"}
        if create_s256_code_challenge(query.get("code_verifier", "")) != asked["code_challenge"]:
            return 400, {"error": "invalid_grant"}
        now = int(time.time())
        claims = {
            "iss": self.issuer, "aud": _CLIENT, "iat": now, "exp": now + 60, "nonce": asked["nonce"], **self.person
        }  # fmt: skip
        self.bend(claims)
        return 200, {"access_token": "access", "token_type": "Bearer", "id_token": self.sign(claims)}

    def __enter__(self) -> FakeProvider:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.goes_on.set()
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()
