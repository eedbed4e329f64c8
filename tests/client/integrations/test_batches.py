"""``Batches``: a place in the data is found again exactly, whatever the loader."""

from __future__ import annotations

import random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stabilityclient.integrations.data import Batches
from stabilityclient.integrations.shared.skips import Skips


class Epochs:
    """A loader of five batches, in another order each epoch."""

    def __init__(self) -> None:
        self.epoch = 0

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __iter__(self) -> Any:
        return iter([(self.epoch, number) for number in random.Random(self.epoch).sample(range(5), 5)])


class Shuffled:
    """A loader that draws its order from the process's random numbers, as ``shuffle=True`` does."""

    def __iter__(self) -> Any:
        return iter(random.sample(range(5), 5))


class Stateful:
    """A loader that says where it is, and where it is put goes on there."""

    def __init__(self) -> None:
        self.at = 0
        self.loaded = 0

    def __iter__(self) -> Any:
        for at in range(self.loaded + 1, 6):
            self.at = at
            yield at
        self.loaded = 0

    def state_dict(self) -> dict[str, int]:
        return {"at": self.at}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.loaded = state["at"]


def drawing() -> Any:
    return random.random


@pytest.mark.parametrize("kind", [Epochs, Shuffled, Stateful, drawing])
@settings(deadline=None)  # the generators of torch and NumPy take their time where another test has imported them
@given(before=st.integers(0, 17), after=st.integers(1, 12), skip=st.integers(0, 8))
def test_a_place_is_found_again_also_over_the_end_of_epochs(kind: Any, before: int, after: int, skip: int) -> None:
    random.seed(before)
    batches = Batches(kind())
    batches.skip(before)
    state, drawn = batches.state_dict(), random.getstate()
    expected = [next(batches) for _ in range(skip + after)][skip:]

    again = Batches(kind())
    random.setstate(drawn)
    again.load_state_dict(state)
    again.skip(skip)

    assert [next(again) for _ in range(after)] == expected
    assert (again.epoch, again.in_epoch, again.position) == (batches.epoch, batches.in_epoch, batches.position)


def test_what_else_draws_random_numbers_moves_no_batch_that_a_function_draws() -> None:
    def drawn(others: int) -> list[float]:
        random.seed(1)
        batches, found = Batches(random.random), []
        for _ in range(4):
            found.append(next(batches))
            for _ in range(others):
                random.random()
        return found

    assert drawn(0) == drawn(3)
    random.seed(1)
    assert drawn(0)[0] != random.random()


def test_a_loader_without_batches_and_one_that_ends_are_refused_in_words() -> None:
    with pytest.raises(ValueError, match="has no batches"):
        next(Batches([]))
    with pytest.raises(TypeError, match="ends with its first pass"):
        Batches(iter([1]))


def test_data_that_has_become_shorter_is_told() -> None:
    batches = Batches(range(5))
    batches.skip(4)
    with pytest.raises(ValueError, match="epoch 0 ended after 3 batches, and 4 of it were trained before"):
        Batches(range(3)).load_state_dict(batches.state_dict())


@given(st.lists(st.tuples(st.integers(1, 40), st.integers(0, 6)), max_size=5))
def test_every_place_is_trained_once_or_left_out(ordered: list[tuple[int, int]]) -> None:
    skips = Skips()
    for first, more in ordered:
        skips.leave_out(first, first + more)
    out = {place for first, more in ordered for place in range(first, first + more + 1)}
    place, trained = 0, []
    for step in range(1, 60):
        place += skips.before(step) + 1
        trained.append(place)
        assert skips.place(step) == place
    assert trained == [one for one in range(1, place + 1) if one not in out]
    assert Skips(skips.state()).place(59) == place
