"""Spells every Redis key, and nothing else does.

All keys of a run carry the hash tag ``{run_id}``, so in a Redis Cluster a run lives in one slot: one script can touch
several of its keys, and runs spread over the cluster.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from stabilitybackend.base.errors import BadRequest

__all__ = [
    "ALERT_MUTES",
    "ALERT_RATINGS",
    "ALERT_ROUTES",
    "API_KEYS",
    "API_KEYS_OPEN",
    "API_KEYS_USED",
    "AUDIT", "DURABLE",
    "FLEET_CATEGORIES",
    "FLEET_GPU_FAULTS",
    "FLEET_INTERRUPTIONS",
    "FLEET_NODES",
    "FLEET_ROLLBACKS",
    "INSTALLATION",
    "MAX_ID_CHARS",
    "MAX_REPORTS",
    "MEMBERS",
    "PROBE",
    "PROPOSALS",
    "QUIET",
    "RELAY",
    "RUNS",
    "RUNS_ACTIVE",
    "RUNS_FOLLOWED",
    "RUNS_LIVE",
    "RUNS_WITH_INCIDENTS",
    "SERVER",
    "SIGN_INS",
    "VIEWS",
    "RunKeys",
    "check_run_id",
    "check_source_id",
    "inbox_key",
    "is_of_file",
    "session_key",
]  # fmt: skip

#: Reports kept of a run (``RunKeys.reports``). A thousand nodes report a thousand times a second: some seconds of them.
MAX_REPORTS = 8_192
#: Sorted set: run id by created time (unix seconds). The index of all runs.
RUNS = "sb:runs"
#: Sorted set: run id by the time of its last message (unix seconds), some seconds late at most.
RUNS_ACTIVE = "sb:runs:heard"
#: Sorted set: run id by the time (unix seconds) since which its followed log is read live. Other imports send no alert.
RUNS_FOLLOWED = "sb:runs:followed"
#: Sorted set: run id by the time of its last changed incident (unix seconds). Alerting reads these runs.
RUNS_WITH_INCIDENTS = "sb:runs:incidents"
#: Sorted set: run id by the time (unix seconds) since which a worker has to follow it; not where one process does all.
RUNS_LIVE = "sb:runs:live"
#: Hash: API key id -> JSON of its hash, name, scopes, created and revoked time (auth.py).
API_KEYS = "sb:keys"
#: String: unix seconds since which loopback needs no key, though there were some (``keys open``); a new key deletes it.
API_KEYS_OPEN = "sb:keys:open"
#: Hash: API key id -> unix seconds of its last use, at most one minute late.
API_KEYS_USED = "sb:keys:used"
#: String: unix seconds at which a server last found that Redis takes writes (storing.py).
PROBE = "sb:probe"
#: Hash, gone some seconds after its last renewal: the server that works here, and its token (server_claim.py).
SERVER = "sb:server"
#: Hash: id of a process -> time of its entry by Redis' clock, and the process as JSON (scale/members.py).
MEMBERS = "sb:members"
#: String: the id of the installation, which its archive holds too (runs/archiving/installation.py).
INSTALLATION = "sb:installation"
#: String: the secret with which processes sign forwarded requests (relay/signer.py).
RELAY = "sb:relay"
#: String: written to learn whether Redis wrote to its disk and its replicas (ingest/durability.py).
DURABLE = "sb:durable"
#: Sorted set: run id, a blank, proposal id, by its expiry (unix seconds): open proposals (proposals.py).
PROPOSALS = "sb:proposals"
#: Stream: audited actions on runs, keys and sessions (audit.py). Stays when a run goes.
AUDIT = "sb:audit"
#: Hash: GPU's UUID | run id | key of the fault -> fault as JSON. Stays when the run goes (fleet/fleet.py).
FLEET_GPU_FAULTS = "sb:fleet:gpu_faults"
#: Hash: run id -> its interruptions and the times in which it ran, as JSON. Stays when the run goes.
FLEET_INTERRUPTIONS = "sb:fleet:interruptions"
#: Hash: run id -> costs of its rollbacks, as JSON. Stays when the run goes (fleet/rollback_sums.py).
FLEET_ROLLBACKS = "sb:fleet:rollbacks"
#: Hash: node -> ids of the newest runs that it was in, as JSON (fleet/catalog.py).
FLEET_NODES = "sb:fleet:nodes"
#: Hash: run id -> corrections of its interruptions, as JSON.
FLEET_CATEGORIES = "sb:fleet:categories"
#: Hash: kind, project and name of a saved view, as JSON -> View as JSON (views.py).
VIEWS = "sb:views"
#: Hash: the routes of alerts written on the page: text, author, time, version (alerts/rules.py).
ALERT_ROUTES = "sb:alerting:routes"
#: Hash: id of an incident -> rating of its alert, as JSON. Stays when the run goes (ratings.py).
ALERT_RATINGS = "sb:alerting:ratings"
#: Hash: id of a mute -> Mute as JSON.
ALERT_MUTES = "sb:alerting:mutes"
#: Stream: sign-ins that are at the OpenID provider now (the plug-in oidc). Goes ten minutes after the last began.
SIGN_INS = "sb:sign_ins"
#: A stream without entries: a reader that blocks on it notices that Redis goes away.
QUIET = "sb:quiet"

#: Longest run id or source id, characters: they are part of keys and of folder names.
MAX_ID_CHARS = 128
_RUN_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_SOURCE_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")


@dataclass(frozen=True, slots=True)
class RunKeys:
    """The keys of one run.

    Args:
        run_id: must have passed ``check_run_id``: a brace in it would break the hash tag.
    """

    run_id: str

    def all(self) -> list[str]:
        """Return every key that a run may have."""
        names = (name for name, value in vars(type(self)).items() if isinstance(value, property))
        return [getattr(self, name) for name in names]

    def _key(self, name: str) -> str:
        return f"sb:{{{self.run_id}}}:{name}"

    @property
    def frames(self) -> str:
        """Stream: the frames, unchanged. ``s`` source, ``a`` first seq, ``z`` last seq, ``b`` whole wire message."""
        return self._key("frames")

    @property
    def last_seq(self) -> str:
        """Hash: source -> last sequence number stored."""
        return self._key("last_seq")

    @property
    def sources(self) -> str:
        """Hash: source -> SourceInfo as JSON."""
        return self._key("sources")

    @property
    def meta(self) -> str:
        """Hash: facts of the run (project, name, config, created, ...)."""
        return self._key("meta")

    @property
    def owner(self) -> str:
        """Hash: ``token``, ``worker`` and ``address`` of who works on the run, ``epoch`` takeovers, ``full`` why no
        frame is taken now (runs/ownership).
        """
        return self._key("owner")

    @property
    def agents(self) -> str:
        """Hash: agent -> AgentAt as JSON: the door that it is connected to, and the number of the connection."""
        return self._key("agents")

    @property
    def reports(self) -> str:
        """Stream for the owner: Health, agents' coming and going, that orders wait; the newest entries."""
        return self._key("reports")

    @property
    def undone(self) -> str:
        """Set: keys of inferred segments that were undone."""
        return self._key("undone")

    @property
    def parts(self) -> str:
        """Hash: stem -> archived part as JSON. Committed in one transaction with the trim of ``frames``."""
        return self._key("parts")

    @property
    def parts_next(self) -> str:
        """Hash like ``parts``: its replacement once the run has been folded again."""
        return self._key("parts_next")

    @property
    def garbage(self) -> str:
        """Set: stems of files that were begun or replaced, and are deleted when no part names them."""
        return self._key("garbage")

    @property
    def sweeping(self) -> str:
        """Set: stems out of ``garbage`` whose files are being deleted: they can't be listed any more."""
        return self._key("sweeping")

    @property
    def snapshot(self) -> str:
        """String: the fold at one frame, for the next owner of the run (runs/archiving/restart_in_redis.py)."""
        return self._key("snapshot")

    @property
    def commands(self) -> str:
        """Hash: command id -> Command as JSON."""
        return self._key("commands")

    @property
    def orders(self) -> str:
        """Hash: name of an order that waits for an owner -> PendingCommand as JSON (runs/orders/waiting.py)."""
        return self._key("orders")

    @property
    def acknowledged(self) -> str:
        """Hash: incident id -> Acknowledgement as JSON, while the run has no owner (runs/orders/acknowledged.py)."""
        return self._key("acknowledged")

    @property
    def proposals(self) -> str:
        """Hash: proposal id -> Proposal as JSON."""
        return self._key("proposals")

    @property
    def detector_settings(self) -> str:
        """List: changes of detectors' settings as JSON: position in ``frames``, settings, who, time; newest last."""
        return self._key("detector_settings")

    @property
    def settings_waiting(self) -> str:
        """List: such changes made while the run had no owner, without a position (runs/detector_settings.py)."""
        return self._key("settings_waiting")

    @property
    def autopilot(self) -> str:
        """String: the policy of the autopilot as JSON, with who set it or ended it (runs/derived/autopilot.py)."""
        return self._key("autopilot")

    @property
    def autopilot_entries(self) -> str:
        """List: actions of the autopilot as JSON, oldest first; stored together with its commands."""
        return self._key("autopilot_entries")

    @property
    def command_audit(self) -> str:
        """Stream: changes by users, with author and time, only ever appended to.

        ``c`` a command, ``q`` a proposal, ``d`` settings, ``i`` category of an interruption, ``a`` an annotation, ``n``
        name, tags, notes, ``p`` a policy of the autopilot, ``o`` its action.
        """
        return self._key("command_audit")

    @property
    def annotations(self) -> str:
        """Hash: annotation id -> Annotation as JSON."""
        return self._key("annotations")

    @property
    def incidents(self) -> str:
        """Hash: incident id -> Incident as JSON."""
        return self._key("incidents")

    @property
    def output(self) -> str:
        """Stream: lines printed by ranks, newest ones (runs/agents). ``n`` node, ``b`` lines, ``k`` lines left out."""
        return self._key("output")

    @property
    def incident_events(self) -> str:
        """Stream: every change of an incident; alerting has its own consumer group on it."""
        return self._key("incident_events")


