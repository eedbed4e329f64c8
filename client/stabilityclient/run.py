"""One training run, seen from one rank. Calls are cheap, wait for no network, and let no error of this package out."""

from __future__ import annotations

import os
import struct
from _operator import index  # operator.index without the import time of its module
from _thread import get_ident
from time import time

from stabilityclient import hooks
from stabilityclient.arguments import (
    MAX_DATASETS,
    MAX_STEP,
    by_dataset,
    cut,
    cut_inside,
    gist,
    name_in,
    not_a_mapping,
    share_in,
    step_of,
    trace_of,
    without_secrets,
)
from stabilityclient.errors import RefusedError
from stabilityclient.metrics.metric_coercion import MetricCoercion
from stabilityclient.metrics.values import Types, on_device
from stabilityclient.rank_state.phase import Phase, saves
from stabilityclient.rank_state.slot import STATE_EXCEPTION, STATE_FINISHED, STATE_LEFT
from stabilityclient.rollback.decision import NO_SAVER, Rollback, Stop
from stabilityclient.rollback.handler import RankLineage, Restoring
from stabilityclient.skipping import IN_STEPS, MOST, SIGMAS, SKIPPED, SkipRule

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping
    from types import TracebackType
    from typing import Any, TypeVar

    from stabilityclient.data.ring import BatchRing, Explain
    from stabilityclient.data.samples import Recorder
    from stabilityclient.guard import Guard
    from stabilityclient.rank_state.slot import PhaseEntry, Slot
    from stabilityclient.run_components import RunComponents
    from stabilityclient.settings import ClientSettings

    Handler = TypeVar("Handler", bound=Callable[[Rollback], object])
    Saver = TypeVar("Saver", bound=Callable[[int], object])
    Stopper = TypeVar("Stopper", bound=Callable[[Stop], object])

__all__ = ["Run"]

#: Longest text of an alert, a reason or an exception, characters. Longer ones are cut, with a mark.
MAX_TEXT_CHARS = 10_000
MAX_TITLE_CHARS = 300
MAX_PATH_CHARS = 4_096
MAX_FINGERPRINT_CHARS = 200
#: Longest position that is a text, characters.
MAX_POSITION_CHARS = 100
#: Shares add up to 1 within this: they are written with two or three digits.
SUM_ERROR = 0.01
#: Seconds that a rollback, finish() and exit wait for batches that are not hashed yet.
DATA_WAIT_S = 5.0
#: Drivers of the steps: the loop of this package, or the job's own.
STEPS = "steps()"
BOUNDARY = "boundary()"

_FORKED = (
    "this process was forked after init(), and nothing that it logs is recorded: log in the process that called "
    "init(), or start this one by the method spawn and call init() in it"
)
_SEVERITIES = ("info", "warning", "critical")


