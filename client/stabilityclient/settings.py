"""Arguments and environment as one checked set of settings; a wrong one stops the start."""

from __future__ import annotations

import os

from stabilityclient.arguments import mapping_of
from stabilityclient.errors import SettingError
from stabilityclient.identity import RANK_VARIABLES, Ranks, agreed_run_id, inherited, torch_identity, whole_in

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from typing import Any

__all__ = ["DEFAULT_URL", "ClientSettings", "node_name", "usable"]

#: Where `stabilityboard up` listens by default.
DEFAULT_URL = "http://127.0.0.1:8080"
#: Folder for spools, relative to the working directory, unless STABILITY_DIR or dir= is given.
DEFAULT_DIR = ".stability"
#: Longest run id, characters: it becomes a folder name and part of every key on the server.
MAX_RUN_ID_CHARS = 100
#: Spool of one run on one node, MiB, beyond which new records are dropped and counted (STABILITY_SPOOL_MIB).
DEFAULT_SPOOL_MIB = 1024
#: Seconds for which an agent keeps trying a server that is away after the job ended (STABILITY_DRAIN_S).
DEFAULT_DRAIN_S = 600.0
#: Seconds that finish() waits for the delivery of everything (STABILITY_FINISH_S).
DEFAULT_FINISH_S = 30.0
#: Signal on which a process writes its stacks for the agent (STABILITY_DUMP_SIGNAL): one that hardly anybody uses.
DEFAULT_DUMP_SIGNAL = "SIGRTMIN+6"
#: Tags of a run, characters of one, and of its notes; the server takes as many.
MAX_TAGS, MAX_TAG_CHARS, MAX_NOTES_CHARS = 32, 64, 10_000
#: Processes between a rank and its launcher that are passed over (shells, wrappers).
MAX_LAUNCHER_DEPTH = 8

