"""Trouble of ours never reaches a script: it is told once, counted, and the library's function has done its work."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import stabilityclient
from stabilityclient.tee.command import ImportHook
from stabilityclient.tee.library import Library
from stabilityclient.tee.recording import Recording, Stream
from support.agent.spooled import stored

Start = Callable[..., stabilityclient.Run]


class Tracker(Library):
    """A library whose ``log`` calls ``inner`` by itself."""

    title = "Tracker"
    modules = ("a_tracker",)

    def patch(self, name: str, module: ModuleType) -> None:
        for function in ("log", "inner"):
            self.follow(module, function, self._told)

    def _told(self, answer: Any, values: dict[str, Any]) -> None:
        self._recording.row(Stream("Tracker", "a"), 1, values | {"answer": answer})


CODE = """
def log(values):
    if not values:
        raise KeyError("theirs")
    return inner(values) + 1

def inner(values):
    return 1
"""


@pytest.fixture
def told() -> list[str]:
    return []


@pytest.fixture
def recording(start: Start, told: list[str]) -> Recording:
    return Recording(start(), told.append)


@pytest.fixture
def tracker(
    tmp_path: Path, recording: Recording, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> Iterator[Any]:
    (tmp_path / "a_tracker.py").write_text(getattr(request, "param", CODE))
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "meta_path", [*sys.meta_path])
    hook = ImportHook(recording)
    hook.add(Tracker(recording))
    hook.install()
    import a_tracker

    yield a_tracker
    del sys.modules["a_tracker"]


def test_a_call_is_taken_once_with_what_the_function_returned(recording: Recording, tracker: Any) -> None:
    assert tracker.log({"loss": 0.5}) == 2
    assert stored(recording.run.folder).rows()[0][2] == {"loss": 0.5, "answer": 2.0}
    assert len(stored(recording.run.folder).rows()) == 1


def test_what_the_function_raises_reaches_the_script_and_is_no_value(recording: Recording, tracker: Any) -> None:
    with pytest.raises(KeyError, match="theirs"):
        tracker.log({})

    assert stored(recording.run.folder).rows() == []


def test_a_call_that_cannot_be_taken_is_told_once_and_returns_as_ever(tracker: Any, told: list[str]) -> None:
    assert [tracker.log(b"loss"), tracker.log(b"loss")] == [2, 2]
    assert told == [
        "log() of Tracker could not be taken: TypeError: unsupported operand type(s) for |: 'bytes' and 'dict'; "
        "the script goes on"
    ]


def test_a_module_looks_as_without_us(tracker: Any) -> None:
    assert (tracker.log.__name__, tracker.log.__module__) == ("log", "a_tracker")
    assert tracker.__spec__.loader.get_source("a_tracker") == CODE


@pytest.mark.parametrize("tracker", ["__version__ = '0.1'"], indirect=True)
def test_a_version_without_the_function_is_told_in_one_line(tracker: Any, told: list[str]) -> None:
    (line,) = told
    assert line.startswith("Tracker 0.1 is not as expected, its values are not taken: AttributeError: ")


#: Values -> what is stored of them.
VALUES: dict[str, tuple[dict[Any, Any], dict[str, float]]] = {
    "numbers": ({"a": 1, "b": True, "c": 0.5}, {"a": 1.0, "b": 1.0, "c": 0.5}),
    "none of them a number": ({"a": None, "b": "text", "c": [1], "d": object()}, {}),
    "dicts in dicts": ({"a": {"b": 1, "c": {"d": 2.0, "e": "text"}}}, {"a.b": 1.0, "a.c.d": 2.0}),
    "names that are none": ({1: 1.0, "": 2.0, "x" * 300: 3.0, "a": 4.0}, {"a": 4.0}),
}


@pytest.mark.parametrize(("values", "kept"), VALUES.values(), ids=list(VALUES))
def test_of_values_of_any_kind_the_numbers_are_stored(
    recording: Recording, values: dict[Any, Any], kept: dict[str, float]
) -> None:
    recording.row(Stream("Tracker", "a"), 1, values)

    assert [row for _, _, row in stored(recording.run.folder).rows()] == ([kept] if kept else [])


def test_a_name_belongs_to_the_library_that_used_it_first(recording: Recording) -> None:
    first, other = Stream("W&B", "a"), Stream("TensorBoard", "events")
    for stream in (first, other):
        recording.row(stream, 1, {"loss": 0.5, stream.label: 1.0})

    rows = [row for _, _, row in stored(recording.run.folder).rows()]
    assert rows == [{"loss": 0.5, "a": 1.0}, {"events": 1.0}]
