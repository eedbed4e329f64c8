"""What log() stores, refuses and survives."""

from __future__ import annotations

import logging
import math
import os
import signal
import struct
import threading
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import stabilityclient
from stabilityclient.rank_state.slot import SlotView, read_slot
from stabilityclient.wire import PointsBlock
from support.agent.spooled import frames, stored
from support.waiting import wait_until

Start = Callable[..., stabilityclient.Run]


def test_rows_come_back_as_they_were_logged(start: Start) -> None:
    run = start()
    before = time.time()
    for step in range(20_000):
        run.log(step, {"loss": step * 0.5, "lr": 1e-3})
    run.finish()
    rows = stored(run.folder).rows()
    assert [(step, metrics) for step, _, metrics in rows] == [(n, {"loss": n * 0.5, "lr": 1e-3}) for n in range(20_000)]
    assert all(before <= when <= time.time() for _, when, _ in rows)


def test_nan_and_both_infinities_keep_their_bits(start: Start) -> None:
    run = start()
    odd_nan = struct.unpack("<d", struct.pack("<Q", 0x7FF8_0000_0000_BEEF))[0]
    run.log(0, {"a": math.nan, "b": math.inf, "c": -math.inf, "d": odd_nan, "e": -0.0})
    run.finish()
    blocks = [block for frame in frames(run.folder) for block in frame.blocks if isinstance(block, PointsBlock)]
    bits = struct.unpack("<5Q", blocks[0].values)
    assert bits == struct.unpack("<5Q", struct.pack("<5d", math.nan, math.inf, -math.inf, odd_nan, -0.0))


def test_numpy_scalars_arrays_of_one_element_ints_and_bools_are_numbers(start: Start) -> None:
    run = start()
    given: dict[str, Any] = {
        "f32": np.float32(1.5),
        "f64": np.float64(2.5),
        "i64": np.int64(3),
        "bool": np.bool_(True),
        "zero_d": np.array(4.0),
        "one": np.array([5.0]),
        "int": 6,
        "flag": False,
    }
    run.log(np.int64(7), given)
    run.log(8, given)
    run.finish()
    want = {"f32": 1.5, "f64": 2.5, "i64": 3.0, "bool": 1.0, "zero_d": 4.0, "one": 5.0, "int": 6.0, "flag": 0.0}
    assert [(step, metrics) for step, _, metrics in stored(run.folder).rows()] == [(7, want), (8, want)]


@pytest.mark.torch
def test_a_tensor_on_the_cpu_is_a_number_even_when_it_requires_grad(start: Start) -> None:
    torch = pytest.importorskip("torch")
    run = start()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        run.log(
            torch.tensor(3),
            {
                "loss": torch.tensor(1.25, requires_grad=True),
                "one": torch.tensor([2.5]),
                "half": torch.tensor(0.5, dtype=torch.bfloat16),
                "int": torch.tensor(4),
            },
        )
    with pytest.raises(stabilityclient.RefusedError, match="3 elements"):
        run.log(4, {"many": torch.ones(3)})
    run.finish()
    want = {"loss": 1.25, "one": 2.5, "half": 0.5, "int": 4.0}
    assert [(step, metrics) for step, _, metrics in stored(run.folder).rows()] == [(3, want)]


def test_ten_thousand_names_in_one_call_are_stored(start: Start) -> None:
    run = start()
    metrics = {f"layer/{index}/" + "ü" * 150: float(index) for index in range(10_000)}
    run.log(3, metrics)
    run.finish()
    rows = stored(run.folder).rows()
    assert {step for step, _, _ in rows} == {3}
    assert {name: value for _, _, row in rows for name, value in row.items()} == metrics


def test_ten_thousand_sets_of_names_are_stored_and_the_memory_for_them_is_bounded(start: Start) -> None:
    from stabilityclient.spool import MAX_CACHED_SETS

    run = start()
    for index in range(10_000):
        run.log(index, {f"name/{index}": float(index)})
    cached = len(run._components.spool._sets)
    run.finish()
    assert cached <= MAX_CACHED_SETS
    assert [metrics for _, _, metrics in stored(run.folder).rows()] == [{f"name/{i}": float(i)} for i in range(10_000)]


def test_threads_that_log_at_once_lose_nothing(start: Start) -> None:
    run = start()

    def work(thread: int) -> None:
        for step in range(3000):
            run.log(step, {f"t{thread}": float(step)})

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    dropped = run._components.spool.dropped
    run.finish()
    rows = stored(run.folder).rows()
    assert len(rows) + dropped == 12_000
    assert dropped == 0


def test_a_signal_handler_that_logs_in_the_middle_of_log_neither_blocks_nor_breaks(start: Start) -> None:
    run = start()
    before = signal.signal(signal.SIGALRM, lambda *_: run.log(0, {"from_handler": 1.0}))
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.001, 0.001)
        for step in range(20_000):
            run.log(step, {"a": 1.0})
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    dropped = run._components.spool.dropped
    run.finish()
    rows = stored(run.folder).rows()
    assert [step for step, _, metrics in rows if "a" in metrics] == list(range(20_000))
    assert dropped < 20_000


