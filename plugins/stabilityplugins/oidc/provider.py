"""Client of the OpenID provider: its abilities, its keys, a token for a code, a person's claims.

It may be away when the server starts, and at any other time. So it is not asked before the first sign-in or view of
the sign-in page; its answers are kept for an hour, and longer while the provider is away. Of an outage the
provider hears no more than one question in some seconds.
"""

from __future__ import annotations

import asyncio
import base64
import logging
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Generic, TypeVar
from urllib.parse import quote_plus

import httpx
import msgspec
from authlib.common.urls import add_params_to_uri
from authlib.oauth2.rfc6749.parameters import prepare_grant_uri, prepare_token_request
from authlib.oauth2.rfc7636 import create_s256_code_challenge
from joserfc.jwk import KeySet

from stabilitybackend.base.quiet_log import QuietLog
from stabilitybackend.base.tasks import SingleFlight
from stabilityplugins.oidc.flows import Flow
from stabilityplugins.oidc.refusals import SignInRefused
from stabilityplugins.oidc.settings import OidcSettings, is_safe_address
from stabilityplugins.oidc.tokens import UnknownKey, claims_of, keys_of

__all__ = ["Provider", "Tokens"]

#: Age at which the provider's metadata and keys are asked for again, seconds.
FRESH_S = 3600.0
#: A provider that was away is asked again after so long, seconds.
RETRY_S = 5.0
#: Longest time for one answer, seconds. A person waits for it.
ANSWER_S = 5.0
#: Longest answer, bytes.
MAX_ANSWER_BYTES = 512 * 1024
#: Connections to the provider: who begins sign-ins by the thousand keeps no more open.
MAX_CONNECTIONS = 16
_LOG = logging.getLogger(__name__)
T = TypeVar("T")


class _Metadata(msgspec.Struct, frozen=True):
    """Metadata of the provider (OpenID Connect Discovery 1.0, RFC 8414, RFC 9207)."""

    issuer: str
    authorization_endpoint: str
    token_endpoint: str
    jwks_uri: str
    userinfo_endpoint: str | None = None
    end_session_endpoint: str | None = None
    token_endpoint_auth_methods_supported: tuple[str, ...] = ("client_secret_basic",)
    authorization_response_iss_parameter_supported: bool = False


class Tokens(msgspec.Struct, frozen=True):
    """Tokens of the provider for a code."""

    id_token: str
    access_token: str | None = None