def session_key(digest: str) -> str:
    """Return the key of one browser's session, a string with a time to live (sessions.py)."""
    return f"sb:session:{digest}"


def inbox_key(member_id: str) -> str:
    """Return the key of the inbox of a process (scale/roles/inbox.py)."""
    return f"sb:{{{member_id}}}:inbox"


def check_run_id(run_id: str) -> str:
    """Return ``run_id`` if it can be one.

    Raises:
        BadRequest: it is empty, too long, or has a character that a key or a folder name can't carry.
    """
    return _check(run_id, "run id", _RUN_ID)


def check_source_id(source: str) -> str:
    """Return ``source`` if it can be a source id, else raise BadRequest."""
    return _check(source, "source id", _SOURCE_ID)


def is_of_file(source: str) -> bool:
    """Return whether a source is a file that was imported: its numbers follow the file's records (importers/frames.py).

    The id of a process has no dot (docs/wire.md), so that none can be numbered like a file.
    """
    return "." in source


def _check(value: str, what: str, pattern: re.Pattern[str]) -> str:
    if len(value) > MAX_ID_CHARS or not pattern.fullmatch(value):
        shown = value if len(value) <= 40 else f"{value[:40]}... ({len(value)} characters)"
        raise BadRequest(
            f"{what} {shown!r} can't be used: expected 1 to {MAX_ID_CHARS} letters, digits, '.', '_' or '-', "
            "starting with a letter or digit",
            code="bad_id",
        )
    return value