def test_a_forked_child_that_logs_leaves_the_parents_spool_alone(start: Start) -> None:
    run = start()
    run.log(0, {"a": 0.0})
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # fork beside our heart thread is the point
        pid = os.fork()
    if pid == 0:
        said: list[str] = []
        run._guard.note = lambda place, text: said.append(text)  # type: ignore[method-assign]
        for step in range(1000):
            run.log(step, {"child": 1.0})
        os._exit(0 if run.finish() == "disabled" and "forked after init()" in said[0] else 1)
    assert os.waitpid(pid, 0)[1] == 0
    slot = read_slot(next(str(path) for path in Path(run.folder).glob("sources/r*/slot")))
    assert isinstance(slot, SlotView)
    assert slot.forked
    run.log(1, {"a": 1.0})
    run.finish()
    assert [(step, metrics) for step, _, metrics in stored(run.folder).rows()] == [(0, {"a": 0.0}), (1, {"a": 1.0})]


def test_a_disabled_run_writes_nothing_and_still_steps(agents: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STABILITY_MODE", "disabled")
    run = stabilityclient.init(dir=agents)
    run.log(0, {"a": 1.0})
    with run.phase("eval"):
        run.checkpoint(0, "c")
    assert list(run.steps(3, 6)) == [3, 4, 5]
    assert (run.finish(), run.folder, agents.exists()) == ("disabled", None, False)


@pytest.mark.usefixtures("quiet")
def test_a_folder_that_cannot_be_made_is_replaced_by_the_temporary_one(
    tmp_path: Any, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("in the way")
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setenv("STABILITY_MODE", "offline")

    run = stabilityclient.init(dir=tmp_path / "file", run_id="r")
    run.log(0, {"a": 1.0})

    assert run.finish() == "spooled"
    assert run.folder == f"{tmp_path}/stability-{os.geteuid()}/r"
    assert stored(run.folder).steps() == [0]
    assert "can't be used (Not a directory): the run is spooled in" in caplog.text


@pytest.mark.usefixtures("quiet")
def test_a_folder_that_cannot_be_made_nor_the_temporary_one_disables_the_run_and_says_so_once(
    tmp_path: Any, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("in the way")
    with caplog.at_level(logging.WARNING, "stabilityclient"):
        monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "file"))
        run = stabilityclient.init(dir=tmp_path / "file")
        run.log(0, {"a": 1.0})
    assert run.finish() == "disabled"
    assert [record.message for record in caplog.records if "nothing of this process will be recorded" in record.message]
    assert len(caplog.records) == 1


def test_every_event_is_stored_in_its_place(start: Start) -> None:
    run = start()
    run.log(0, {"a": 1.0})
    run.checkpoint(0, "ckpt/0")
    run.checkpoint(0, "s3://bucket/0")
    run.batch(1, 0xABC)
    run.alert("title", "x" * 1_000_000, severity="critical")
    run.rolled_back(to_step=0, reason="loss spike", lr_scale=0.5)
    run.log(1, {"a": 2.0})
    run.finish()
    store = stored(run.folder)
    order = [event.type for event in store.events()]
    order.remove("environment")  # reported by the heartbeat thread, at its own time
    assert order == ["start", "checkpoint", "checkpoint", "batch", "alert", "segment", "restored", "finish"]
    paths = [event.data["path"] for event in store.events("checkpoint")]
    assert paths == [os.path.abspath("ckpt/0"), "s3://bucket/0"]
    assert store.events("batch")[0].data == {"fingerprint": str(0xABC)}
    alert = store.events("alert")[0]
    assert (alert.step, alert.data["severity"], len(alert.data["text"]) < 11_000) == (0, "critical", True)
    segment = store.events("segment")[0]
    assert segment.data == {
        "key": segment.data["key"],
        "to_step": 0,
        "cause": "declared",
        "reason": "loss spike",
        "command_id": None,
        "issuer": "",
        "changes": {"lr_scale": 0.5},
    }


def test_ranks_that_roll_back_alike_name_the_same_segments_without_talking(start: Start) -> None:
    keys = []
    for rank in ("a", "b"):
        run = start(run_id=rank)
        run.rolled_back(to_step=4)
        run.rolled_back(to_step=4)
        run.finish()
        keys.append([event.data["key"] for event in stored(run.folder).events("segment")])
    # SHA-256 of "\n1\n4", then of that key with the second rollback of the process.
    assert keys[0] == keys[1]
    assert keys[0][0] == "d-29160286793f5fbc"
    assert len(set(keys[0])) == 2


def test_a_clock_that_is_set_back_hides_no_step(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    run = start()
    slot = os.path.join(run.folder or "", "sources", run._components.source, "slot")
    seen = []
    for step, now in ((1, 2000.0), (2, 1000.0)):
        monkeypatch.setattr("stabilityclient.run.time", lambda now=now: now)
        run.log(step, {"a": 1.0})
        run._components.heartbeat.publish()
        seen.append((read_slot(slot).step, read_slot(slot).step_start))
    assert seen == [(1, 2000.0), (2, 1000.0)]


def test_the_heart_beats_and_the_slot_says_step_phase_and_counts(start: Start) -> None:
    run = start()
    slot = os.path.join(run.folder or "", "sources", run._components.source, "slot")
    with run.phase("eval", expect_s=30):
        with run.phase("inner"):
            assert (read_slot(slot).phase, 29 < read_slot(slot).expect_s <= 30) == ("inner", True)
        seen = read_slot(slot)
        assert (seen.phase, seen.expect_s, seen.state, seen.step) == ("eval", 30.0, 0, -1)
    run.log(41, {"a": 1.0})
    wait_until(lambda: read_slot(slot).beat >= 1 and read_slot(slot).step == 41, 5, "the heart beats")
    run.finish()
    assert (read_slot(slot).state, read_slot(slot).last_seq, read_slot(slot).phase) == (1, 4, "")
