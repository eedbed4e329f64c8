"""Turns arguments and environment into one checked set of settings; a wrong one stops the start."""

from __future__ import annotations

import os

from stabilityclient.arguments import mapping_of
from stabilityclient.errors import SettingError
from stabilityclient.identity import RANK_VARIABLES, Ranks, agreed_run_id, inherited, torch_identity, whole_in

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

__all__ = ["DEFAULT_URL", "ClientSettings", "node_name", "resolve", "usable"]

#: Where `stabilityboard up` listens by default.
DEFAULT_URL = "http://127.0.0.1:8080"
#: Folder for spools, relative to the working directory, unless STABILITY_DIR or dir= says otherwise.
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

#: Variables by which a launcher tells one launch from another.
_LAUNCHES = ("TORCHELASTIC_RUN_ID", "SLURM_JOB_ID", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE")
_MODES = ("online", "offline", "disabled")
_ID_CHARS = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._-")


class ClientSettings:
    """What ``init()`` works with after all checks. Plain data; ``folder`` is the run's, where the parent has one."""

    api_key: str | None
    config: dict[str, object]
    dir: str
    drain_s: float
    dump_signal: int
    facts: bool
    finish_s: float
    folder: str | None
    mode: str
    name: str
    node: str
    notes: str
    project: str
    ranks: Ranks
    run_id: str
    spool_bytes: int
    tags: list[str]
    url: str


def resolve(
    *,
    project: str | None,
    name: str | None,
    run_id: str | None,
    config: Mapping[str, object] | None,
    url: str | None,
    api_key: str | None,
    dir: str | os.PathLike[str] | None,
    environ: Mapping[str, str],
    stamp: Callable[[], str],
    tags: Iterable[str] | None = None,
    notes: str | None = None,
    facts: bool | None = None,
) -> ClientSettings:
    """Return the settings; an argument wins over the environment, the environment over the default.

    Args:
        stamp: date and random suffix of a run id that nobody chose, e.g. ``20261120-131500-9f2c``.

    Raises:
        SettingError: one of them can't work; the text names it, what was given and what is expected.
    """
    settings = ClientSettings()
    settings.mode = _mode(environ)
    settings.project = _text("project", project, "default")
    settings.name = _text("name", name, "")
    settings.url = _address(url or environ.get("STABILITY_URL") or DEFAULT_URL)
    settings.api_key = _key(api_key or environ.get("STABILITY_API_KEY"))
    settings.dir = os.path.abspath(os.fspath(dir or environ.get("STABILITY_DIR") or DEFAULT_DIR))
    settings.spool_bytes = int(_number(environ, "STABILITY_SPOOL_MIB", DEFAULT_SPOOL_MIB, 2) * 1024 * 1024)
    settings.drain_s = _number(environ, "STABILITY_DRAIN_S", DEFAULT_DRAIN_S, 0)
    settings.finish_s = _number(environ, "STABILITY_FINISH_S", DEFAULT_FINISH_S, 0)
    settings.dump_signal = _signal_number(environ.get("STABILITY_DUMP_SIGNAL") or DEFAULT_DUMP_SIGNAL)
    settings.config = mapping_of(config)
    settings.tags = _tags(tags)
    settings.notes = _text("notes", notes, "", MAX_NOTES_CHARS)
    settings.facts = _switch(environ, "STABILITY_FACTS") if facts is None else bool(facts)
    settings.ranks = Ranks(environ)
    settings.node = _node(environ)
    known = torch_identity()
    if known is not None:
        settings.ranks.take(*known, environ)
    given = run_id or environ.get("STABILITY_RUN_ID") or None
    family = inherited(environ) if settings.ranks.world_size > 1 else None
    settings.run_id = _checked_id("run_id", given) if given is not None else _made_id(settings, environ, stamp, family)
    settings.folder = family[1] if family is not None and family[0] == settings.run_id else None
    return settings


def _made_id(
    settings: ClientSettings, environ: Mapping[str, str], stamp: Callable[[], str], family: tuple[str, str] | None
) -> str:
    """Return an id that nobody chose, the same for all ranks of a job as far as they can know it."""
    mine = f"{_slug(settings.name or settings.project)}-{stamp()}"
    if settings.ranks.world_size == 1:
        return mine
    if any(name in environ for name in _LAUNCHES):
        return _shared_id(settings, environ)
    if family is not None:
        return family[0]
    if torch_identity() is not None:
        return agreed_run_id(mine)
    return _shared_id(settings, environ)


def usable(environ: Mapping[str, str], warn: Callable[[str], None]) -> dict[str, str]:
    """Return the environment without the settings that can't work, which are told: no typo may end a training.

    Args:
        warn: takes a sentence for each.
    """
    kept = dict(environ)
    for name, check in _CHECKS.items():
        try:
            if kept.get(name):
                check(kept)
        except SettingError as error:
            given = kept.pop(name)
            instead = "the default holds"
            if name == "STABILITY_RUN_ID":
                kept[name] = _slug(given)  # the same on all ranks, and after a restart
                instead = f"the run is {kept[name]}"
            elif name == "STABILITY_URL":
                kept["STABILITY_MODE"] = "offline"
                instead = "what is logged stays on this node (`stabilityboard import FOLDER` delivers it)"
            warn(f"{error}; {instead}")
    return kept


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


def _shared_id(settings: ClientSettings, environ: Mapping[str, str]) -> str:
    """Return an id on which all ranks agree without talking: from what the launcher gave each of them."""
    import hashlib

    elastic = environ.get("TORCHELASTIC_RUN_ID", "none")
    job = environ.get("SLURM_JOB_ID", "")
    if elastic != "none":
        launch = elastic
    elif job:
        launch = f"slurm {job}"
    else:
        # torchrun's defaults (id "none", port 29500) are the same for each launch: on one node its own
        # process tells two launches apart, and stays the same when it restarts its workers.
        launch = f"{environ.get('MASTER_ADDR', '')}:{environ.get('MASTER_PORT', '')}"
        if settings.ranks.one_node:
            launch += _launcher()
    digest = hashlib.sha256(f"{settings.project}\n{settings.name}\n{launch}".encode()).hexdigest()
    return f"{_slug(settings.name or settings.project)}-{digest[:10]}"


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


#: Variable -> what raises a SettingError where it can't work.
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
