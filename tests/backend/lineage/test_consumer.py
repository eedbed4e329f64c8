"""The order of consumers follows from the ones that they read."""

from __future__ import annotations

import pytest

from stabilitybackend.lineage.consumer import Consumer, in_order


class First(Consumer): ...


class Second(Consumer):
    reads = (First,)


def test_a_consumer_comes_behind_those_that_it_reads() -> None:
    assert in_order([Second, First]) == [First, Second]


def test_consumers_that_read_each_other_in_a_circle_are_refused_by_name() -> None:
    class Third(Consumer): ...

    class Fourth(Consumer):
        reads = (Third,)

    Third.reads = (Fourth,)

    with pytest.raises(TypeError, match="Third, Fourth read each other in a circle"):
        in_order([First, Third, Fourth])
