"""Turns arguments and environment into one checked set of settings; a wrong one stops the start."""

from __future__ import annotations

import os

from stabilityclient.errors import SettingError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

__all__ = ["DEFAULT_URL", "ClientSettings", "Ranks", "node_name", "resolve"]

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


class Ranks:
    """Who this process is in its job, as the launcher says in the environment.

    torchrun first, then mpirun (Open MPI; MPICH and Intel MPI, whose Hydra sets PMI_ and MPI_LOCAL...), last Slurm:
    where mpirun works inside of a Slurm job, Slurm's variables are those of the batch script or of mpirun's daemons.
    Where torch.distributed is initialised already, it knows (``identity.py``). Lightning's own launcher tells the
    processes that it starts LOCAL_RANK, NODE_RANK and WORLD_SIZE, and no RANK.

    Attributes:
        rank: global rank. local_rank: rank on the node. world_size: ranks in the job.
        local_world_size: ranks on this node. generation: how often the launcher restarted the job.
        guessed: nobody gave the rank of a process that is one of several.
    """

    def __init__(self, environ: Mapping[str, str]) -> None:
        self.world_size = _whole(environ, 1, "WORLD_SIZE", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "SLURM_NTASKS")
        rank = _whole(environ, -1, "RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK", "SLURM_PROCID")
        self.local_rank = _whole(
            environ, 0, "LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID", "SLURM_LOCALID"
        )
        self.generation = _whole(environ, 0, "TORCHELASTIC_RESTART_COUNT", "SLURM_RESTART_COUNT")
        node_rank = _whole(environ, 0, "NODE_RANK", "GROUP_RANK")
        alone = self.world_size == 1 or "LOCAL_RANK" in environ
        self.guessed = rank < 0 and (node_rank > 0 or not alone)
        self.rank = max(rank, 0) if rank >= 0 or "LOCAL_RANK" not in environ else self.local_rank
        # Without the variable a job of several ranks is taken to span nodes: the careful assumption (see arbiter.py).
        self.local_world_size = _whole(
            environ, 1, "LOCAL_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE", "MPI_LOCALNRANKS", "SLURM_NTASKS_PER_NODE"
        )

    def take(self, rank: int, world_size: int, environ: Mapping[str, str]) -> None:
        """Take what torch.distributed says; of a rank whose place on its node nobody gave, the rank is taken for it."""
        if not environ.get("LOCAL_RANK") and self.world_size == 1:
            self.local_rank = rank
        self.rank, self.world_size, self.guessed = rank, world_size, False

    @property
    def one_node(self) -> bool:
        """Whether all ranks of the job share this node."""
        return self.local_world_size >= self.world_size


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
    settings.mode = environ.get("STABILITY_MODE", "online").strip().lower() or "online"
    if settings.mode not in _MODES:
        raise SettingError("STABILITY_MODE", settings.mode, "online, offline or disabled")
    settings.project = _text("project", project, "default")
    settings.name = _text("name", name, "")
    settings.url = (url or environ.get("STABILITY_URL") or DEFAULT_URL).rstrip("/")
    if not settings.url.startswith(("http://", "https://")):
        raise SettingError("url", settings.url, f"http://... or https://..., e.g. {DEFAULT_URL}")
    _check_address(settings.url)
    settings.api_key = api_key or environ.get("STABILITY_API_KEY") or None
    if settings.api_key is not None and not (settings.api_key.isascii() and settings.api_key.isprintable()):
        raise SettingError("api_key", "(hidden)", "printable ASCII characters: it travels in an HTTP header")
    settings.dir = os.path.abspath(os.fspath(dir or environ.get("STABILITY_DIR") or DEFAULT_DIR))
    settings.spool_bytes = int(_number(environ, "STABILITY_SPOOL_MIB", DEFAULT_SPOOL_MIB, 2) * 1024 * 1024)
    settings.drain_s = _number(environ, "STABILITY_DRAIN_S", DEFAULT_DRAIN_S, 0)
    settings.finish_s = _number(environ, "STABILITY_FINISH_S", DEFAULT_FINISH_S, 0)
    settings.dump_signal = _signal_number(environ.get("STABILITY_DUMP_SIGNAL") or DEFAULT_DUMP_SIGNAL)
    if config is not None and not (hasattr(config, "keys") and hasattr(config, "__getitem__")):
        raise SettingError("config", config, "a mapping of names to JSON values, or None")
    settings.config = {str(key): config[key] for key in config} if config is not None else {}
    settings.tags = _tags(tags)
    settings.notes = _text("notes", notes, "", MAX_NOTES_CHARS)
    settings.facts = _switch(environ, "STABILITY_FACTS") if facts is None else bool(facts)
    settings.ranks = Ranks(environ)
    settings.node = node_name(environ)
    from stabilityclient.identity import inherited, torch_identity  # here: the import of this package is kept short

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
    from stabilityclient.identity import agreed_run_id, torch_identity

    if torch_identity() is not None:
        return agreed_run_id(mine)
    return _shared_id(settings, environ)


def _check_address(url: str) -> None:
    """Refuse a host or a port with which the agent could only fail. By hand: urllib costs a third of our import time.

    Raises:
        SettingError: the address can't be one.
    """
    host = url.split("://", 1)[1].partition("/")[0].partition("?")[0].rpartition("@")[2]
    name, _, port = host.rpartition(":") if not host.endswith("]") and ":" in host else (host, "", "")
    bracketed = name.startswith("[") and name.endswith("]")
    plain_name = not set("[]:") & set(name) and name.isprintable() and " " not in name
    port_fits = not host.endswith(":") and (not port or (port.isdecimal() and 0 < int(port[:6]) <= 65535))
    if not name or not (bracketed or plain_name) or not port_fits:
        raise SettingError("url", url, f"a host and a port of 1 to 65535, e.g. {DEFAULT_URL}")


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
    """Return the name of this node: STABILITY_NODE, else the host name. Job and agent use the same.

    Raises:
        SettingError: STABILITY_NODE can't be part of a folder's name.
    """
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


def _whole(environ: Mapping[str, str], default: int, *names: str) -> int:
    for name in names:
        text = environ.get(name)
        if text:
            try:
                value = int(text)
            except ValueError:
                value = -1
            if value < 0:
                if name.startswith(("SLURM_", "OMPI_", "PMI_", "MPI_")):
                    continue  # e.g. "4(x2)": not meant for us
                raise SettingError(name, text, "a whole number >= 0, as torchrun sets it")
            return value
    return default


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
