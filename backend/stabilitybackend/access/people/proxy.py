"""Users signed in by a trusted proxy: a header names them, a local file has their rights.

The header is believed from the addresses in ``STABILITY_TRUSTED_PROXIES`` alone, by the connection's own other end and
never by ``X-Forwarded-For``. From anywhere else a request with it is refused, as a forgery of a
person. Promises: docs/security.md.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from starlette.types import ASGIApp, Receive, Scope, Send

from stabilitybackend.access.auth import RESERVED_NAMES, Principal
from stabilitybackend.access.people.roles import MAX_NAME_CHARS, Roles, is_name, wrong_setting
from stabilitybackend.base.errors import Forbidden, StabilityBoardError
from stabilitybackend.base.settings import Settings

__all__ = ["PERSON", "PeopleFromProxy", "ProxyPeople", "person_of"]

#: Key of a request's scope with the user named by a proxy: a Principal, or the refusal.
PERSON = "stability.person"
_Network = ipaddress.IPv4Network | ipaddress.IPv6Network


@dataclass(frozen=True)
class ProxyPeople:
    """Who may be signed in by a proxy.

    Args:
        header, groups_header: lower-case names; no groups without the second one.
        proxies: whose header is believed.
        roles: their rights.
    """

    header: str
    proxies: tuple[_Network, ...]
    groups_header: str | None = None
    roles: Roles = field(default_factory=Roles)

    @classmethod
    def of(cls, settings: Settings) -> ProxyPeople | None:
        """Return the settings' proxies, None where no proxy signs users in.

        Raises:
            SettingsError: no proxy is trusted, or every address, or the file of roles can't be read.
        """
        header = settings.proxy_user_header
        if header is None:
            return None
        if settings.trusted_proxies is None:
            raise wrong_setting("trusted_proxies", "nothing", "the proxy's address: nobody else is believed")
        groups_header = settings.proxy_groups_header
        return cls(
            header.lower(), tuple(_networks(settings.trusted_proxies)),
            None if groups_header is None else groups_header.lower(), Roles.of(settings, "proxy_user_header"),
        )  # fmt: skip

    def who(self, peer: str | None, headers: Iterable[tuple[bytes, bytes]]) -> Principal | StabilityBoardError | None:
        """Return the user named by a proxy, the refusal, or None where the request names no user.

        Args:
            peer: address at the other end of the connection, None for a unix socket.
            headers: of the request, as ASGI has them.
        """
        given = list(headers)
        names, groups = _values(given, self.header), _values(given, self.groups_header)
        if not names and not groups:
            return None
        if not self._is_proxy(peer):
            return Forbidden(
                f"the request has the header {self.header} and came from {peer or 'a unix socket'}, which is no proxy "
                "of this server",
                hint="send a key; of a proxy set STABILITY_TRUSTED_PROXIES to its address",
                code="foreign_proxy",
            )
        name = names[0].strip() if len(names) == 1 else ""
        # Several headers may have been joined to one on the way: with commas, or as an address list has them.
        if not is_name(name) or re.search(r"[\s,;]", name):
            return Forbidden(
                f"the proxy sent {len(names)} user names of which none can be used, expected one of 1 to "
                f"{MAX_NAME_CHARS} characters without blanks and commas, and not {' or '.join(sorted(RESERVED_NAMES))}",
                hint=f"let the proxy set {self.header} once, and remove what clients send",
                code="bad_person",
            )
        grant = self.roles.grant(name, [one.strip() for text in groups for one in text.split(",")])
        if grant is None:
            return Forbidden(
                f"{name!r} is signed in by the proxy and has no role here",
                hint="name the person or a group in the file of STABILITY_ROLES, or set a default there",
                code="no_role",
            )
        return grant.principal(name, proxied=True)

    def _is_proxy(self, peer: str | None) -> bool:
        try:
            address = ipaddress.ip_address(peer or "")
        except ValueError:
            return False
        mapped = getattr(address, "ipv4_mapped", None)
        return any((mapped or address) in network for network in self.proxies)


class PeopleFromProxy:
    """Looks at each request before ``X-Forwarded-For`` changes where it seems to come from; ASGI.

    It goes around uvicorn's own reading of that header, and notes the user in the request's scope.
    """

    def __init__(self, app: ASGIApp, people: ProxyPeople) -> None:
        self._app = app
        self._people = people

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Note who it is, and pass it on."""
        if scope["type"] in ("http", "websocket"):
            client = scope.get("client")
            scope[PERSON] = self._people.who(None if client is None else client[0], scope["headers"])
        await self._app(scope, receive, send)


def person_of(scope: Mapping[str, Any]) -> Principal | None:
    """Return the user signed in by a proxy, None for none.

    Raises:
        Forbidden: the header is not of a trusted proxy, or the user has no rights.
    """
    found = scope.get(PERSON)
    if isinstance(found, StabilityBoardError):
        raise found
    return found if isinstance(found, Principal) else None


def _values(headers: Iterable[tuple[bytes, bytes]], name: str | None) -> list[str]:
    return [] if name is None else [value.decode("utf-8", "replace") for key, value in headers if key == name.encode()]


def _networks(given: str) -> Iterable[_Network]:
    for text in filter(None, (one.strip() for one in given.split(","))):
        try:
            network = ipaddress.ip_network(text, strict=False)
        except ValueError:
            raise wrong_setting(
                "trusted_proxies", text, "addresses and networks such as 127.0.0.1 or 10.0.0.0/8"
            ) from None
        if network.prefixlen == 0:
            raise wrong_setting("trusted_proxies", text, "the proxy's own address: else everybody could be anybody")
        yield network