#: Variables that distinguish the launches of a launcher.
_LAUNCHES = ("TORCHELASTIC_RUN_ID", "SLURM_JOB_ID", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE")
_MODES = ("online", "offline", "disabled")
_ID_CHARS = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._-")


class ClientSettings:
    """Settings of a run after all checks; an argument wins over the environment, the environment over the default.

    Args:
        given: arguments of ``init()``; missing ones are None.
        stamp: date and random suffix of a generated run id, e.g. ``20261120-131500-9f2c``.

    Attributes:
        folder: of the run, where the parent process has one.

    Raises:
        SettingError: one of them can't work; the text names it, the given value and the expected ones.
    """

    def __init__(self, given: Mapping[str, Any], environ: Mapping[str, str], stamp: Callable[[], str]) -> None:
        self.mode = _mode(environ)
        self.project = _text("project", given.get("project"), "default")
        self.name = _text("name", given.get("name"), "")
        self.url = _address(given.get("url") or environ.get("STABILITY_URL") or DEFAULT_URL)
        self.api_key = _key(given.get("api_key") or environ.get("STABILITY_API_KEY"))
        self.dir = os.path.abspath(os.fspath(given.get("dir") or environ.get("STABILITY_DIR") or DEFAULT_DIR))
        self.spool_bytes = int(_number(environ, "STABILITY_SPOOL_MIB", DEFAULT_SPOOL_MIB, 2) * 1024 * 1024)
        self.drain_s = _number(environ, "STABILITY_DRAIN_S", DEFAULT_DRAIN_S, 0)
        self.finish_s = _number(environ, "STABILITY_FINISH_S", DEFAULT_FINISH_S, 0)
        self.dump_signal = _signal_number(environ.get("STABILITY_DUMP_SIGNAL") or DEFAULT_DUMP_SIGNAL)
        self.config = mapping_of(given.get("config"))
        self.tags = _tags(given.get("tags"))
        self.notes = _text("notes", given.get("notes"), "", MAX_NOTES_CHARS)
        facts = given.get("facts")
        self.facts = _switch(environ, "STABILITY_FACTS") if facts is None else bool(facts)
        self.ranks = Ranks(environ)
        self.node = _node(environ)
        identity = torch_identity()
        if identity is not None:
            self.ranks.take(*identity, environ)
        family = inherited(environ) if self.ranks.world_size > 1 else None
        run_id = given.get("run_id") or environ.get("STABILITY_RUN_ID") or None
        self.run_id = (
            _checked_id("run_id", run_id) if run_id is not None else self._generated_id(environ, stamp, family)
        )
        self.folder = family[1] if family is not None and family[0] == self.run_id else None

    def spool_in(self, folder: str) -> None:
        """Use another folder for spools."""
        self.dir = folder

    def _generated_id(
        self, environ: Mapping[str, str], stamp: Callable[[], str], family: tuple[str, str] | None
    ) -> str:
        """Return a generated id, the same for all ranks of a job as far as they can find out."""
        own = f"{_slug(self.name or self.project)}-{stamp()}"
        if self.ranks.world_size == 1:
            return own
        if any(name in environ for name in _LAUNCHES):
            return self._shared_id(environ)
        if family is not None:
            return family[0]
        if torch_identity() is not None:
            return agreed_run_id(own)
        return self._shared_id(environ)

    def _shared_id(self, environ: Mapping[str, str]) -> str:
        """Return an id on which all ranks agree without talking: from the launcher's variables."""
        import hashlib

        elastic = environ.get("TORCHELASTIC_RUN_ID", "none")
        job = environ.get("SLURM_JOB_ID", "")
        if elastic != "none":
            launch = elastic
        elif job:
            launch = f"slurm {job}"
        else:
            # torchrun's defaults (id "none", port 29500) are the same for each launch: on one node its own
            # process distinguishes two launches, and stays the same when it restarts its workers.
            launch = f"{environ.get('MASTER_ADDR', '')}:{environ.get('MASTER_PORT', '')}"
            if self.ranks.one_node:
                launch += _launcher()
        digest = hashlib.sha256(f"{self.project}\n{self.name}\n{launch}".encode()).hexdigest()
        return f"{_slug(self.name or self.project)}-{digest[:10]}"


def usable(environ: Mapping[str, str], warn: Callable[[str], None]) -> dict[str, str]:
    """Return the environment without unusable settings, and warn of these: no typo may end a training.

    Args:
        warn: takes a sentence for each.
    """
    found = dict(environ)
    for name, check in _CHECKS.items():
        try:
            if found.get(name):
                check(found)
        except SettingError as error:
            given = found.pop(name)
            instead = "the default holds"
            if name == "STABILITY_RUN_ID":
                found[name] = _slug(given)  # the same on all ranks, and after a restart
                instead = f"the run is {found[name]}"
            elif name == "STABILITY_URL":
                found["STABILITY_MODE"] = "offline"
                instead = "all records stay on this node (`stabilityboard import FOLDER` delivers it)"
            warn(f"{error}; {instead}")
    return found


def _mode(environ: Mapping[str, str]) -> str:
    mode = environ.get("STABILITY_MODE", "online").strip().lower() or "online"
    if mode not in _MODES:
        raise SettingError("STABILITY_MODE", mode, "online, offline or disabled")
    return mode


def _key(given: str | None) -> str | None:
    if given and not (given.isascii() and given.isprintable()):
        raise SettingError("api_key", "(hidden)", "printable ASCII characters: it travels in an HTTP header")
    return given or None


def _address(given: str) -> str:
    """Return the URL of the server; one without a scheme, ``host:8080``, is http.

    By hand: urllib costs a third of our import time.

    Raises:
        SettingError: the agent could only fail with this host or port.
    """
    url = given.strip().rstrip("/")
    if "://" not in url:
        url = f"http://{url}"
    if not url.startswith(("http://", "https://")):
        raise SettingError("url", url, f"http://... or https://..., e.g. {DEFAULT_URL}")
    host = url.split("://", 1)[1].partition("/")[0].partition("?")[0].rpartition("@")[2]
    name, _, port = host.rpartition(":") if not host.endswith("]") and ":" in host else (host, "", "")
    bracketed = name.startswith("[") and name.endswith("]")
    plain_name = not set("[]:") & set(name) and name.isprintable() and " " not in name
    port_fits = not host.endswith(":") and (not port or (port.isdecimal() and 0 < int(port[:6]) <= 65535))
    if not name or not (bracketed or plain_name) or not port_fits:
        raise SettingError("url", url, f"a host and a port of 1 to 65535, e.g. {DEFAULT_URL}")
    return url


def _signal_number(text: str) -> int:
    """Return the number of a signal that is free for us to use, 0 for ``off``.

    Only signals without a meaning of their own: a handler on SIGTERM would keep the scheduler from ending the job.

    Raises:
        SettingError: it is not one of them.
    """
    import signal  # here: it costs a third of our import time

    given = text.strip().upper()
    if given == "OFF":
        return 0
    names = {"USR1": int(signal.SIGUSR1), "USR2": int(signal.SIGUSR2), "RTMIN": int(signal.SIGRTMIN)}
    base, plus, more = given.removeprefix("SIG").partition("+")
    if given.isdecimal():
        number = int(given[:6])
    elif base == "RTMIN" and more.isdecimal():
        number = names[base] + int(more[:6])
    else:
        number = 0 if plus else names.get(base, 0)
    if number not in (names["USR1"], names["USR2"]) and not names["RTMIN"] <= number <= signal.SIGRTMAX:
        raise SettingError("STABILITY_DUMP_SIGNAL", text, "SIGUSR1, SIGUSR2, SIGRTMIN+<n>, the number of one, or off")
    return number


def node_name(environ: Mapping[str, str]) -> str:
    """Return the name of this node, the same for job and agent: STABILITY_NODE where that can be one, else the host."""
    try:
        return _node(environ)
    except SettingError:
        return os.uname().nodename


def _node(environ: Mapping[str, str]) -> str:
    given = environ.get("STABILITY_NODE")
    return _checked_id("STABILITY_NODE", given) if given else os.uname().nodename


def _checked_id(setting: str, given: object) -> str:
    expected = f"1 to {MAX_RUN_ID_CHARS} characters of A-Z a-z 0-9 . _ -, beginning with a letter or a digit"
    if (
        not isinstance(given, str)
        or not 1 <= len(given) <= MAX_RUN_ID_CHARS
        or not _ID_CHARS.issuperset(given)
        or given[0] in "._-"
    ):
        raise SettingError(setting, given, expected)
    return given


def _launcher() -> str:
    """Return pid and start of the torchrun above this process, or nothing where there is none."""
    pid = os.getppid()
    for _ in range(MAX_LAUNCHER_DEPTH):
        try:
            with open(f"/proc/{pid}/cmdline", "rb") as file:
                command = file.read(4096)
            with open(f"/proc/{pid}/stat", "rb") as file:
                fields = file.read(4096).rpartition(b")")[2].split()
        except OSError:
            return ""
        if b"torchrun" in command or b"torch.distributed" in command or b"torch/distributed" in command:
            return f" {pid} {fields[19].decode()}"
        pid = int(fields[1])
        if pid <= 1:
            return ""
    return ""


def _slug(text: str) -> str:
    slug = "".join(char if char in _ID_CHARS else "-" for char in text).strip("._-")
    return slug[:60] or "run"


def _text(setting: str, given: object, default: str, longest: int = 200) -> str:
    if given is None:
        return default
    if not isinstance(given, str) or len(given) > longest:
        raise SettingError(setting, given, f"a string of at most {longest} characters")
    return given.encode("utf-8", "replace").decode()


def _tags(given: Iterable[str] | None) -> list[str]:
    """Return the tags, each once, in their order."""
    expected = f"a list of at most {MAX_TAGS} texts of 1 to {MAX_TAG_CHARS} characters"
    if given is None:
        return []
    if isinstance(given, str | bytes) or not hasattr(given, "__iter__"):
        raise SettingError("tags", given, expected)
    tags = list(dict.fromkeys(given))
    if len(tags) > MAX_TAGS or not all(isinstance(tag, str) and 1 <= len(tag.strip()) <= MAX_TAG_CHARS for tag in tags):
        raise SettingError("tags", given, expected)
    return [tag.strip().encode("utf-8", "replace").decode() for tag in tags]


def _switch(environ: Mapping[str, str], name: str) -> bool:
    given = environ.get(name, "").strip().lower()
    if given not in ("", "on", "1", "off", "0"):
        raise SettingError(name, given, "on or off")
    return given not in ("off", "0")


def _number(environ: Mapping[str, str], name: str, default: float, least: float) -> float:
    text = environ.get(name)
    if not text:
        return default
    try:
        value = float(text)
    except ValueError:
        value = float("nan")
    if not least <= value < float("inf"):
        raise SettingError(name, text, f"a number >= {least:g}")
    return value


def _whole_in(name: str) -> Callable[[Mapping[str, str]], object]:
    return lambda environ: whole_in(name, environ)


#: Variable -> its check, which raises a SettingError.
_CHECKS: dict[str, Callable[[Mapping[str, str]], object]] = {
    "STABILITY_MODE": _mode,
    "STABILITY_URL": lambda environ: _address(environ["STABILITY_URL"]),
    "STABILITY_API_KEY": lambda environ: _key(environ["STABILITY_API_KEY"]),
    "STABILITY_RUN_ID": lambda environ: _checked_id("STABILITY_RUN_ID", environ["STABILITY_RUN_ID"]),
    "STABILITY_NODE": _node,
    "STABILITY_SPOOL_MIB": lambda environ: _number(environ, "STABILITY_SPOOL_MIB", DEFAULT_SPOOL_MIB, 2),
    "STABILITY_DRAIN_S": lambda environ: _number(environ, "STABILITY_DRAIN_S", DEFAULT_DRAIN_S, 0),
    "STABILITY_FINISH_S": lambda environ: _number(environ, "STABILITY_FINISH_S", DEFAULT_FINISH_S, 0),
    "STABILITY_DUMP_SIGNAL": lambda environ: _signal_number(environ["STABILITY_DUMP_SIGNAL"]),
    "STABILITY_FACTS": lambda environ: _switch(environ, "STABILITY_FACTS"),
    **{name: _whole_in(name) for name in RANK_VARIABLES},
}
