"""``Unsaved``: what a rollback ordered holds over any death, once, and a bad file keeps no job from training."""

from __future__ import annotations

import json
import logging
import math
import tempfile
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import stabilityclient
from stabilityclient import Rollback
from stabilityclient.integrations.shared.unsaved import Order, Unsaved, read_orders, write_orders

#: The disk is waited for.
_ON_DISK = settings(max_examples=50, deadline=None)
_SCALES = st.none() | st.sampled_from([0.5, 0.25, 2.0])
_IDS = st.text(max_size=9)
_COUNTS = st.none() | st.integers(0, 9)
_PLACES = st.none() | st.tuples(st.integers(1, 9), st.integers(9, 99))


@pytest.fixture(scope="module")
def run() -> Any:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("STABILITY_MODE", "disabled")
        yield stabilityclient.init(project="p", run_id="r")


@_ON_DISK
@given(
    orders=st.dictionaries(
        st.text(max_size=9),
        st.tuples(_IDS, st.none() | st.floats(1e-9, 10), _COUNTS, _PLACES, _IDS, _IDS),
    )
)
def test_what_was_written_is_read(orders: dict[str, Any]) -> None:
    given = {name: Order(*values) for name, values in orders.items()}
    with tempfile.TemporaryDirectory() as folder:
        write_orders(f"{folder}/orders", given)
        assert read_orders(f"{folder}/orders") == given


_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
)
_NEARLY = st.fixed_dictionaries(
    {"command_id": _VALUES}, optional={"lr_scale": _VALUES, "skip_batches": _VALUES, "skip_places": _VALUES}
)


@_ON_DISK
@given(content=st.binary(max_size=99) | st.dictionaries(st.just("step-40"), _NEARLY | _VALUES).map(json.dumps))
def test_a_file_with_anything_in_it_orders_nothing_impossible_and_ends_no_job(run: Any, content: bytes | str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "unsaved-rollback.json")
        file.write_bytes(content if isinstance(content, bytes) else content.encode())
        unsaved = Unsaved(run)
        order = unsaved.take_up(f"{folder}/step-40", "")
        assert order is None or (
            (order.lr_scale is None or 0 < order.lr_scale < math.inf)
            and (order.skip_batches or 0) >= 0
            and (order.skip_places is None or 1 <= order.skip_places[0] <= order.skip_places[1])
        )
        unsaved.note(f"{folder}/step-40", Order("c", 0.5), "")
        assert Unsaved(run).take_up(f"{folder}/step-40", "") == Order("c", 0.5)


def test_half_a_file_is_a_warning_that_names_it(run: Any, tmp_path: Path, caplog: Any) -> None:
    Unsaved(run).note(str(tmp_path / "step-40"), Order("c", 0.5), "")
    file = tmp_path / "unsaved-rollback.json"
    file.write_bytes(file.read_bytes()[:20])
    run._guard._last.clear()
    with caplog.at_level(logging.WARNING):
        assert Unsaved(run).take_up(str(tmp_path / "step-40"), "") is None
    assert f"{file} can't be read: what a rollback ordered and no checkpoint has yet is lost" in caplog.text


@pytest.mark.parametrize("path", ["s3://bucket/step-40", "nowhere/step-40"])
def test_where_nothing_can_be_written_the_job_goes_on_with_a_warning(run: Any, path: str, caplog: Any) -> None:
    run._guard._last.clear()
    unsaved = Unsaved(run)
    with caplog.at_level(logging.WARNING):
        unsaved.note(path, Order("c", 0.5), "")
        unsaved.saved(path)
    assert f"a job that dies before its next save goes on from {path} without what was ordered" in caplog.text


class _Kept(NamedTuple):
    """A checkpoint of a job whose whole state is a rate and what was left out."""

    rate: float
    skipped: int
    ordered: str


class _Job:
    """A job that is told what to do. ``latest``: the checkpoint from which it goes on, on its disk as all of them."""

    def __init__(self, run: Any, folder: str, kept: dict[str, _Kept], latest: str) -> None:
        self._folder, self.kept, self.latest = folder, kept, latest
        self._unsaved = Unsaved(run)
        self.rate, self.skipped, ordered = kept[latest]
        order = self._unsaved.take_up(f"{folder}/{latest}", ordered)
        if order is not None:
            self._change(order)

    def _change(self, order: Any) -> None:
        self.rate *= order.lr_scale or 1.0
        self.skipped += order.skip_batches or 0

    def go_back(self, number: int, to: str, scale: float | None, skip: int | None) -> None:
        self.rate, self.skipped, ordered = self.kept[to]
        order = Order.of(Rollback(0, lr_scale=scale, skip_batches=skip, command_id=f"c{number}"))
        self._change(order)
        self._unsaved.note(f"{self._folder}/{to}", order, ordered)
        self.latest = to

    def save(self, name: str, killed: bool) -> None:
        """``killed``: before it is noted that the orders are saved."""
        self.kept[name] = _Kept(self.rate, self.skipped, self._unsaved.ordered)
        self.latest = name
        if not killed:
            self._unsaved.saved(f"{self._folder}/{name}")


_NAMES = st.sampled_from(["step-20", "step-40", "step-60"])
_ACTS = st.lists(
    st.tuples(st.just("back"), _NAMES, _SCALES, st.none() | st.integers(1, 3))
    | st.tuples(st.just("save"), _NAMES, st.booleans())
    | st.tuples(st.just("dies")),
    max_size=12,
)


@_ON_DISK
@given(acts=_ACTS)
def test_a_job_that_dies_at_any_time_comes_up_in_the_state_that_it_had(run: Any, acts: list[Any]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        job = _Job(run, folder, {name: _Kept(1.0, 0, "") for name in ("step-20", "step-40", "step-60")}, "step-60")
        for number, (act, *more) in enumerate(acts):
            if act == "back":
                job.go_back(number, *more)
            elif act == "save":
                job.save(*more)
            if act == "dies" or more[-1:] == [True]:
                before = job.rate, job.skipped
                job = _Job(run, folder, job.kept, job.latest)
                assert (job.rate, job.skipped) == before


def test_a_checkpoint_that_a_process_takes_up_instead_of_another_is_as_it_was_saved(run: Any, tmp_path: Path) -> None:
    Unsaved(run).note(str(tmp_path / "step-40"), Order("c", 0.5), "")
    other = Unsaved(run)
    assert other.take_up(str(tmp_path / "step-20"), "") is None
    other.saved(tmp_path / "step-30")
    assert [*tmp_path.iterdir()] == []
