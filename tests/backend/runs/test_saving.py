"""State that is declared goes through its bytes unchanged, and what does not fit is refused and changes nothing."""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass, field
from typing import Any

import msgspec
import pytest

from stabilitybackend.base.saving import Unfit, part_of, restore
from stabilitybackend.base.stateful import Stateful, fresh
from support.saved_state import taken_over


@dataclass(slots=True)
class _Event:
    onset: int
    recent: deque[tuple[int, float]] = field(default_factory=lambda: deque(maxlen=3))


class _Inner(Stateful):
    seen: set[str] = fresh(set)


class _Outer(Stateful):
    inner: _Inner = fresh(_Inner)
    values: deque[float] = fresh(deque, maxlen=3)
    events: dict[tuple[str, int], _Event] = fresh(dict)
    worst: float = -math.inf
    counts: dict[int, list[Any]] = fresh(dict)

    def __init__(self) -> None:
        super().__init__()
        self.derived = 0

    def restored(self) -> None:
        self.derived = len(self.values)


def _filled() -> _Outer:
    whole = _Outer()
    whole.inner.seen |= {"a", "b"}
    whole.values.extend([1.0, math.inf, -0.0])
    whole.events["loss", 3] = _Event(3, deque([(3, 2.5)], maxlen=3))
    whole.counts[1] = [None, 2, "x"]
    return whole


class _Plain(Stateful):
    seen: list[int] = []  # noqa: RUF012  # of which every object gets a copy


class _Bare(Stateful):
    seen: int


def test_an_attribute_that_begins_with_nothing_is_named() -> None:
    with pytest.raises(TypeError, match=r"_Bare\.seen is annotated, expected a value that it begins with"):
        _Bare()


def test_each_object_begins_with_containers_of_its_own() -> None:
    _Plain().seen.append(1)
    assert _Plain().seen == []
    _filled()
    assert (_Outer().values, _Outer().events, _Outer().inner.seen) == (deque(), {}, set())


def test_what_was_saved_is_taken_over_and_what_follows_is_derived() -> None:
    again = taken_over(_filled(), _Outer())
    assert (again.inner.seen, again.values, again.worst) == ({"a", "b"}, deque([1.0, math.inf, -0.0]), -math.inf)
    assert (again.events, again.counts, again.derived) == (_filled().events, _filled().counts, 3)
    assert (again.values.maxlen, again.events["loss", 3].recent.maxlen) == (3, 3)


def test_parts_dicts_and_deques_stay_the_objects_that_others_hold() -> None:
    again = _Outer()
    inner, values, events = again.inner, again.values, again.events
    taken_over(_filled(), again)
    assert (again.inner is inner, again.values is values, again.events is events) == (True, True, True)


@pytest.mark.parametrize(
    "values",
    [
        [],
        [1],
        [["a"], [3, [1.0]], {}, "high", {}],
        [[["a"]], [3, [1.0]], {}, 0.0, {}, 1],
        [[["a"]], [3, ["1"]], {}, 0.0, {}],
    ],
    ids=["none", "one", "a text for a number", "one more", "a text within"],
)
def test_bytes_of_other_types_are_refused_and_change_nothing(values: list[Any]) -> None:
    whole = _filled()
    part = msgspec.structs.replace(part_of("it", whole), data=msgspec.msgpack.encode(values))
    with pytest.raises(Unfit, match="it can't be read"):
        restore(whole, part, "it")
    assert whole.values == _filled().values


def test_an_attribute_of_another_name_or_type_makes_another_shape_and_another_module_does_not() -> None:
    def shape(**hints: Any) -> bytes:
        return part_of("it", type("Kind", (Stateful,), {"__annotations__": hints, **dict.fromkeys(hints, 0)})()).shape

    assert len({shape(a=int), shape(b=int), shape(a=float), shape(a=list[_Event]), shape(a=int, b=int)}) == 5
    moved = type("_Event", (), {"__annotations__": _Event.__annotations__, "__module__": __name__})
    assert shape(a=list[dataclass(moved)]) == shape(a=list[_Event])


def test_what_can_not_be_written_down_is_logged_and_fits_nobody(caplog: pytest.LogCaptureFixture) -> None:
    whole = _Outer()
    whole.counts[1] = [object()]
    part = part_of("it", whole)
    assert "the state of it can't be saved" in caplog.text
    with pytest.raises(Unfit):
        restore(_Outer(), part, "it")