class Provider:
    """One provider.

    Args:
        settings: where it is, and who we are there.
        clock: unix seconds now. monotonic: seconds that only go on.
    """

    def __init__(
        self,
        settings: OidcSettings,
        clock: Callable[[], float] = time.time,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._settings = settings
        self._clock = clock
        self._monotonic = monotonic
        self._client: httpx.AsyncClient | None = None
        self._metadata = _Known[_Metadata](self._read_metadata, monotonic)
        self._keys = _Known[KeySet](self._read_keys, monotonic)
        self._quiet = QuietLog(_LOG, monotonic)

    async def close(self) -> None:
        """Close its connections."""
        if self._client is not None:
            await self._client.aclose()

    async def ready(self) -> None:
        """Return when its abilities are fetched. Raises SignInRefused: it is away, or no provider."""
        await self._metadata.get()

    async def sign_in_url(self, state: str, flow: Flow, *, other: bool) -> str:
        """Return the provider's page for a sign-in. Raises SignInRefused: it is away.

        Args:
            other: another person than the one signed in there: it shall ask.
        """
        found = await self._metadata.get()
        url: str = prepare_grant_uri(
            found.authorization_endpoint, self._settings.client_id, "code", self._settings.redirect_url,
            self._settings.scopes, state, nonce=flow.nonce, code_challenge=create_s256_code_challenge(flow.verifier),
            code_challenge_method="S256", prompt="login" if other else None,
        )  # fmt: skip
        return url

    async def sign_out_url(self, id_token: str) -> str | None:
        """Return the provider's page that ends the sign-in there, None where it has none or is away."""
        try:
            end = (await self._metadata.get()).end_session_endpoint
        except SignInRefused:
            return None
        if end is None:
            return None
        given = [("client_id", self._settings.client_id), ("post_logout_redirect_uri", self._settings.signed_out_url)]
        url: str = add_params_to_uri(end, [*given, *([("id_token_hint", id_token)] if id_token else [])])
        return url

    async def check_issuer(self, said: str | None) -> None:
        """Refuse an answer that another provider sent (RFC 9207). Raises SignInRefused."""
        wanted = (await self._metadata.get()).authorization_response_iss_parameter_supported
        if said != self._settings.issuer and (wanted or said is not None):
            raise SignInRefused("token_bad", f"the answer comes from {said!r}, expected {self._settings.issuer!r}")

    async def tokens(self, code: str, flow: Flow) -> Tokens:
        """Return the provider's tokens for a code.

        Raises:
            SignInRefused: it refuses, is away, or answers something else.
        """
        found = await self._metadata.get()
        headers = {"accept": "application/json", "content-type": "application/x-www-form-urlencoded"}
        form = prepare_token_request(
            "authorization_code", "", self._settings.redirect_url, code=code, code_verifier=flow.verifier,
            **self._in_form(found, headers),
        )  # fmt: skip
        status, body = await self._ask("POST", found.token_endpoint, headers, form.encode())
        if status == 200:
            try:
                return msgspec.json.decode(body, type=Tokens)
            except msgspec.DecodeError as error:
                raise SignInRefused("provider_wrong", f"token_endpoint: expected an id_token: {error}") from None
        if status >= 500:
            raise SignInRefused("provider_away", f"token_endpoint answered {status}")
        raise SignInRefused("provider_refused", f"token_endpoint answered {status}: {_error_in(body)}")

    async def claims(self, given: Tokens, nonce: str) -> Mapping[str, Any]:
        """Return the claims of a valid ID token. Missing keys are asked for.

        Raises:
            SignInRefused: it does not hold, or the provider is away.
        """
        keys = await self._keys.get()
        try:
            return self._claims(given, keys, nonce)
        except UnknownKey:
            keys = await self._keys.get(newer_than=keys)
        try:
            return self._claims(given, keys, nonce)
        except UnknownKey as error:
            raise SignInRefused("token_bad", f"id_token: {error}") from error

    async def person(self, given: Tokens, subject: str) -> Mapping[str, Any]:
        """Return the provider's further facts of a person; nothing where it has no such call.

        Raises:
            SignInRefused: it is away, or answers for another person.
        """
        url = (await self._metadata.get()).userinfo_endpoint
        if url is None or given.access_token is None:
            return {}
        headers = {"accept": "application/json", "authorization": f"Bearer {given.access_token}"}
        found = self._json("userinfo_endpoint", *(await self._ask("GET", url, headers)))
        if found.get("sub") != subject:  # OpenID Connect Core 1.0, 5.3.4
            raise SignInRefused("token_bad", "userinfo_endpoint speaks of somebody else than the id_token")
        return found

    def _claims(self, given: Tokens, keys: KeySet, nonce: str) -> Mapping[str, Any]:
        return claims_of(
            given.id_token, keys, issuer=self._settings.issuer, client_id=self._settings.client_id, nonce=nonce,
            access_token=given.access_token, now=self._clock(),
        )  # fmt: skip

    def _in_form(self, found: _Metadata, headers: dict[str, str]) -> dict[str, str]:
        """Identify this client, in the headers or in the form returned (RFC 6749, 2.3.1)."""
        client_id, secret = self._settings.client_id, self._settings.client_secret
        if secret is None:
            return {"client_id": client_id}
        if "client_secret_basic" in found.token_endpoint_auth_methods_supported:
            pair = f"{quote_plus(client_id)}:{quote_plus(secret)}"
            headers["authorization"] = f"Basic {base64.b64encode(pair.encode()).decode()}"
            return {}
        return {"client_id": client_id, "client_secret": secret}

    async def _read_metadata(self) -> _Metadata:
        url = f"{self._settings.issuer.rstrip('/')}/.well-known/openid-configuration"
        try:
            document = self._json(url, *(await self._ask("GET", url)))
            try:
                found = msgspec.convert(document, _Metadata)
            except msgspec.ValidationError as error:
                raise SignInRefused("provider_wrong", f"{url}: {error}") from None
            if found.issuer != self._settings.issuer:  # OpenID Connect Discovery 1.0, 4.3
                raise SignInRefused(
                    "provider_wrong", f"{url} is of the issuer {found.issuer!r}, expected {self._settings.issuer!r}"
                )
            used = (found.authorization_endpoint, found.token_endpoint, found.jwks_uri, found.userinfo_endpoint)
            if unsafe := [one for one in (*used, found.end_session_endpoint) if one and not is_safe_address(one)]:
                raise SignInRefused("provider_wrong", f"{url} names {unsafe[0]!r}, expected an https:// address")
        except SignInRefused as refused:
            self._quiet.log(logging.WARNING, f"nobody can sign in at {self._settings.name}: {refused}")
            raise
        return found

    async def _read_keys(self) -> KeySet:
        url = (await self._metadata.get()).jwks_uri
        return keys_of(self._json(url, *(await self._ask("GET", url))))

    def _json(self, what: str, status: int, body: bytes) -> dict[str, Any]:
        """Return the object that the provider answered. Raises SignInRefused: it is none."""
        if status >= 500:
            raise SignInRefused("provider_away", f"{what} answered {status}")
        try:
            found = msgspec.json.decode(body)
        except msgspec.DecodeError:
            found = None
        if status != 200 or not isinstance(found, dict):
            raise SignInRefused("provider_wrong", f"{what} answered {status}, expected 200 and a JSON object")
        return found

    async def _ask(
        self, method: str, url: str, headers: Mapping[str, str] | None = None, body: bytes | None = None
    ) -> tuple[int, bytes]:
        """Return status and body. Redirects are not followed: secrets go to the address that was named alone."""
        if self._client is None:  # its TLS context takes 40 ms, needless in a server without users
            limits = httpx.Limits(max_connections=MAX_CONNECTIONS)
            self._client = httpx.AsyncClient(timeout=ANSWER_S, limits=limits, follow_redirects=False)
        found = bytearray()
        try:
            async with (
                asyncio.timeout(ANSWER_S),
                self._client.stream(method, url, headers=headers, content=body) as answer,
            ):
                async for part in answer.aiter_bytes():
                    found += part
                    if len(found) > MAX_ANSWER_BYTES:
                        raise SignInRefused("provider_wrong", f"{url} answered more than {MAX_ANSWER_BYTES:,} bytes")
        except TimeoutError:
            raise SignInRefused("provider_away", f"{url} has not answered within {ANSWER_S:.0f} s") from None
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            raise SignInRefused("provider_away", f"{url}: {type(error).__name__}: {error}") from error
        return answer.status_code, bytes(found)


class _Known(Generic[T]):
    """Something that is asked for once, kept for FRESH_S, and kept longer while it can't be had again."""

    def __init__(self, read: Callable[[], Awaitable[T]], monotonic: Callable[[], float]) -> None:
        self._reading = SingleFlight(read)
        self._monotonic = monotonic
        self._known: T | None = None
        self._known_at = self._asked_at = float("-inf")
        self._trouble: SignInRefused | None = None

    async def get(self, newer_than: T | None = None) -> T:
        """Return it. Raises SignInRefused: it was never there, and is not now.

        Args:
            newer_than: this does not do any more; a newer one is asked for.
        """
        now = self._monotonic()
        outdated = newer_than is not None and self._known is newer_than
        if outdated or (now - self._known_at >= FRESH_S and now - self._asked_at >= RETRY_S):
            try:
                self._known = await self._reading.result()
                self._known_at, self._trouble = now, None
            except SignInRefused as refused:
                self._trouble = refused
            self._asked_at = now
        if self._known is not None:
            return self._known
        assert self._trouble is not None  # asked, without an answer
        raise SignInRefused(self._trouble.code, self._trouble.detail)


def _error_in(body: bytes) -> str:
    """Return the error code of an answer (RFC 6749, 5.2), and no more than a code: bodies may hold anything."""
    try:
        found = msgspec.json.decode(body)
    except msgspec.DecodeError:
        found = None
    code = found.get("error") if isinstance(found, dict) else None
    return code if isinstance(code, str) and code.isidentifier() and len(code) <= 100 else "no error code"
