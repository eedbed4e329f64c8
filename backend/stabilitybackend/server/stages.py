"""The stages of the core: connections, storage, runs, agents, alerting, and all that a request asks."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import OrderedDict
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.metadata import version
from typing import Any, Protocol

from fastapi import APIRouter

from stabilityalerting import Actions
from stabilitybackend.access.audit import AuditLog
from stabilitybackend.access.auth import Authenticator, KeyRing, Principal, check_exposure
from stabilitybackend.access.origins import Origins
from stabilitybackend.access.sessions import Sessions, SignedIn
from stabilitybackend.alerts.actions import AlertActions
from stabilitybackend.alerts.proposals import ProposalRegistry
from stabilitybackend.alerts.ratings import Ratings
from stabilitybackend.alerts.service import alert_rules, alerting_service, heartbeat, receivers
from stabilitybackend.base.collector import CycleCollector
from stabilitybackend.base.errors import RedisStartError, SettingsError
from stabilitybackend.base.judging_lag import JudgingLag
from stabilitybackend.base.loop_lag import LoopLag
from stabilitybackend.base.settings import ROLES, Settings
from stabilitybackend.base.shared_answers import SharedAnswers
from stabilitybackend.base.steady_clock import SteadyClock
from stabilitybackend.base.tasks import Watched, end
from stabilitybackend.ingest.durability import Durability
from stabilitybackend.ingest.gateway import Gateway, RunServices, router
from stabilitybackend.ingest.ingest import Beside, Ingest
from stabilitybackend.judging.liveness.budgets import Limits
from stabilitybackend.plugins import Plugins
from stabilitybackend.run_table.digest_updates import DigestUpdater
from stabilitybackend.run_table.table import RunTables
from stabilitybackend.runs.archiving.archiver import ArchiveFiles
from stabilitybackend.runs.archiving.installation import Installation
from stabilitybackend.runs.archiving.restart_files import RestartShare
from stabilitybackend.runs.archiving.retention import Retention
from stabilitybackend.runs.derived.unknown_costs import work_out
from stabilitybackend.runs.feed.pubsub import Channel
from stabilitybackend.runs.index import RunIndex
from stabilitybackend.runs.manager import RunManager
from stabilitybackend.runs.ownership.fence import ANY, Ownership
from stabilitybackend.schema.health import TYPED_HEALTH
from stabilitybackend.schema.runs import StoringProblem
from stabilitybackend.schema.series import ExportProgress
from stabilitybackend.schema.server import ErrorFacts, OidcWay, RetainedRun
from stabilitybackend.server.metrics import ServerMetrics, registry
from stabilitybackend.server.problems import in_one_line, server_problems
from stabilitybackend.server.reading import ReadingThreads, Trials
from stabilitybackend.server.stage import Stage
from stabilitybackend.storage.archive.cache import ByteCache
from stabilitybackend.storage.archive.location import open_location
from stabilitybackend.storage.redis_link import check_server, make_redis
from stabilitybackend.storage.redis_link.server_lease import ServerLease
from stabilitybackend.storage.storing import Storing
from stabilitybackend.storage.views import SavedViews

MIB = 1024 * 1024
#: Redis connections for frames (one writer), keys, and agents' numbers.
INGEST_CONNECTIONS = 8
#: Redis connections of alerting: each receiver blocks on one and logs its messages on another.
ALERTING_CONNECTIONS = 16
#: Exports whose progress is kept, the newest ones.
MAX_EXPORTS = 64
#: Alerting has so many seconds to finish a message when the server stops.
SEND_END_S = 2.0

_log = logging.getLogger(__name__)


@dataclass(frozen=True, eq=False)
class Options:
    """Options of a process.

    Args:
        redis_url: the Redis or Valkey that holds the runs (the embedded one's, where that is used).
        plugins: of this process; their tables are filled.
        collector: of a process that serves this application alone; None leaves Python's garbage collector alone.
        lease: of a server without roles on its Redis, taken; renewed while the server runs.
        installation: the owner of the archive, checked; checked again while the server runs.
    """

    settings: Settings
    redis_url: str
    plugins: Plugins
    collector: CycleCollector | None = None
    lease: ServerLease | None = None
    installation: Installation | None = None
    version: str = field(default_factory=lambda: version("stabilityboard"))

    @property
    def address(self) -> str:
        """Where other processes reach this one."""
        return self.settings.advertise_url or f"http://{self.settings.host}:{self.settings.port}"

    def check_replaced(self, stage: Stage, by_default: type[Stage], setting: str, plug_in: str) -> None:
        """Raise SettingsError where a setting needs a stage of a plug-in, and the stage is that of the core."""
        if getattr(self.settings, setting) and type(stage) is by_default:
            raise SettingsError(
                f"setting {setting} needs the plug-in {plug_in}, which is not loaded",
                hint=f"name {plug_in} in STABILITY_INSTALLED_PLUGINS, or unset that",
                setting=setting,
            )

    def has(self, *roles: str) -> bool:
        """Return whether this process has one of some roles; without any set it has all."""
        return bool({*roles} & {*(self.settings.role or ROLES)})


class Connections(Stage):
    """The Redis clients; heavy reading keeps neither frames nor alerts waiting."""

    def __init__(self, options: Options) -> None:
        self._url = options.redis_url
        self.redis = make_redis(self._url)
        self.ingest = make_redis(self._url, connections=INGEST_CONNECTIONS)
        self.alerting = make_redis(self._url, connections=ALERTING_CONNECTIONS)
        self.probe = make_redis(self._url, connections=1)
        self.durability = make_redis(self._url, connections=1)

    async def start(self) -> None:
        """Check the version and settings of Redis. Raises RedisStartError where it can't be used."""
        try:
            await check_server(self.redis, self._url)
        except RedisStartError as error:
            if error.code != "redis_away":
                raise
            # It answered ``up`` a moment ago: the server waits for it, as it does while it runs.
            _log.warning("%s; the server goes on when it is back", error.message)

    async def stop(self) -> None:
        """Close the clients."""
        for client in (self.durability, self.probe, self.alerting, self.ingest, self.redis):
            await client.aclose()


class Membership(Stage):
    """How this process takes runs: alone, under the lease of its server on the Redis."""

    def __init__(self, options: Options, connections: Connections) -> None:
        options.check_replaced(self, Membership, "role", "scale")
        self._lease = options.lease
        self._connections = connections
        self.ownership = Ownership(replaceable=self._may_replace)

    async def _may_replace(self, run_id: str) -> str:
        if self._lease is not None:
            await self._lease.may_take_runs(self._connections.redis)
        return ANY

    def takes_part(self) -> bool:
        """Return whether this process may work with the others."""
        return True

    def problem(self, now: float) -> StoringProblem | None:
        """Return a problem between the processes of the server, None for none. ``now``: unix seconds."""
        return None

    def on_change(self, call: Callable[[], None]) -> None:
        """Call ``call`` when processes come or go."""

    def work(self) -> Mapping[str, Coroutine[Any, Any, object]]:
        """Return the renewal of the lease."""
        return {} if self._lease is None else {"server-lease": self._lease.keep(self._connections.probe)}

    async def stop(self) -> None:
        """Give the lease back."""
        if self._lease is not None:
            await self._lease.release(self._connections.redis)


class Storage(Stage):
    """Whether frames are stored, and the time on which all processes agree."""

    def __init__(self, options: Options, connections: Connections, membership: Membership) -> None:
        clock, several = SteadyClock(time.time), bool(options.settings.role)
        self.storing = Storing(connections.probe, clock, several=several, beside=membership.problem)
        membership.on_change(self.storing.notify)

    async def start(self) -> None:
        """Compare the clock with that of Redis."""
        await self.storing.probe()

    def work(self) -> Mapping[str, Coroutine[Any, Any, object]]:
        """Return the probe."""
        return {"storing": self.storing.follow()}


class SignIn(Stage):
    """Sign-in with keys; a plug-in replaces it for sign-in at a provider."""

    def __init__(self, options: Options, connections: Connections) -> None:
        options.check_replaced(self, SignIn, "oidc_issuer", "oidc")

    def principal(self, person: SignedIn) -> Principal | None:
        """Return the rights of a person who signed in before, None for none any more."""
        return None

    async def provider(self, refused: str) -> OidcWay | None:
        """Return the provider for the page of the login, None for none. ``refused``: code of a refused sign-in."""
        return None

    async def sign_out_url(self, person: SignedIn) -> str | None:
        """Return the provider's page that ends a sign-in there."""
        return None


class Access(Stage):
    """Keys, sessions, origins and the audit log."""

    def __init__(self, options: Options, connections: Connections, sign_in: SignIn) -> None:
        settings = options.settings
        self._settings = settings
        self._ring = KeyRing(connections.ingest)
        self.sessions = Sessions(connections.ingest)
        key_needed = settings.exposed or settings.people_sign_in
        self.authenticator = Authenticator(self._ring, self.sessions, key_needed=key_needed, people=sign_in.principal)
        self.origins = Origins.of(settings)
        self.audit = AuditLog(connections.redis)

    async def start(self) -> None:
        """Refuse to serve other machines without a key. Raises SettingsError."""
        await check_exposure(self._settings, self._ring)


class Runs(Stage):
    """The runs that this process follows, and their archive."""

    def __init__(self, options: Options, connections: Connections, membership: Membership, storage: Storage) -> None:
        settings, storing = options.settings, storage.storing
        self._options = options
        self._probe = connections.probe
        self.index = RunIndex(connections.redis)
        restart = RestartShare(in_redis=True) if settings.role else RestartShare(settings.data_dir / "restart")
        cache = ByteCache(int(settings.cache_mib * MIB))
        self.manager = RunManager(
            connections.redis,
            storing.now,
            ArchiveFiles(open_location(settings.archive), cache, storing.now, restart=restart),
            int(settings.window_mib * MIB),
            Limits(
                hang_floor_s=settings.hang_floor_s,
                hang_ceiling_s=settings.hang_ceiling_s,
                agent_lost_s=settings.agent_lost_s,
            ),
            membership.ownership,
            two_persons=settings.two_persons,
            lag=JudgingLag(storing.redis_now),
        )
        storing.watch(self.manager.note_storing)

    async def start(self) -> None:
        """Take up the runs that were live when the server stopped."""
        if self._options.has("worker", "pages", "alerting"):
            await self.manager.start()

    def work(self) -> Mapping[str, Coroutine[Any, Any, object]]:
        """Return the check of the archive's owner."""
        installation = self._options.installation
        return {} if installation is None else {"installation": installation.follow(self._probe)}

    async def stop(self) -> None:
        """Stop all workers."""
        await self.manager.stop()


class Feed(Protocol):
    """The messages of one run for its browsers."""

    @property
    def channel(self) -> Channel: ...

    @property
    def cursor(self) -> str: ...

    @property
    def storing_problem(self) -> StoringProblem | None: ...


class AnyRetention(Protocol):
    """Removes old runs; see ``Retention``."""

    async def apply(
        self, days: float, *, who: str, key_id: str | None = None, dry_run: bool = False, project: str | None = None
    ) -> list[RetainedRun]: ...


class Neighbours(Stage):
    """The work that other processes do for this one; here none: every run is its own.

    Attributes:
        agents: takes agents' connections. passes_on: it decodes no Health.
        news: returns the runs with new state in other processes, None where the runs table asks Redis itself.
    """

    news: Callable[[], set[str]] | None = None
    passes_on = False

    def __init__(self, runs: Runs) -> None:
        self._manager = runs.manager
        self.agents: RunServices = runs.manager

    def beside(self) -> Beside | None:
        """Return the taker of frames that this process stores for its own runs."""
        return self._manager.arrivals.handed

    def owner_seen(self, run_id: str, worker: str, full: str) -> None:
        """Note the owner of a run, as Redis answers it with each stored frame."""

    async def own_feed(self, run_id: str, cursor: str | None) -> Feed:
        """Return the feed of a run that this process follows or reads."""
        return await self._manager.get(run_id)

    async def feed(self, run_id: str, cursor: str | None) -> Feed:
        """Return the feed of a run from its owner, at or after a cursor that a browser has."""
        return await self.own_feed(run_id, cursor)

    def actions(self, here: AlertActions) -> Actions:
        """Return the actions of messages, carried out by the owner of a run."""
        return here

    def retention(self, here: Retention) -> AnyRetention:
        """Return the removal of old runs of all processes."""
        return here


class Intake(Stage):
    """Agents' connections and the writer of their frames."""

    def __init__(
        self, options: Options, connections: Connections, storage: Storage, access: Access, neighbours: Neighbours
    ) -> None:
        storing = storage.storing
        self._is_open = options.has("door")
        self._ingest = Ingest(
            connections.ingest,
            refused=storing.failed,
            owner_seen=neighbours.owner_seen,
            beside=neighbours.beside(),
        )
        self.gateway = Gateway(
            self._ingest,
            access.authenticator,
            neighbours.agents,
            server_version=options.version,
            clock=storing.now,
            takes_output=True,
            types={} if neighbours.passes_on else TYPED_HEALTH,
        )
        self._durability = Durability(connections.durability, self.gateway.connections)

    async def start(self) -> None:
        """Start the writer."""
        if self._is_open:
            self._ingest.start()

    def work(self) -> Mapping[str, Coroutine[Any, Any, object]]:
        """Return the reports of durable frames."""
        return {"durability": self._durability.follow()} if self._is_open else {}

    async def stop(self) -> None:
        """Stop the writer; agents send unstored frames again."""
        await self._ingest.stop()

    def routes(self) -> Sequence[APIRouter]:
        """Return the agents' WebSocket."""
        return (router(self.gateway),) if self._is_open else ()


class Health(Stage):
    """Problems of the server, for probes and alerting."""

    def __init__(self, watched: Watched, membership: Membership, storage: Storage, runs: Runs) -> None:
        self._watched = watched
        self._membership = membership
        self._storing = storage.storing
        self._manager = runs.manager
        self.started = time.monotonic()

    def problems(self) -> list[ErrorFacts]:
        """Return why this process is not ready."""
        found = server_problems(self._manager, self._storing, self._watched)
        apart = self.between_processes()
        return found if apart is None or self._membership.takes_part() else [*found, _as_fact(apart)]

    def watch(self, task: asyncio.Task[Any]) -> None:
        """Report a task that ends by an error as a problem."""
        self._watched.add(task)

    def between_processes(self) -> StoringProblem | None:
        """Return a problem between the processes of the server."""
        return self._membership.problem(self._storing.now())

    @property
    def takes_part(self) -> bool:
        """Whether this process may work with the others."""
        return self._membership.takes_part()


class Alerting(Stage):
    """Alert routes, receivers, ratings and proposals; the messages that go out, and the buttons in them."""

    def __init__(
        self,
        options: Options,
        connections: Connections,
        membership: Membership,
        storage: Storage,
        access: Access,
        runs: Runs,
        neighbours: Neighbours,
        health: Health,
    ) -> None:
        settings, now = options.settings, storage.storing.now
        self._health = health
        self._sends = options.has("alerting")
        self._stop = asyncio.Event()
        self._sending: asyncio.Task[None] | None = None
        sinks = receivers(options.plugins.of("channels"))
        self.rules = alert_rules(connections.alerting, settings, sinks, now)
        self.ratings = Ratings(connections.redis)
        self.proposals = ProposalRegistry(connections.redis)
        actions = AlertActions(
            runs.manager,
            runs.index,
            access.audit,
            self.rules,
            self.proposals,
            self.ratings,
            self._notified,
            two_persons=settings.two_persons,
        )
        self.service = alerting_service(
            connections.alerting,
            settings,
            sinks,
            self.rules,
            self._problem,
            neighbours.actions(actions),
            clock=now,
            may_send=membership.takes_part,
        )
        self.heartbeat = heartbeat(self.service.outcomes, self._problem)

    async def _notified(self, stream: str, incident_id: str) -> list[str]:
        return await self.service.notified(stream, incident_id)

    def problems(self) -> list[ErrorFacts]:
        """Return why an incident may reach no receiver: the server is not ready, or its alerting is broken.

        A load balancer asks ``Health`` instead: agents would lose a server that stores their frames.
        """
        found = self._health.problems()
        if broken := self.service.problem():
            found.append(ErrorFacts("alerting", f"alerts may reach nobody: {broken}", "see the server's log"))
        return found

    def _problem(self) -> str:
        return in_one_line(self.problems())

    async def start(self) -> None:
        """Begin to send."""
        if self._sends:
            self._sending = asyncio.create_task(self.service.run(self._stop), name="alerting")
            self._health.watch(self._sending)

    def work(self) -> Mapping[str, Coroutine[Any, Any, object]]:
        """Return the heartbeat to a watcher outside."""
        return {"heartbeat": self.heartbeat.run(self._stop)} if self._sends and self.heartbeat is not None else {}

    async def stop(self) -> None:
        """Let the message under way end."""
        self._stop.set()
        if self._sending is not None:
            await asyncio.wait({self._sending}, timeout=SEND_END_S)
        await end(self._sending)


class RunLists(Stage):
    """The table of all runs, and work over all of them: digests, costs of rollbacks, retention."""

    def __init__(
        self,
        options: Options,
        storage: Storage,
        access: Access,
        runs: Runs,
        neighbours: Neighbours,
    ) -> None:
        self._options = options
        self._manager = runs.manager
        self.tables = RunTables(runs.manager, runs.index, news=neighbours.news)
        self._digests = DigestUpdater(runs.manager, self.tables)
        self._own_retention = Retention(runs.manager, runs.index, storage.storing.now, access.audit)
        self.retention = neighbours.retention(self._own_retention)

    def work(self) -> Mapping[str, Coroutine[Any, Any, object]]:
        """Return the work of a process that follows runs."""
        if not self._options.has("worker"):
            return {}
        found: dict[str, Coroutine[Any, Any, object]] = {
            "rollback-costs": work_out(self._manager),
            "run-digests": self._digests.follow(),
        }
        days = self._options.settings.retention_days
        return found if days is None else found | {"retention": self._own_retention.follow(days)}


class Reading(Stage):
    """Shared by all requests that read: threads, answers, exports, trials, saved views."""

    def __init__(self, connections: Connections) -> None:
        self.threads = ReadingThreads()
        self.answers = SharedAnswers()
        self.exports: OrderedDict[str, ExportProgress] = OrderedDict()
        self.trials = Trials()
        self.views = SavedViews(connections.redis)

    def remember_export(self, export_id: str, progress: ExportProgress) -> None:
        """Keep the progress of an export for those that ask for it; the oldest is dropped."""
        self.exports[export_id] = progress
        while len(self.exports) > MAX_EXPORTS:
            self.exports.popitem(last=False)


class Metrics(Stage):
    """The server's own metrics, the lateness of its event loop, and the pauses of its garbage collector."""

    def __init__(
        self,
        options: Options,
        storage: Storage,
        runs: Runs,
        intake: Intake,
        alerting: Alerting,
        reading: Reading,
    ) -> None:
        self._collector = options.collector
        self._manager = runs.manager
        self._counts = intake.gateway.counts
        self._loop_lag = LoopLag(time.monotonic)
        self.registry = registry(
            ServerMetrics(
                runs.manager,
                intake.gateway,
                storage.storing,
                alerting.service,
                self._loop_lag,
                options.collector or CycleCollector(),
                reading.answers,
            )
        )

    async def start(self) -> None:
        """Take the garbage collector over."""
        if self._collector is not None:
            self._collector.start()

    def work(self) -> Mapping[str, Coroutine[Any, Any, object]]:
        """Return the measurement of the event loop, and full collections in quiet moments."""
        found: dict[str, Coroutine[Any, Any, object]] = {"loop-lag": self._loop_lag.follow()}
        return found if self._collector is None else found | {"collector": self._collector.follow(self._is_quiet)}

    def _is_quiet(self) -> bool:
        return not (self._counts.connections or self._manager.browsers())

    async def stop(self) -> None:
        """Give the garbage collector back to Python."""
        if self._collector is not None:
            self._collector.stop()


def _as_fact(problem: StoringProblem) -> ErrorFacts:
    return ErrorFacts(problem.code, problem.problem, problem.hint)
