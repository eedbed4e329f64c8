"""A ring of batches costs references until somebody asks; then it answers, whatever the job's callable does."""

from __future__ import annotations

import errno
import gc
import json
import os
import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

import stabilityclient
from stabilityclient.agent.commands.downlink import Downlink
from stabilityclient.data import ring
from stabilityclient.data.explained import FIELDS, repeated_share, worst_first
from stabilityclient.spool import CHUNK_BYTES, MAX_EVENT_BYTES
from support.agent.spooled import stored

Start = Callable[..., stabilityclient.Run]
PROSE = [ord(char) for char in "the cat sat on a mat while some dog ran over seven hills in search of bread"]


class _Batch(list[dict[str, Any]]):
    """Samples, and something that a weak reference can be held to."""


def _ask(run: stabilityclient.Run, command_id: str = "b1", **more: Any) -> None:
    command = {
        "command_id": command_id, "kind": "show_batches", "state": "pending", "issued": time.time(),
        "expires": time.time() + 60, "attempt": 1, "samples": 16, "text_chars": 100, "step": None, **more,
    }  # fmt: skip
    problems: list[str] = []
    Downlink(Path(str(run.folder)), problems.append).take(command, 0.0)
    assert problems == []


def _answers(run: stabilityclient.Run) -> list[tuple[str, str, dict[str, Any]]]:
    """Return (state, detail, what was shown) of each order."""
    store = stored(run.folder)
    shown = {event.data["command_id"]: event.data for event in store.events("batch_samples")}
    ends = [event.data for event in store.events("command")]
    return [(end["state"], end["detail"], shown.get(end["command_id"], {})) for end in ends]


def test_nothing_is_computed_and_only_the_last_batches_live_while_nobody_asks(start: Start) -> None:
    run, asked = start(), []
    run.keep_batches(lambda batch: asked.append(batch) or [], last=3)  # type: ignore[func-returns-value]
    batches = [_Batch() for _ in range(10)]
    alive = [weakref.ref(batch) for batch in batches]
    for step in run.steps(0, 10):
        run.keep_batch(step, batches.pop(0))
    gc.collect()
    assert ([ref() is not None for ref in alive], asked) == ([False] * 7 + [True] * 3, [])
    run.finish()
    gc.collect()
    assert [ref() for ref in alive] == [None] * 10


def test_who_asks_gets_the_worst_samples_of_each_batch_and_what_they_repeat(start: Start) -> None:
    run = start()
    run.keep_batches(lambda batch: batch, last=2)
    good = {"id": 7, "dataset": "web", "loss": 2.0, "text": "fine", "tokens": list(range(20))}
    stuck = {"id": "s-1", "loss": 0.1, "tokens": [5] * 4000}
    for step in range(4):
        if step == 3:
            _ask(run, step=2)
        run.keep_batch(step, [good, {"loss": float("nan"), "shape": (3, 32)}] if step == 2 else [good, stuck, good])
    ((state, detail, shown),) = _answers(run)
    assert (state, detail[:23]) == ("acted", "5 samples of 2 batches ")
    assert [{name: value for name, value in one.items() if name != "time"} for one in shown["steps"]] == [
        {"step": 2, "samples": 2, "loss": 2.0, "worst": 2.0, "nonfinite": 1, "repeated": 0.0},
        {"step": 3, "samples": 3, "loss": pytest.approx(4.1 / 3), "worst": 2.0, "repeated": 0.9998},
    ]
    assert shown["samples"][:2] == [
        {"step": 2, "loss": "NaN", "shape": [3, 32]},
        {"step": 3, "id": "s-1", "loss": 0.1, "tokens": 4000, "repeated": 0.9998},
    ]
    assert (shown["last"], shown["error"], len(shown["samples"])) == (2, "", 5)


