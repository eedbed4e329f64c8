"""Addresses of a Redis: of one server, of a Redis Cluster, or of a server behind Sentinels.

    redis://[user:password@]host[:port][/database]              one server
    unix:///path                                                one server, on this machine
    redis+cluster://[user:password@]host[:port][,host[:port]]   some nodes of a cluster
    redis+sentinel://[user:password@]host[:port][,host[:port]]/name[/database]

``rediss`` in place of ``redis`` speaks TLS. Behind a ``?`` are redis-py's options of a connection.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal
from urllib.parse import urlsplit

__all__ = ["FORMS", "BadAddress", "RedisAddress", "shown_url"]

Kind = Literal["one", "cluster", "sentinel"]

#: Forms of an address, for messages.
FORMS = (
    "redis://host:port, rediss://host:port, unix:///path, redis+cluster://host:port,host:port or "
    "redis+sentinel://host:port,host:port/name"
)
_PORTS = {"one": 6379, "cluster": 6379, "sentinel": 26379}
_SCHEMES: dict[str, tuple[Kind, bool]] = {
    "redis": ("one", False),
    "rediss": ("one", True),
    "unix": ("one", False),
    "redis+cluster": ("cluster", False),
    "rediss+cluster": ("cluster", True),
    "redis+sentinel": ("sentinel", False),
    "rediss+sentinel": ("sentinel", True),
}


class BadAddress(ValueError):
    """An address is none. Neither attribute has its password.

    Attributes:
        given: the wrong part. expected: a right one.
    """

    def __init__(self, given: str, expected: str) -> None:
        super().__init__(f"{given}, expected {expected}")
        self.given = given
        self.expected = expected


@dataclass(frozen=True, slots=True)
class RedisAddress:
    """An address, taken apart.

    Args:
        kind: one server, a cluster or Sentinels. tls: whether connections use TLS.
        nodes: host and port of the server, of some nodes of the cluster, or of the Sentinels; none for a socket.
        login: ``user:password@`` as it was given, or "". It is for Redis; Sentinels have options of their own.
        name: of the server at its Sentinels. database: number, None: not given.
        query: the part behind the ``?``.
        url: the whole address.
    """

    kind: Kind
    tls: bool
    nodes: tuple[tuple[str, int], ...]
    login: str
    name: str
    database: int | None
    query: str
    url: str

    @classmethod
    def of(cls, url: str) -> RedisAddress:
        """Return the parts of an address. Raises BadAddress, never with the password in it."""
        scheme, separator, _ = url.partition("://")
        if not separator or scheme not in _SCHEMES:
            raise BadAddress(f"scheme {scheme if separator else 'none'}", FORMS)
        kind, tls = _SCHEMES[scheme]
        try:
            parts = urlsplit(url)
        except ValueError:
            raise BadAddress("no address that can be read", FORMS) from None
        if scheme == "unix":
            if not parts.path:
                raise BadAddress("unix:// without a path", "the path of a socket: unix:///path")
            return cls("one", False, (), "", "", None, parts.query, url)
        if "@" in parts.path + parts.query + parts.fragment:
            raise BadAddress(
                "a login with signs that mean something in a URL", "them as %40 for @, %2F for /, %23 for #, %3F for ?"
            )
        login, at, hosts = parts.netloc.rpartition("@")
        if "@" in login:
            raise BadAddress("several logins", "one login before all hosts: redis+cluster://user:password@host,host")
        nodes = tuple(_node(part, _PORTS[kind]) for part in hosts.split(","))
        if kind == "one" and len(nodes) > 1:
            raise BadAddress(
                "several addresses",
                f"one of one server, or redis+cluster://{hosts} for nodes of a Redis Cluster, or "
                f"redis+sentinel://{hosts}/name for Sentinels; of a primary and its replicas the primary's",
            )
        first, _, rest = parts.path.strip("/").partition("/")
        name, number = (first, rest) if kind == "sentinel" else ("", parts.path.strip("/"))
        if kind == "sentinel" and not name:
            raise BadAddress(
                "Sentinels without the name of what they watch", f"it behind the hosts: {scheme}://{hosts}/name"
            )
        _check_database(kind, number)
        return cls(kind, tls, nodes, login + at, name, int(number) if number else None, parts.query, url)

    def of_node(self, host: str, port: int) -> str:
        """Return the URL of one of its nodes as that of a single server, with login and options."""
        shown = f"[{host}]" if ":" in host else host
        query = f"?{self.query}" if self.query else ""
        return f"{'rediss' if self.tls else 'redis'}://{self.login}{shown}:{port}{query}"


def _check_database(kind: Kind, number: str) -> None:
    if number and not number.isdecimal():
        raise BadAddress(f"database {number}", "a number, such as 0")
    if kind == "cluster" and number not in ("", "0"):
        raise BadAddress(
            f"database {number} of a Redis Cluster", "no database: a cluster has only 0. Leave it out of the URL"
        )


def _node(text: str, default_port: int) -> tuple[str, int]:
    wrong = BadAddress(
        f"host {text}" if text else "an address without a host",
        "host:port for each, the port a number from 1 to 65535, and an IPv6 address in brackets",
    )
    try:
        parts = urlsplit(f"//{text}")
        host, port = parts.hostname, parts.port
    except ValueError:
        raise wrong from None
    if not host or port == 0:
        raise wrong
    return host, port or default_port


def shown_url(url: str) -> str:
    """Return ``url`` without its login and its options, for messages."""
    parts = urlsplit(url)
    host = parts.netloc.rpartition("@")[2]
    return f"{parts.scheme}://{host}{parts.path}"
