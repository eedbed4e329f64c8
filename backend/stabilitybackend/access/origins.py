"""Host names of this server and origins of calling pages, checked first for every request and WebSocket.

A page of another site can make a person's browser call us. Two things give it away. A name that was made to resolve
to our address (DNS rebinding) is in ``Host``; so a name must be one that we know. A page that calls across sites
is named in ``Origin``; so that must be a page of ours. What is promised: docs/security.md.
"""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Iterable
from dataclasses import dataclass
from urllib.parse import urlsplit

from stabilitybackend.base.errors import Forbidden
from stabilitybackend.base.settings import Settings, is_loopback

__all__ = ["Headers", "Origins"]

#: Headers of a request as ASGI has them: lower-case name, value.
Headers = Iterable[tuple[bytes, bytes]]
#: Ports that browsers leave out.
_DEFAULT_PORTS = {"http": ":80", "https": ":443"}


@dataclass(frozen=True, slots=True)
class Origins:
    """Names of this server.

    Args:
        names: host names, lower-case; ``*.example.org`` matches every name below, ``*`` every name.
        addresses: IP addresses are accepted. An address can't be rebound, only a name can.
        public: ``https://board.example.org``, as browsers name the origin of our pages, or None.
    """

    names: frozenset[str] = frozenset()
    addresses: bool = False
    public: str | None = None

    @classmethod
    def of(cls, settings: Settings) -> Origins:
        """Return the names of the settings. Beyond loopback the machine's own name counts, and any IP address."""
        names = {settings.host.lower(), *(name.lower() for name in settings.trusted_hosts)}
        public = None
        if settings.public_url is not None:
            parts = urlsplit(settings.public_url)
            names.add(parts.hostname or "")
            public = f"{parts.scheme}://{_without_default_port(parts.netloc.lower(), parts.scheme)}"
        if settings.beyond_loopback:
            names.add(socket.gethostname().lower())
        return cls(frozenset(names), settings.beyond_loopback, public)

    def check(self, headers: Headers) -> None:
        """Refuse a call under a foreign name, and one of a page of another site.

        Programs send no Origin and pass that part; a browser names it on every WebSocket and every write.

        Raises:
            Forbidden: ``foreign_host`` or ``foreign_origin``.
        """
        host = self._host(headers)
        origins = _values(headers, b"origin")
        if not origins:
            return
        if len(origins) > 1 or not self._is_page_of_ours(origins[0].lower(), host):
            raise Forbidden(
                f"a page of {_shown(origins[0])} asked {host}, expected a page of this server itself",
                hint="open the dashboard at its own address; behind a proxy set STABILITY_PUBLIC_URL to the address "
                "that people open",
                code="foreign_origin",
            )

    def is_https(self, headers: Headers, scheme: str) -> bool:
        """Return whether a call uses https: to this server (``scheme``), or to the proxy at the public URL."""
        if scheme in ("https", "wss"):
            return True
        if self.public is None or not self.public.startswith("https://"):
            return False
        hosts = [_without_default_port(value.lower(), "https") for value in _values(headers, b"host")]
        return urlsplit(self.public).netloc in hosts or self.public in _values(headers, b"origin")

    def _host(self, headers: Headers) -> str:
        """Return the requested host, lower-case. Raises Forbidden for a foreign one."""
        values = _values(headers, b"host")
        host = values[0].lower() if len(values) == 1 else ""
        try:
            name = (urlsplit(f"//{host}").hostname or "").removesuffix(".")
        except ValueError:  # brackets without an address
            name = ""
        if not name or not self._is_ours(name):
            raise Forbidden(
                f"the request asked for the host {_shown(host) or 'nothing'}, which is not a name of this server",
                hint="use its address, or add the name to STABILITY_TRUSTED_HOSTS or STABILITY_PUBLIC_URL",
                code="foreign_host",
            )
        return host

    def _is_ours(self, name: str) -> bool:
        if is_loopback(name) or name in self.names or "*" in self.names:
            return True
        if self.addresses and _is_address(name):
            return True
        return any(known.startswith("*.") and name.endswith(known[1:]) for known in self.names)

    def _is_page_of_ours(self, origin: str, host: str) -> bool:
        if origin == self.public:
            return True
        parts = urlsplit(origin)
        if parts.scheme not in _DEFAULT_PORTS:
            return False  # "null", and origins of programs with own pages
        if self.public is not None and parts.netloc == urlsplit(self.public).netloc:
            return False  # the own name without https: a page that was perhaps altered on its way
        return parts.netloc == _without_default_port(host, parts.scheme)


def _values(headers: Headers, name: bytes) -> list[str]:
    return [value.decode("latin-1").strip() for key, value in headers if key == name]


def _without_default_port(netloc: str, scheme: str) -> str:
    return netloc.removesuffix(_DEFAULT_PORTS.get(scheme, ""))


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def _shown(text: str) -> str:
    return text if len(text) <= 100 else f"{text[:100]}..."
