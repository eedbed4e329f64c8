"""What log() refuses, in which words, and how it is counted."""

from __future__ import annotations

import logging
import shutil
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import stabilityclient
from stabilityclient.rank_state.slot import read_slot
from support.agent.spooled import stored

Start = Callable[..., stabilityclient.Run]


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ("0.5", "str"),
        (None, "leave the name out"),
        ([1.0], "list"),
        (1 + 2j, "complex"),
        (np.complex64(1), "complex"),
        (np.ones(3), "3 elements"),
        (np.array([]), "0 elements"),
        (object(), "object"),
        pytest.param(10**400, "range of a float", id="huge"),
        (b"1", "bytes"),
    ],
)
def test_what_is_not_a_number_is_refused_and_the_rest_of_the_call_is_stored(
    start: Start, value: object, words: str
) -> None:
    run = start()
    with pytest.raises(stabilityclient.RefusedError, match=words) as caught:
        run.log(1, {"good": 1.0, "bad": value, "also": 2})
    assert "'bad'" in str(caught.value)
    run.finish()
    assert [metrics for _, _, metrics in stored(run.folder).rows()] == [{"good": 1.0, "also": 2.0}]


@pytest.mark.parametrize(
    ("name", "words"),
    [
        (7, "expected a string"),
        ("", "0 characters"),
        ("n" * 201, "201 characters"),
        pytest.param("x" * 1_000_000, "1000000", id="1 MB"),
        ("\ud800", "surrogate"),
    ],
)
def test_what_is_not_a_name_is_refused_and_the_rest_of_the_call_is_stored(start: Start, name: Any, words: str) -> None:
    run = start()
    with pytest.raises(stabilityclient.RefusedError, match=words) as caught:
        run.log(1, {"good": 1.0, name: 2.0})
    assert len(str(caught.value)) < 300
    run.finish()
    assert [metrics for _, _, metrics in stored(run.folder).rows()] == [{"good": 1.0}]


@pytest.mark.parametrize(
    "step", [-1, 2**53, pytest.param(10**5000, id="huge"), 1.5, "3", None, True, np.bool_(True), np.nan]
)
def test_what_is_not_a_step_is_refused(start: Start, step: Any) -> None:
    run = start()
    with pytest.raises(stabilityclient.RefusedError, match="step is"):
        run.log(step, {"a": 1.0})
    run.log(2**53 - 1, {"a": 1.0})
    run.finish()
    assert stored(run.folder).steps() == [2**53 - 1]


def test_a_whole_number_of_any_kind_is_a_step(start: Start) -> None:
    torch = pytest.importorskip("torch")
    run = start()
    steps = [1.0, np.float32(2), np.int64(3), np.array(4), np.array(5.0), torch.tensor(6), torch.tensor(7.0)]

    for step in steps:
        run.log(step, {"a": 1.0})
    run.finish()

    assert stored(run.folder).steps() == [1, 2, 3, 4, 5, 6, 7]


def test_a_second_run_of_a_process_ends_the_first(start: Start, quiet: None, caplog: pytest.LogCaptureFixture) -> None:
    first = start(run_id="first")
    first.log(1, {"a": 1.0})

    second = start(run_id="second")
    second.log(1, {"a": 1.0})

    assert [event.type for event in stored(first.folder).events()][-1] == "finish"
    assert "run first was open in this process and is ended" in caplog.text
    assert second.url == "http://127.0.0.1:8080/runs/second"


def test_a_spool_that_was_deleted_is_not_named_as_the_place_of_the_data(
    start: Start, quiet: None, caplog: pytest.LogCaptureFixture
) -> None:
    run = start(url="http://127.0.0.1:9")
    run.log(1, {"a": 1.0})
    shutil.rmtree(str(run.folder))

    assert run.finish(10) == "lost"
    assert "are lost: the spool" in caplog.text


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ((1, [("a", 1.0)]), r"metrics is \[\('a', 1.0\)\] \(list\), expected a mapping"),
        ((1, "loss"), r"metrics is 'loss' \(str\), expected a mapping"),
        ((1,), "metrics is None"),
        ((1, types.SimpleNamespace(values=3)), "expected a mapping"),
        (({"loss": 1.0},), "give the step first"),
    ],
)
def test_what_is_not_a_mapping_is_refused_in_words(start: Start, given: tuple[Any, ...], words: str) -> None:
    with pytest.raises(stabilityclient.RefusedError, match=words):
        start().log(*given)


def test_a_dict_in_a_dict_is_taken_apart(start: Start) -> None:
    run = start()

    run.log(1, {"train": {"loss": 1.0, "norms": {"all": 2.0}}, "lr": 0.1})
    run.finish()

    want = {"train/loss": 1.0, "train/norms/all": 2.0, "lr": 0.1}
    assert [metrics for _, _, metrics in stored(run.folder).rows()] == [want]


@pytest.mark.usefixtures("quiet")
def test_each_kind_of_refusal_is_logged_and_spooled_once_and_all_are_counted(
    start: Start, caplog: pytest.LogCaptureFixture
) -> None:
    run = start()
    calls = [(1, "loss"), ({"loss": 1.0},), (1, {"loss": "abc"}), (1, {"loss": None}), (1.5, {"loss": 1.0})]

    for _ in range(3):
        for call in calls:
            run.log(*call)
    folder = run.folder
    run.finish()

    texts = [event.data["text"] for event in stored(folder).events() if event.type == "refused"]
    assert len(texts) == len(calls) == len(caplog.records)
    slot = read_slot(next(str(path) for path in Path(folder).glob("sources/r*/slot")))
    assert slot.refused == 3 * len(calls)


@pytest.mark.usefixtures("quiet")
def test_outside_of_pytest_nothing_is_raised_and_one_line_a_minute_is_logged(
    start: Start, caplog: pytest.LogCaptureFixture
) -> None:
    run = start()
    with caplog.at_level(logging.WARNING, "stabilityclient"):
        for step in range(50):
            run.log(step, {"good": 1.0, "bad": "text"})
            run.log(-1, {"good": 1.0})
            run.alert("t", severity="awful")
            run.checkpoint(-5, "c")
            run.batch(0.5, "f")  # type: ignore[arg-type]
            run.rolled_back("x")  # type: ignore[arg-type]
    assert run._guard.swallowed == 300
    assert len(caplog.records) == 6  # of log() two kinds
    assert "'bad' is 'text' (str)" in caplog.text
    run.finish()
    assert stored(run.folder).steps() == list(range(50))