@pytest.mark.parametrize(
    ("explain", "words"),
    [
        (lambda batch: 1 / 0, "ZeroDivisionError: division by zero"),
        (lambda batch: None, "TypeError: 'NoneType' object is not iterable"),
        (lambda batch: ["text"], "a sample is a str, expected a dict with some of id, dataset, loss"),
        (lambda batch: [{"txt": ""}], "a sample has 'txt', expected some of id, dataset, loss, text, shape, tokens"),
        (lambda batch: [{"tokens": [[1], [2]]}], "tokens= holds a list, expected the whole numbers of one sample"),
    ],
)
def test_what_the_callable_raises_is_the_answer_and_training_goes_on(start: Start, explain: Any, words: str) -> None:
    run = start()
    run.keep_batches(explain)
    seen = []
    for step in run.steps(0, 3):
        if step == 1:
            _ask(run)
        run.keep_batch(step, object())
        seen.append(step)
    ((state, detail, shown),) = _answers(run)
    assert (seen, state, words in detail, "(step 1)" in detail) == ([0, 1, 2], "failed", True, True)
    assert [one.get("failed") for one in shown["steps"]] == [True, True]


def test_an_endless_explanation_ends_and_says_so(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ring, "EXPLAIN_S", 0.05)
    monkeypatch.setattr("stabilityclient.data.explained.MAX_SAMPLES", 10**9)

    def endless(batch: object) -> Iterator[dict[str, Any]]:
        while True:
            yield {"loss": 1.0}

    run = start()
    run.keep_batches(endless)
    run.keep_batch(0, None)
    _ask(run)
    run.keep_batch(1, None)
    ((state, _, shown),) = _answers(run)
    assert (state, [one.get("whole") for one in shown["steps"]]) == ("acted", [False, False])
    assert sorted(one["step"] for one in shown["samples"]) == [0] * 8 + [1] * 8


def test_a_batch_that_is_held_has_not_left_though_the_job_went_back_since(start: Start) -> None:
    run = start()
    run.keep_batches(lambda batch: [{"id": 1}], last=4)
    for step in (8, 9, 5, 6):
        run.keep_batch(step, None)
    _ask(run, step=6)
    run.keep_batch(7, None)
    _ask(run, "b2", step=4)
    run.keep_batch(8, None)
    assert ["had left" in detail for _, detail, _ in _answers(run)] == [False, True]


def test_an_order_is_answered_once_and_not_when_it_has_expired(start: Start) -> None:
    run = start()
    run.keep_batches(lambda batch: [{"id": 1}])
    _ask(run)
    for step in range(3):
        run.keep_batch(step, None)
        _ask(run, state="delivered")
    _ask(run, "b2", expires=time.time() - 1)
    run.keep_batch(3, None)
    assert [(state, bool(shown)) for state, _, shown in _answers(run)] == [("acted", True), ("rejected", False)]


def test_batches_of_a_branch_that_was_left_are_shown_and_marked(start: Start) -> None:
    run = start()
    run.keep_batches(lambda batch: [{"id": batch}])
    for step in (1, 2, 3):
        run.keep_batch(step, "before")
    run.rolled_back(to_step=1)
    _ask(run)
    run.keep_batch(2, "after")
    ((_, _, shown),) = _answers(run)
    assert [(one["step"], one.get("discarded", False)) for one in shown["steps"]] == [
        (1, False), (2, True), (3, True), (2, False),
    ]  # fmt: skip


def test_a_rank_that_keeps_none_says_so_between_its_steps(start: Start) -> None:
    run = start()
    _ask(run)
    list(run.steps(0, 2))
    assert [(state, detail) for state, detail, _ in _answers(run)] == [
        ("rejected", "this rank keeps no batches (run.keep_batches)")
    ]


@pytest.mark.parametrize("last", [0, 257, True, "8"])
def test_a_ring_of_another_size_is_refused(start: Start, quiet: None, last: Any) -> None:
    run = start()
    run.keep_batches(lambda batch: [], last=last)
    run.keep_batch(0, None)
    assert stored(run.folder).events("keeps_batches") == []