class Run:
    """One training run, seen from one rank. Made by :func:`stabilityclient.init`.

    Attributes:
        run_id: id of the run, the same on all ranks.
        folder: spool of the run on this node; None when disabled.
        stopped: the :class:`Stop` that ended training, else None. After it no loop over :meth:`steps` begins a step.
        logged_step: step of the newest :meth:`log`, -1 before the first. logged_at: its unix seconds.
    """

    # Slots of the hot path: an instance with more than 30 attributes in its dict is read more slowly.
    __slots__ = ("__dict__", "__weakref__", "_all_quick", "_append", "_sort")

    def __init__(self, settings: ClientSettings, guard: Guard) -> None:
        self.run_id = settings.run_id
        self.folder: str | None = None
        self.stopped: Stop | None = None
        self.logged_step = -1
        self.logged_at = 0.0
        self._settings = settings
        self._guard = guard
        self._components: RunComponents | None = None
        self._outcome = "disabled"
        self._finished = False
        self._preempted = ""
        #: In a forked child: the slot of the parent process.
        self._parents_slot: Slot | None = None
        # Bound once: the hot path looks up nothing that it does not need.
        self._all_quick: Callable[[Iterable[object]], bool] = Types().plain.issuperset
        self._quick = self._all_quick
        self._append: Callable[..., bool] | None = None
        self._sort: Callable[[int, float, Mapping[str, Any]], None] = _ignore
        self._coercion: MetricCoercion | None = None
        self._recorder: Recorder | None = None
        self._ring: BatchRing | None = None
        self._skip_rule: SkipRule | None = None
        self._lineage = RankLineage(self._event)
        self._restoring = Restoring(self._event, guard)
        #: Whether this process reported the state from which it continues.
        self._reported_restored = False
        #: Phases that save -> seconds spent in them up to the last checkpoint.
        self._saving: Mapping[PhaseEntry, float] = {}
        #: STEPS or BOUNDARY while steps run, else "".
        self._loop = ""
        #: Whether boundary() was called in this process.
        self._begun = False
        #: Phase from the moment when boundary() returned a rollback until its state is back.
        self._restore_phase: Phase | None = None
        self._went_back: int | None = None
        #: Hook before a rollback, and the function that it returned for the time when the state is back.
        self._on_pause: Callable[[Rollback], object] | None = None
        self._resumes: object = None
        self._saver: Callable[[int], Any] | None = None
        self._stopper: Callable[[Stop], object] | None = None
        #: Saver of an integration, for a job without a function of its own, or the reason why there is none.
        self._framework_saver: Callable[[int], Any] | None = None
        self._no_saver = ""
        #: The newest report of the commands that this rank obeys.
        self._reported_commands: dict[str, Any] | None = None

    @property
    def url(self) -> str:
        """The address of the run's page."""
        return f"{self._settings.url}/runs/{self.run_id}"

    # --- values --------------------------------------------------------------------------------------------------

    def log(self, step: int, metrics: Mapping[str, Any] | None = None) -> None:
        """Store the metrics of one step.

        Numbers, NumPy scalars and tensors of one element are welcome; a tensor on a device is copied there and read
        later by another thread, so that the training thread never waits for it. NaN and infinities are stored as such.

        Args:
            step: 0 to 2**53 - 1.
            metrics: names of at most 200 characters, and their values; a mapping among these is stored as
                ``outer/inner``. Unusable values are refused (raised under pytest, else logged, each kind once a
                minute, and counted on the run's page); the rest of the call is stored.
        """
        append = self._append
        if append is None:
            self._log_unrecorded()
            return
        try:
            now = time()
            values = metrics.values()  # type: ignore[union-attr]
            if type(step) is not int or not 0 <= step <= MAX_STEP:
                step = step_of(step)
            if self._all_quick(map(type, values)):
                try:
                    append(tuple(metrics), step, now, values)  # type: ignore[arg-type]
                except (ValueError, OverflowError, struct.error):
                    self._sort(step, now, metrics)  # type: ignore[arg-type]
            else:
                self._sort(step, now, metrics)  # type: ignore[arg-type]
            if step != self.logged_step:
                # The heartbeat thread copies both to the slot within a second: a write here is a quarter of the call.
                self.logged_step = step
                self.logged_at = now
        except Exception as error:
            mapping = callable(getattr(metrics, "values", None))
            self._guard.caught("log()", error if mapping else not_a_mapping(step, metrics))

    def alert(self, title: str, text: str = "", severity: str = "warning") -> None:
        """Raise an alert. ``severity``: ``info``, ``warning`` or ``critical``."""
        try:
            if severity not in _SEVERITIES:
                raise RefusedError([f"severity is {severity!r}, expected one of {', '.join(_SEVERITIES)}"])
            data = {"title": cut(title, MAX_TITLE_CHARS), "text": cut(text, MAX_TEXT_CHARS), "severity": severity}
            self._event("alert", self._current_step(), data)
        except Exception as error:
            self._guard.caught("alert()", error)

    def phase(self, name: str, expect_s: float | None = None) -> Phase:
        """Return a context manager: inside it this rank is in phase ``name``.

        Args:
            name: ``data``, ``forward``, ``backward``, ``optimizer``, ``checkpoint``, ``eval``, ``compile`` or any
                other.
            expect_s: longest usual duration, seconds; a longer phase is reported as a hang.
        """
        parts = self._components
        return Phase(None if parts is None else parts.slot, self._guard, name, expect_s)

    # --- declarations --------------------------------------------------------------------------------------------

    def update_config(self, values: Mapping[str, Any]) -> None:
        """Add to the config that ``init()`` was given; an existing key gets the new value.

        Each call makes the node's agent introduce the run to the server again: call it rarely.

        Args:
            values: anything that JSON can hold; other things become their text.
        """
        parts = self._components
        if parts is None:
            return
        try:
            from stabilityclient.start import add_config

            add_config(parts.folder, values, lambda text: self._guard.note("update_config()", text))
        except Exception as error:
            self._guard.caught("update_config()", error)

    def names(
        self,
        *,
        loss: str | None = None,
        grad_norm: str | None = None,
        lr: str | None = None,
        batch_size: str | None = None,
        val_loss: str | None = None,
        tokens_per_s: str | None = None,
        step_time_s: str | None = None,
        losses: Mapping[str, str] | None = None,
        ratio: Mapping[str, str] | None = None,
        tokens: Mapping[str, str] | None = None,
        samples: Mapping[str, str] | None = None,
    ) -> None:
        """Declare the role of metrics whose names do not show it.

        Usual names (``train/loss``, ``learning_rate``, ...) need no call. A declared name that is never logged is
        reported on the run's page.

        Args:
            loss, grad_norm, lr, batch_size, val_loss: names of metrics.
            tokens_per_s: any speed, whose unit does not matter. step_time_s: seconds of a step.
            losses: data set -> the metric that is its loss.
            ratio: data set -> the metric with its share of the data, of 1 or in percent.
            tokens, samples: data set -> the metric that counts its tokens or samples, in each row or since the start.
        """
        roles = {
            "loss": loss, "grad_norm": grad_norm, "lr": lr, "batch_size": batch_size, "val_loss": val_loss,
            "tokens_per_s": tokens_per_s, "step_time_s": step_time_s,
        }  # fmt: skip
        sets = {"loss": losses, "ratio": ratio, "tokens": tokens, "samples": samples}
        try:
            data = {
                "roles": {role: name_in(role, metric) for role, metric in roles.items() if metric is not None},
                "datasets": {role: by_dataset(role, some) for role, some in sets.items() if some is not None},
            }
            self._event("names", None, data)
        except Exception as error:
            self._guard.caught("names()", error)

    def mixture(self, shares: Mapping[str, float], *, unit: str = "tokens", step: int | None = None) -> None:
        """Declare the intended share of each data set; the logged shares are compared with it.

        The actual shares come from metrics: ``tokens/<data set>`` or ``samples/<data set>`` (in each row, or growing),
        or shares such as ``ratio/<data set>``; :meth:`names` declares others. A later call is a new target; call it
        once for tokens and once for samples where both are meant.

        Args:
            shares: data set -> share; all of them, together 1.
            unit: ``tokens`` or ``samples``.
            step: first step of these shares, for a schedule; None: the next step.
        """
        try:
            if unit not in ("tokens", "samples"):
                raise RefusedError([f"unit is {unit!r:.80}, expected 'tokens' or 'samples'"])
            given = {name_in("a data set", one): share_in(one, share) for one, share in shares.items()}
            whole = sum(given.values())
            if not 1 <= len(given) <= MAX_DATASETS or abs(whole - 1) > SUM_ERROR:
                raise RefusedError(
                    [f"{len(given)} shares add up to {whole:.6g}, expected 1 to {MAX_DATASETS} that add up to 1"]
                )
            data = {"shares": {one: share / whole for one, share in given.items()}, "unit": unit}
            self._event("mixture", None if step is None else step_of(step), data)
        except Exception as error:
            self._guard.caught("mixture()", error)

    # --- data of a step ------------------------------------------------------------------------------------------

    def batch(self, step: int, fingerprint: object) -> None:
        """Report the data of ``step``, e.g. a hash of its sample ids: finds data that is seen twice.

        :meth:`data` makes the fingerprint from the ids, and finds samples that come again in other batches, too.
        """
        try:
            self._append_batch(step_of(step), time(), {"fingerprint": cut(fingerprint, MAX_FINGERPRINT_CHARS)})
        except Exception as error:
            self._guard.caught("batch()", error)

    def data(
        self,
        step: int,
        *,
        ids: Any = None,
        epoch: float | None = None,
        position: int | str | None = None,
        tokens: int | None = None,
    ) -> None:
        """Report the data of ``step`` on this rank: finds batches and samples that are seen twice or left out.

        Call it on one rank of each data-parallel group: the parts of all ranks are put together. Values on a device
        are not waited for, and another thread does the hashing.

        Args:
            step: 0 to 2**53 - 1; several calls for one step add up.
            ids: names of the samples: a list of whole numbers or texts, an array or tensor of them, or the batch
                itself, an array or tensor of tokens with a row for each sample (of long rows some tokens are looked
                at). ``{data set: ids}`` where several are mixed.
            epoch: number of the pass over the data. The same batch in another epoch is then no problem.
            position: state of this rank's loader: a number that grows, such as the samples handed out so far, or a
                text of at most 100 characters. Compared when the job resumes from a checkpoint.
            tokens: number of tokens of this rank's part, where ``ids`` does not show it.
        """
        if self._components is None:
            return
        try:
            now = time()
            number = step_of(step)
            facts = _data_facts(epoch, position, tokens)
            if ids is None:
                self._append_batch(number, now, facts)
                return
            from stabilityclient.data.samples import taken  # here: most jobs never need it

            if not self._recorder_of().put(number, now, facts, taken(ids)):
                self._guard.note("data()", "batches arrive faster than they are hashed: some are dropped")
        except Exception as error:
            self._guard.caught("data()", error)

    def keep_batches(self, explain: Explain, *, last: int = 8, on_spike: bool = False) -> None:
        """Offer the newest batches for inspection; hand each one to :meth:`keep_batch`.

        The answer of ``explain`` is sent to the server and stored as long as the run: leave out anything that may not
        leave the job. It is called on request only, in the training thread between two steps, for 5 s at most if it
        is a generator: without random numbers, gradients and collectives, since other ranks may be elsewhere.

        Args:
            explain: gets a batch of :meth:`keep_batch` and yields a dict for each sample, with any of ``id``,
                ``dataset``, ``loss``, ``text`` (shown as its first and last 1,000 characters), ``shape``, and
                ``tokens``, of which only the number and the share that is repeated are sent.
            last: number of batches that are kept alive, 1 to 256.
            on_spike: also when a spike, a divergence or a loss of NaN is found, without a request.
        """
        parts = self._components
        if parts is None:
            return
        try:
            from stabilityclient.data.ring import EXPLAIN_S, MAX_LAST, BatchRing
            from stabilityclient.rollback.command_files import CommandFiles

            if not callable(explain):
                raise RefusedError([f"explain is {explain!r:.80}, expected a function of a batch"])
            if type(last) is not int or not 1 <= last <= MAX_LAST:
                raise RefusedError([f"last is {last!r:.80}, expected a number of batches from 1 to {MAX_LAST}"])
            self._close_ring()
            self._ring = BatchRing(
                explain,
                last,
                CommandFiles(parts.folder),
                self._event,
                self._restoring.report,
                lambda: self.phase("explain_batches", 2 * EXPLAIN_S),
                (lambda text: self._guard.note("keep_batches()", text)) if on_spike else None,
            )
            parts.boundary.offer(keeps_batches=True)
            self._event("keeps_batches", None, {"last": last, "on_spike": bool(on_spike)})
        except Exception as error:
            self._guard.caught("keep_batches()", error)

    def keep_batch(self, step: int, batch: object) -> None:
        """Retain a batch for :meth:`keep_batches`, a reference and no copy, and answer open requests.

        Args:
            step: of the batch; call it once a step, from the thread that trains.
            batch: argument of ``explain``. Best on the CPU, and nothing that the next step overwrites. It may contain
                the losses of its samples: computed later, they would be those of later weights.
        """
        ring = self._ring
        if ring is None:
            return
        try:
            ring.put(step, batch)
        except Exception as error:
            self._guard.caught("keep_batch()", error)

    def _close_ring(self) -> None:
        if self._ring is not None:
            self._ring.close()
            self._ring = None

    def _recorder_of(self) -> Recorder:
        if self._recorder is None:
            from stabilityclient.data.samples import Recorder

            self._recorder = Recorder(
                self._append_batch, lambda error: self._guard.note("data()", f"a batch was refused: {error}")
            )
        return self._recorder

    def _append_batch(self, step: int, when: float, data: dict[str, object]) -> None:
        parts = self._components
        if parts is not None:
            parts.spool.append_event("batch", step, when, data)

    # --- skipped updates -----------------------------------------------------------------------------------------

    def skip_limits(self, most: int = MOST, in_steps: int = IN_STEPS, sigmas: float = SIGMAS) -> None:
        """Set the limits of :meth:`should_skip`, before its first call and identically on all ranks.

        Args:
            most: skips in any ``in_steps`` steps, 0 to 100. One more ends skipping for this process.
            in_steps: 1 to 1,000,000.
            sigmas: distance of an outlier from the usual level, robust standard deviations, 3 to 100.
        """
        try:
            given = {"most": (most, 0, 100), "in_steps": (in_steps, 1, 1_000_000), "sigmas": (sigmas, 3, 100)}
            wrong = [
                f"{name} is {value!r:.80}, expected {low} to {high:,}"
                for name, (value, low, high) in given.items()
                if isinstance(value, bool) or not isinstance(value, int | float) or not low <= value <= high
            ]
            if self._skip_rule is not None:
                wrong.append("skip_limits() came after should_skip(), expected before its first call")
            if wrong:
                raise RefusedError(wrong)
            self._skip_rule = SkipRule(int(most), int(in_steps), float(sigmas))
        except Exception as error:
            self._guard.caught("skip_limits()", error)

    def should_skip(self, step: int, loss: float, grad_norm: float | None = None) -> bool:
        """Return whether to leave out the optimizer's update of a step; call it on every rank, once a step.

        All ranks get the same answer if they pass the same numbers: the mean loss and the norm of the gradients *after*
        their reduction over all ranks, as plain numbers. A rank's own loss would make one rank skip and the others
        not, and their weights would differ from then on. It waits for nothing, and works in the same way where nothing
        is recorded. A skip is logged as the metric ``skipped_updates``; at the limit it raises an alert and never skips
        again in this process.

        Args:
            step: a repeated step means that the run went back: all later steps are forgotten.
            loss: not finite counts as an outlier. grad_norm: before clipping.
        """
        rule = self._skip_rule
        if rule is None:
            rule = self._skip_rule = SkipRule()
        try:
            if on_device(loss) or on_device(grad_norm):
                raise RefusedError(
                    ["loss or grad_norm is on a device, expected plain numbers: call .item() on the reduced value"]
                )
            value = float(loss)
            norm = None if grad_norm is None else float(grad_norm)
            ended = rule.ended
            skip = rule.skips(step_of(step), value, norm)
        except Exception as error:
            self._guard.caught("should_skip()", error)
            return False
        if skip:
            self.log(step, {SKIPPED: rule.skipped})
        elif rule.ended != ended:
            self.alert("No update is skipped any more", rule.ended)
        return skip

    # --- saved and restored state --------------------------------------------------------------------------------

    def checkpoint(self, step: int, path: str | os.PathLike[str], *, before_step: bool = False) -> None:
        """Report that the state after ``step`` is saved at ``path``: a target of rollbacks.

        Call it right after saving: a digest of the random number generators' states (some 0.1 ms) goes with it, and is
        compared when the job resumes from here. From another thread than the one that steps nothing goes with it:
        training has gone on since. The duration of the save goes with it where it was, or is, inside a phase with
        ``checkpoint``, ``ckpt`` or ``save`` in its name.

        The node's agent inspects the files, and whether all of them are there: a save that continues in the background
        may be announced when it begins.

        Args:
            step: whose state it is.
            path: file, folder or URL (s3://, gs://, az://; without its user and query, which may be secrets).
            before_step: the state is that *before* ``step``, as nanoGPT saves it: the checkpoint is one of the step
                before, and training resumes with ``step``.
        """
        try:
            text = os.fspath(path)
            if not isinstance(text, str) or not 1 <= len(text) <= MAX_PATH_CHARS:
                raise RefusedError(
                    [f"checkpoint path is {path!r:.80}, expected a path of 1 to {MAX_PATH_CHARS} characters"]
                )
            text = without_secrets(text) if "://" in text else os.path.abspath(text)
            owner = 0 if self._components is None else self._components.slot.owner
            random = self._random_states() if owner in (0, get_ident()) else {}
            at = step_of(step)
            if before_step and at == 0:
                raise RefusedError(["checkpoint step is 0 with before_step=True, expected 1 or more"])
            data = {"path": cut(text, 2 * MAX_PATH_CHARS), **random, **self._save_time()}
            self._event("checkpoint", at - 1 if before_step else at, data)
        except Exception as error:
            self._guard.caught("checkpoint()", error)

    def restored(self, rollback: Rollback | int, *, applied: Mapping[str, Any] | None = None) -> None:
        """Report that a state is back, right after its load: its random numbers are compared with those saved.

        For a rollback command this completes it, and the next row is in the new segment. A process that uses
        :meth:`steps` or :meth:`boundary` need not report its start: the first step does.

        Args:
            rollback: the return value of :meth:`boundary` or the argument of an ``on_rollback(later=True)`` handler;
                or the step of the state that a restarted process has loaded.
            applied: changes that were made for the command.
        """
        if self._components is None:
            return
        try:
            if isinstance(rollback, Rollback):
                command, step, followed = self._restoring.noted(rollback, "restored()")
                self._end_restore()
                if not followed:
                    self._follow(rollback)
                self._restoring.acted(command, step, applied)
                self._report_restored(int(command["to_step"]))
                return
            if applied is not None:
                given = "restored() got applied= and a step"
                raise RefusedError([f"{given}, expected applied= with the rollback that was commanded"])
            self._report_restored(step_of(rollback))
        except Exception as error:
            self._guard.caught("restored()", error)

    def rolled_back(self, to_step: int, reason: str = "", **changes: Any) -> None:
        """Report that the job went back by itself: points after ``to_step`` are dead, the next ones a new segment.

        Inside a loop over :meth:`steps` the next step is then ``to_step + 1``.

        Args:
            to_step: step whose state was restored; the next point belongs to ``to_step + 1``.
            reason: free text.
            changes: differences from now on, e.g. ``lr_scale=0.5``. Call it on all ranks in the same order.
        """
        try:
            self._went_back = step_of(to_step)
            self._drain(self._went_back)
            self._lineage.declare(self._went_back, cut(reason, MAX_TEXT_CHARS), changes)
            self._report_restored(self._went_back)
        except Exception as error:
            self._guard.caught("rolled_back()", error)

    def refused(self, rollback: Rollback, why: str) -> None:
        """Report that this rank can't carry out a rollback that :meth:`boundary` returned, and continues unchanged.

        The command has failed. All ranks have agreed on it by then: refuse it on all of them.

        Args:
            why: free text.
        """
        if self._components is None:
            return
        try:
            command, step, _ = self._restoring.noted(rollback, "refused()")
            self._end_restore()
            self._restoring.report(command, "failed", f"the job refused: {cut(why, MAX_TEXT_CHARS)}", step)
        except Exception as error:
            self._guard.caught("refused()", error)

    def _save_time(self) -> dict[str, float]:
        """Return how long the save has held up training: seconds in phases that save since the last call."""
        if self._components is None:
            return {}
        slot = self._components.slot
        spent = {entry: entry.total for name, (_, entry) in list(slot.phases.known.items()) if saves(name)}
        took = sum(total - self._saving.get(entry, 0.0) for entry, total in spent.items())
        inside = slot.top.saving() if slot.top is not None and get_ident() == slot.owner else None
        if inside is not None:
            entry, took = inside
            spent[entry] = entry.total + took  # reported now
        self._saving = spent
        return {"took_s": round(took, 3)} if took >= 0.001 else {}

    def _continue_from(self, step: int, *, again: bool = False) -> None:
        """Report the state from which this rank continues, at the start of its process or (``again``) later."""
        try:
            if self._components is not None and step >= 0 and (again or not self._reported_restored):
                self._report_restored(step)
        except Exception as error:
            self._guard.caught(STEPS, error)

    def _report_restored(self, step: int) -> None:
        self._reported_restored = True
        self._event("restored", step, self._random_states())

    def _random_states(self) -> dict[str, dict[str, str]]:
        if self._components is None:
            return {}
        from stabilityclient.rank_state.random_states import random_states

        return {"rng": random_states()}

    # --- handlers of the job -------------------------------------------------------------------------------------

    def on_rollback(
        self, handler: Handler | None = None, *, can: Iterable[str] | None = None, later: bool = False
    ) -> Any:
        """Register the function that restores the job's state; it gets a :class:`Rollback`. Use as a decorator.

        For loops over :meth:`steps`. It may return the applied changes, e.g. ``{"lr_scale": 0.5}``: the rollback
        costs show them next to those of the command.

        Args:
            can: changes that it supports in addition to the step: some of ``lr_scale``, ``seed``, ``skip_batches``,
                ``skip_range``; commands with others are refused. Without it (``@run.on_rollback``) only the step is
                promised: the page offers no change, and one that comes over HTTP still reaches the handler.
            later: it only notes the command; the state is back when the job calls :meth:`restored`.
        """
        named = self._restoring.named(can)

        def register(taken: Handler) -> Handler:
            self._restoring.take(taken, named, later)
            self._offer_rollbacks()
            return taken

        return register if handler is None else register(handler)

    def can_roll_back(self, *changes: str) -> None:
        """Promise to obey the rollbacks that :meth:`boundary` returns; without it they are refused.

        Args:
            changes: supported changes in addition to the step: some of ``lr_scale``, ``seed``, ``skip_batches``,
                ``skip_range``. Commands with others are refused.
        """
        named = self._restoring.named(changes)
        if named is not None:
            self._restoring.promise(named)
            self._offer_rollbacks()

    def on_checkpoint(self, handler: Saver) -> Saver:
        """Register the function that saves a checkpoint on command. Use as a decorator.

        It gets the step whose state it is to save, on all ranks the same one, in the thread that trains, between two
        steps. The path that it returns is announced as by :meth:`checkpoint`; return None to announce it elsewhere, or
        on a rank that announces none. An exception fails the command; training continues.
        """
        self._saver = handler
        self._report_commands()
        return handler

    def on_stop(self, handler: Stopper) -> Stopper:
        """Register a function that is called on each rank at a stop command, before the loop over :meth:`steps`
        ends: it gets a :class:`Stop`. Use as a decorator.

        No job needs one: the loop ends as after its last step, ``run.stopped`` is set, and the script continues to its
        end. With :meth:`boundary` it is called before the :class:`Stop` is returned.
        """
        self._stopper = handler
        return handler

    def on_pause(self, hook: Handler) -> Handler:
        """Register a hook that warns a watchdog in this process of a rollback; use as a decorator.

        It gets the :class:`Rollback` on every rank, in the thread that trains, right before its state is restored. A
        function that it returns is called when the state is back, or the rollback has failed. For watchdogs outside
        the agent writes a file (docs/restart.md).
        """
        self._on_pause = hook
        return hook

    def _offer_rollbacks(self) -> None:
        """Let the ranks' agreement know whether this rank can carry out a rollback."""
        if self._components is not None:
            takes = {STEPS: self._restoring.has_handler, BOUNDARY: self._restoring.promised}
            self._components.boundary.offer(rollbacks=takes.get(self._loop, any(takes.values())))

    def _framework_saves(self, handler: Callable[[int], object] | None, why: str = "") -> None:
        """Register an integration's saver, for jobs that registered none.

        Args:
            handler: as of :meth:`on_checkpoint`, or None.
            why: the reason for None, half a sentence.
        """
        self._framework_saver = handler
        self._no_saver = why
        self._report_commands()

    def _saves_before(self, step: int) -> bool:
        """Return whether a checkpoint is to be saved before ``step``, for loops that draw its batch early.

        Only then may :meth:`boundary` be called so early.
        """
        return self._components is not None and self._components.boundary.saves_before(step)

    def _report_commands(self) -> None:
        """Report which commands this rank obeys, to the server and the ranks' agreement, when that changes."""
        parts = self._components
        if parts is None:
            return
        can_save = self._saver is not None or self._framework_saver is not None
        parts.boundary.offer(cannot_save="" if can_save else self._no_saver or NO_SAVER)
        if not self._loop:
            return
        commands: dict[str, Any] = {"orders": ["stop", "checkpoint_now"] if can_save else ["stop"]}
        if not can_save and self._no_saver:
            commands["why"] = {"checkpoint_now": self._no_saver}
        try:
            if commands != self._reported_commands:
                self._reported_commands = commands
                self._event("obeys", None, commands)
        except Exception as error:
            self._guard.caught("on_checkpoint()", error)

    # --- between two steps ---------------------------------------------------------------------------------------

    def steps(self, start: int, stop: int | None = None) -> Iterator[int]:
        """Yield ``start``, ``start + 1``, ... before ``stop``, and obey commands in between.

        On a rollback on which all ranks agreed, the handler of ``@run.on_rollback`` is called on every rank at the same
        step boundary, and the next step is ``to_step + 1``; likewise after :meth:`rolled_back`. The handler of
        ``@run.on_checkpoint`` saves on command. At a stop command the loop ends as after its last step, further loops
        have no steps, and ``run.stopped`` names the issuer.

        Raises:
            Exception: of the handler; the command is reported as failed.
        """
        step = index(start)
        end = None if stop is None else index(stop)
        if self.stopped is not None:
            return
        self._went_back = None
        self._enter(STEPS, step)
        try:
            while end is None or step < end:
                command = self._between(step, end)
                if command is not None:
                    if command["kind"] == "stop":
                        self._stop(command, step)
                        return
                    step = self._roll_back(command, step)
                    continue
                yield step
                if self._went_back is not None:
                    step = self._went_back
                    self._went_back = None
                step += 1
        finally:
            self._leave(step)

    def boundary(self, step: int, stop: int | None = None) -> Rollback | Stop | None:
        """Report that ``step`` would begin now, and return a command; nearly always None: the step begins.

        For the loop of a framework; it does the work of :meth:`steps` between two steps, but calls no handler of
        rollbacks. Call it on every rank before each step, in the thread that trains.

        A :class:`Rollback` is returned on all ranks or on none. The job restores its state and calls :meth:`restored`
        before it logs the next step, or :meth:`refused` with the reason; else the rollback has failed. It is
        returned only to jobs that called :meth:`can_roll_back`. After a :class:`Stop` the job ends: each
        further call returns it again.

        Args:
            step: 0 to 2**53 - 1.
            stop: first step that this loop does not run, if it has an end. With ``step`` equal to it the loop ends.
        """
        parts = self._components
        if parts is None:
            return None
        try:
            if type(step) is not int or step < 0:
                step = step_of(step)
            if self._loop != BOUNDARY and self.stopped is None:
                self._begin(step)
            if stop is not None and step >= stop:
                self._leave(step)
                return None
            if self.stopped is not None:
                return self.stopped
        except Exception as error:
            self._guard.caught(BOUNDARY, error)
            return None
        command = self._between(step, stop)
        return None if command is None else self._hand_out(command, step)

    def _enter(self, loop: str, step: int) -> None:
        """Begin steps from ``step`` on, in this thread. Imports are done by now: the environment is reported."""
        self._loop = loop
        parts = self._components
        if parts is None:
            return
        try:
            parts.enter()
            self._offer_rollbacks()
            self._report_commands()
            parts.heartbeat.report_environment(begun=True)
            if doubt := parts.boundary.doubt():
                self._guard.note(loop, f"commands are refused: {doubt}")
        except Exception as error:
            self._guard.caught(loop, error)
        if loop == STEPS or not self._begun:
            self._continue_from(step - 1)

    def _begin(self, step: int) -> None:
        """Handle the first call of boundary(), or the first after a command or the end of a loop."""
        if self._loop == STEPS:
            raise RefusedError(["boundary() came within a loop over steps(), which does the same by itself"])
        self._abandon_restore(f"step {step} began without run.restored()")
        self._enter(BOUNDARY, step)
        self._begun = True

    def _between(self, step: int, stop: int | None) -> dict[str, Any] | None:
        """Return the command on which all ranks act now; without one, let the step begin."""
        parts = self._components
        if parts is None:
            return None
        try:
            while True:
                command = parts.boundary.check(step, stop)
                if command is None:
                    parts.slot.set_step(step, time())
                if command is None or command["kind"] != "checkpoint_now":
                    return command
                if not self._save(command, step):
                    self._report(command, "acted", f"saved the state after step {step - 1}", step)
        except Exception as error:
            self._guard.caught(self._loop, error)
            return None

    def _leave(self, step: int) -> None:
        loop = self._loop
        self._loop = ""
        try:
            if self._components is not None:
                self._components.leave(step)
        except Exception as error:
            self._guard.caught(loop, error)

    def _save(self, command: dict[str, Any], step: int) -> str:
        """Save the state before ``step`` on command; return the reason of a failure, else "".

        A command must never end training: an exception of the job's function is reported, and training continues.
        """
        saver = self._saver or self._framework_saver
        assert saver is not None  # a rank without one rejects, and then no rank acts
        try:
            with self.phase("checkpoint"):
                path = saver(step - 1)
            if path is not None:
                self.checkpoint(step - 1, path)
        except Exception as error:
            problem = cut(f"the checkpoint was not saved: {type(error).__name__}: {error}", MAX_TEXT_CHARS)
            if command["kind"] == "checkpoint_now":
                self._report(command, "failed", problem, step)
            self._guard.caught("on_checkpoint()", error)
            return problem
        return ""

    def _stop(self, command: dict[str, Any], step: int) -> Stop:
        """End training: save first where the command asks for it, notify the job, and remember the command."""
        stop = Stop.of(command, step)
        self.stopped = stop  # before anything that may raise under a test
        problem = self._save(command, step) if stop.save else ""
        saved = f", {problem}" if problem else ", and saved its state" if stop.save else ""
        self._report(command, "acted", f"stopped before step {step}{saved}", step)
        try:
            if self._stopper is not None:
                self._stopper(stop)
        except Exception as error:
            self._guard.caught("on_stop()", error)
        return stop

    def _report(self, command: dict[str, Any], state: str, detail: str, step: int) -> None:
        try:
            self._restoring.report(command, state, detail, step)
        except Exception as error:
            self._guard.caught("commands", error)

    def _roll_back(self, command: dict[str, Any], step: int) -> int:
        """Call the handler of the job and return the next step."""
        self._pause(Rollback.of(command))
        try:
            with self.phase("rollback"):
                rollback, answer = self._restoring.call(command, step)
        except BaseException:
            self._resume()
            raise
        self._follow(rollback)
        if self._restoring.back(command, step, answer):
            self._resume()
            self._continue_from(rollback.to_step, again=True)
        return rollback.to_step + 1

    def _pause(self, rollback: Rollback) -> None:
        """Announce that no step begins for a while: in the slot for the agent, and to the hook of the job."""
        try:
            if self._components is not None:
                self._components.slot.pause(time())
            if self._on_pause is not None:
                self._resumes = self._on_pause(rollback)
        except Exception as error:
            self._guard.caught("on_pause()", error)

    def _resume(self) -> None:
        """Call the function that the hook returned: the state is back, or never will be."""
        resumes = self._resumes
        self._resumes = None
        try:
            if callable(resumes):
                resumes()
        except Exception as error:
            self._guard.caught("on_pause()", error)

    def _follow(self, rollback: Rollback) -> None:
        """Complete the rows logged so far, and enter the rollback's segment."""
        try:
            self._drain(rollback.to_step)
            self._lineage.follow(rollback)
        except Exception as error:
            self._guard.caught(self._loop or BOUNDARY, error)

    def _hand_out(self, command: dict[str, Any], step: int) -> Rollback | Stop | None:
        """Return the command on which all ranks agreed, even if an error occurs here: the others obey it."""
        agreed: Rollback | Stop | None = None
        try:
            self._leave(step)
            if command["kind"] == "stop":
                agreed = self._stop(command, step)
            else:
                agreed = self._restoring.hand_out(command, step)
                self._await_restore(agreed)
        except Exception as error:
            self._guard.caught(BOUNDARY, error)
        return agreed

    def _await_restore(self, rollback: Rollback) -> None:
        self._pause(rollback)
        self._restore_phase = self.phase("rollback").__enter__()
        self._quick = quick = self._all_quick

        def abandon(types: Iterable[object]) -> bool:
            # In place of the first function that log() calls: a job that waits for no state pays nothing.
            self._abandon_restore("a step was logged without run.restored()")
            return quick(types)

        self._all_quick = abandon

    def _end_restore(self) -> None:
        self._resume()
        phase = self._restore_phase
        self._restore_phase = None
        if phase is not None:
            phase.__exit__()
            self._all_quick = self._quick

    def _abandon_restore(self, why: str, *, mistake: bool = True) -> None:
        """Fail a rollback that boundary() returned and the job never completed.

        Args:
            mistake: of the job's code, which a test should see.
        """
        pending = self._restoring.abandon()
        if pending is None:
            return
        self._end_restore()
        command, step = pending
        text = f"{why}: the state of step {command['to_step']} was not reported as restored"
        self._restoring.report(command, "failed", text, step)
        if mistake:
            self._guard.caught(BOUNDARY, RefusedError([text]))

    # --- end -----------------------------------------------------------------------------------------------------

    def preempted(self, by: str = "the job") -> None:
        """Report that this process ends early on request, and is to be started again.

        Its run is then "preempted", not "finished", and the interruption is counted. A process whose Python handler ran
        for SIGTERM, or for SIGUSR1 and SIGUSR2 below Slurm, and that ends within 15 minutes needs no call.

        Args:
            by: origin of the request, in a few words.
        """
        self._preempted = cut(by, MAX_TITLE_CHARS) or "the job"

    def finish(self, timeout_s: float | None = None) -> str:
        """End the run and return when all records are delivered, or spooled if the server is away.

        Args:
            timeout_s: longest wait for the delivery, seconds; default 30 (``STABILITY_FINISH_S``).

        Returns:
            ``delivered``: the server confirmed every record of this rank. ``spooled``: they are on disk; the agent
            keeps trying for ten minutes, and ``stabilityboard import FOLDER`` delivers them later.
            ``lost``: the spool was deleted before that. ``disabled``: nothing was recorded.
        """
        parts = self._components
        if parts is None:
            return self._outcome
        self._end_steps("the job finished")
        try:
            self._drain()
            self._append = None
            self._finished = True
            parts.heartbeat.report_environment()
            by = self._preempted_by()
            self._event("preempted" if by else "finish", self._current_step(), {"by": by} if by else {})
            parts.heartbeat.publish()
            parts.slot.set_state(STATE_FINISHED)
            self._outcome = "spooled"
            if parts.sidecar is not None:
                self._outcome = self._deliver(parts, self._settings.finish_s if timeout_s is None else timeout_s)
        except Exception as error:
            self._guard.caught("finish()", error)
        finally:
            self._close(parts)
        return self._outcome

    def __enter__(self) -> Run:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None and not isinstance(error, SystemExit):
            self._on_exception(error)
            self._on_exit()
        else:
            self.finish()

    def _deliver(self, parts: RunComponents, wait_s: float) -> str:
        """Wait for the server's confirmation and return the outcome of :meth:`finish`."""
        assert parts.sidecar is not None
        left = parts.sidecar.await_delivery(parts.source, parts.spool.last_seq, wait_s)
        if not left:
            return "delivered"
        if not os.path.isdir(os.path.join(parts.folder, "sources", parts.source)):
            gone = f"the spool {parts.folder} was deleted"
            self._guard.note("finish()", f"{left} records were not delivered and are lost: {gone}")
            return "lost"
        died = parts.sidecar.problem()
        why = f"; {died}" if died else ""
        self._guard.note("finish()", f"{left} records are not delivered yet, they are in {parts.folder}{why}")
        return "spooled"

    def _end_steps(self, why: str) -> None:
        """Take votes back, and fail a rollback whose state was never restored."""
        try:
            if self._loop == BOUNDARY and self._components is not None:
                self._leave(max(0, self._components.slot.step + 1))
            self._abandon_restore(why, mistake=False)
        except Exception as error:
            self._guard.caught("finish()", error)

    def _close(self, parts: RunComponents) -> None:
        self._components = self._append = None
        hooks.unwatch(self)
        try:
            self._close_ring()
            parts.close()
        except Exception as error:
            self._guard.caught("finish()", error)

    # --- inside --------------------------------------------------------------------------------------------------

    def _open(self, parts: RunComponents) -> None:
        """Enable the run; called once by ``init()``."""
        self._components = parts
        self._guard.report_refusals(lambda text: self._event("refused", None, {"text": text}))
        self._append = parts.spool.append_row
        self._coercion = MetricCoercion(parts.spool, self._guard)
        self._sort = self._coercion.sort
        self._lineage.attach(parts.boundary, parts.slot)
        self.folder = parts.folder
        hooks.watch(self)
        self._event("start", None, {"says_orders": True})

    def _preempted_by(self) -> str:
        parts = self._components
        return self._preempted or ("" if parts is None else parts.end_signals.asked())

    def _log_unrecorded(self) -> None:
        """Warn once a minute that this call stores nothing; a run that is disabled on purpose is silent."""
        if self._finished:
            self._guard.caught("log()", RefusedError(["log() came after finish()"]))
        elif self._parents_slot is not None:
            self._guard.note("log()", _FORKED)
            slot = self._parents_slot
            self._parents_slot = None
            try:
                slot.mark_forked()
            except OSError:
                self._guard.count()

    def _event(self, kind: str, step: int | None, data: dict[str, Any]) -> bool:
        parts = self._components
        return parts is not None and parts.spool.append_event(kind, step, time(), data)

    def _current_step(self) -> int | None:
        parts = self._components
        if parts is None:
            return None
        parts.heartbeat.publish()
        return parts.slot.step if parts.slot.step >= 0 else None

    def _drain(self, to_step: int | None = None) -> None:
        """Wait for the values that other threads still read; the job goes back to ``to_step``, or ends (None)."""
        if self._recorder is not None:
            self._recorder.drain(DATA_WAIT_S)
        if self._ring is not None and to_step is not None:
            self._ring.went_back(to_step)
        if self._coercion is not None:
            self._coercion.drain()

    # --- hooks of the process ------------------------------------------------------------------------------------

    def _on_exception(self, error: BaseException) -> None:
        """Record an uncaught exception, which ends the process, in the spool and in the slot."""
        parts = self._components
        if parts is None:
            return
        try:
            kind = type(error).__name__
            text = cut_inside(str(error), MAX_TEXT_CHARS)
            data = {"type": kind, "message": text, "traceback": trace_of(error)}
            by = self._preempted_by()
            if by:
                data["preempted"] = by
            self._end_steps(f"the job ended by {kind}: {gist(text)}")
            self._event("exception", self._current_step(), data)
            parts.heartbeat.publish()
            parts.slot.set_state(STATE_EXCEPTION, f"{kind}: {gist(text)}")
            self._outcome = "exception"
        except Exception:  # the process ends with the user's exception, which must stay visible
            self._guard.count()

    def _on_exit(self) -> None:
        """Record that the process ends without finish()."""
        parts = self._components
        if parts is None:
            return
        try:
            self._end_steps("the process ended")
            self._drain()
            if self._outcome != "exception":
                by = self._preempted_by()
                if by:
                    self._event("preempted", self._current_step(), {"by": by})
            parts.heartbeat.publish()
            if self._outcome != "exception":
                parts.slot.set_state(STATE_LEFT)
        except Exception:
            self._guard.count()
        finally:
            self._close(parts)

    def _on_fork(self) -> None:
        """Let go of the files, which belong to the parent of this forked child."""
        if self._components is not None:
            self._parents_slot = self._components.slot
            self._parents_slot.close()  # in this process only
        self._components = self._append = None
        self._coercion = self._recorder = self._ring = None  # their threads stayed in the parent: nothing to wait for
        self._outcome = "disabled"


def _ignore(step: int, now: float, metrics: Mapping[str, Any]) -> None:
    """Stand in for the metric coercion of a run that is not open."""


def _data_facts(epoch: float | None, position: int | str | None, tokens: int | None) -> dict[str, object]:
    """Return the usable facts of a call of data().

    Raises:
        RefusedError: one of them is no number from 0 on, or a position too long.
    """
    facts: dict[str, object] = {}
    if isinstance(position, str):
        if not 1 <= len(position) <= MAX_POSITION_CHARS:
            given = f"position= is a text of {len(position)} characters"
            raise RefusedError([f"{given}, expected 1 to {MAX_POSITION_CHARS}, or a number from 0 on"])
        facts["position"] = cut(position, MAX_POSITION_CHARS)
        position = None
    for name, value in (("epoch", epoch), ("position", position), ("tokens", tokens)):
        if value is not None:
            if not isinstance(value, (int, float) if name == "epoch" else int) or not 0 <= value < 2**53:
                raise RefusedError([f"{name}= is {value!r:.80}, expected a number from 0 on"])
            facts[name] = value
    return facts