@pytest.mark.parametrize("last", [1, 256])
@pytest.mark.parametrize("text", ["\0", "\N{PILE OF POO}", "\ud800", "a"])
def test_an_answer_fits_the_spool_whatever_the_texts_are(text: str, last: int) -> None:
    events: list[dict[str, Any]] = []
    order = {"command_id": "b", "kind": "show_batches"}

    class Orders:
        def new(self) -> list[dict[str, Any]]:
            return [order] if len(kept._kept) == last else []

    def explain(batch: object) -> list[dict[str, Any]]:
        return [{"id": text * 300, "dataset": text * 300, "text": text * 3000, "loss": 1.0}] * (64 // last or 1)

    kept = ring.BatchRing(explain, last, Orders(), lambda kind, step, data: events.append(data),  # type: ignore[arg-type]
                          lambda *_: None, nullcontext)  # fmt: skip
    for step in range(last):
        kept.put(step, None)
    (data,) = events
    assert len(json.dumps(data)) <= ring.ANSWER_BYTES < MAX_EVENT_BYTES / 1.5
    json.dumps(data).encode()
    assert all(sample.keys() <= {"step", "repeated", *FIELDS} for sample in data["samples"])


@pytest.mark.parametrize(
    ("tokens", "share"),
    [([7] * 4096, 4095 / 4096), (list(range(4096)), 0.0), ([1, 2, 3] * 100, 297 / 300), ([1] * 9, None), (PROSE, 0.0),
     (PROSE + PROSE, 0.5)],
)  # fmt: skip
def test_the_repeated_share_is_what_lies_in_five_tokens_that_came_before(tokens: Any, share: float | None) -> None:
    assert repeated_share(tokens) == (None if share is None else pytest.approx(share))


def test_the_most_repeated_sample_is_the_second_worst_whatever_its_loss() -> None:
    samples: list[dict[str, Any]] = [{"loss": float(at), "repeated": 0.01 * at} for at in range(50)]
    samples.append({"loss": -1.0, "repeated": 0.99})
    assert worst_first(samples)[:2] == [samples[49], samples[50]]


@pytest.mark.parametrize(
    ("step_s", "last", "on_spike", "warned"),
    [(0.11, 8, True, "last=12 is enough"), (0.11, 12, True, ""), (2.0, 8, True, ""), (0.11, 8, False, ""),
     (1e-3, 256, True, "last=256 is the most")],
)  # fmt: skip
def test_a_ring_that_is_too_small_for_the_time_that_an_order_takes_is_warned_of_once(
    start: Start,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    step_s: float,
    last: int,
    on_spike: bool,
    warned: str,
) -> None:
    now = [1_000.0]
    monkeypatch.setattr(ring.time, "time", lambda: now[0])
    run = start()
    run.keep_batches(lambda batch: [], last=last, on_spike=on_spike)
    for step in range(200):
        now[0] += step_s
        run.keep_batch(step, [])
    monkeypatch.undo()
    said = [record.message for record in caplog.records if "keep_batches()" in record.message]
    assert [warned in one for one in said] == ([True] if warned else [])


def test_an_answer_to_an_order_for_a_batch_that_has_left_says_so(start: Start) -> None:
    run = start()
    run.keep_batches(lambda batch: [{"loss": 1.0}], last=2)
    for step in range(9):
        if step == 8:
            _ask(run, step=3)
        run.keep_batch(step, [])
    ((state, detail, _),) = _answers(run)
    assert (state, "the batch of step 3 had left, the oldest one held is of step 7" in detail) == ("acted", True)


def test_samples_that_find_no_room_on_a_full_disk_are_no_answer(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(fd: int, at: int, size: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    run = start()
    run.keep_batches(lambda batch: batch, last=1)
    monkeypatch.setattr(os, "posix_fallocate", full)
    while run._event("alert", None, {"title": "x" * 100_000}):
        pass
    spool = run._components.spool  # 2 KB are left, as on a disk that has just filled up
    run._event("alert", None, {"title": "x" * (CHUNK_BYTES - spool._pos - 2_000)})
    _ask(run, samples=64, text_chars=2_000)
    run.keep_batch(1, [{"text": "y" * 2_000} for _ in range(64)])
    run.log(1, {"loss": 1.0})
    run.finish()
    monkeypatch.undo()
    assert [(state, "found no room" in detail, shown) for state, detail, shown in _answers(run)] == [
        ("failed", True, {})
    ]
