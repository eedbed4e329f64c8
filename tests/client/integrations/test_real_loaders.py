"""``Batches`` with loaders that know their place themselves, the real ones: of mosaicml-streaming and torchdata."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from stabilityclient.integrations.data import Batches, ids_of
from stack.frameworks.absent import standing_in_for
from support.installed import needs

#: Samples of the data, and of a batch: an epoch has ten batches.
SAMPLES, BATCH = 20, 2
#: What mosaicml-streaming imports when it is imported and does not use here.
_VISION = ("datasets", "transforms", "transforms.functional")
_TEXT = (
    "feature_extraction_utils",
    "tokenization_utils_base",
    "models",
    "models.auto",
    "models.auto.tokenization_auto",
)

pytestmark = pytest.mark.filterwarnings("ignore:.*set_vital:UserWarning")  # torchdata 0.11 under torch 2.13

Make = Callable[[], Any]


@pytest.fixture(scope="module")
def streaming() -> Iterator[Any]:
    with standing_in_for("torchvision", *_VISION), standing_in_for("transformers", *_TEXT):
        vars(sys.modules["torchvision.datasets"])["VisionDataset"] = type("VisionDataset", (), {})
        yield import_module("streaming")


def streamed(workers: int, folder: Path, request: pytest.FixtureRequest) -> Make:
    """Return what makes a ``StreamingDataLoader`` of shards on disk."""
    streaming = request.getfixturevalue("streaming")
    with streaming.MDSWriter(out=str(folder / "shards"), columns={"id": "int"}) as writer:
        for number in range(SAMPLES):
            writer.write({"id": number})
    settings = {"shuffle": True, "shuffle_seed": 3, "num_canonical_nodes": 1, "batch_size": BATCH}

    def make() -> Any:
        streaming.base.util.clean_stale_shared_memory()
        data = streaming.StreamingDataset(local=str(folder / "shards"), **settings)
        return streaming.StreamingDataLoader(data, batch_size=BATCH, num_workers=workers)

    return make


def kept(workers: int, folder: Path, request: pytest.FixtureRequest) -> Make:
    """Return what makes a ``StatefulDataLoader`` that shuffles."""
    loader: Any = import_module("torchdata.stateful_dataloader").StatefulDataLoader
    data = [{"id": number} for number in range(SAMPLES)]
    return lambda: loader(data, batch_size=BATCH, shuffle=True, num_workers=workers)


@pytest.fixture(
    scope="module",
    params=[
        pytest.param((streamed, 0), marks=needs("streaming", "this test needs mosaicml-streaming")),
        pytest.param((streamed, 2), marks=needs("streaming", "this test needs mosaicml-streaming")),
        pytest.param((kept, 0), marks=needs("torchdata", "this test needs torchdata")),
        pytest.param((kept, 2), marks=needs("torchdata", "this test needs torchdata")),
    ],
    ids=lambda param: f"{param[0].__name__} {param[1]}",
)
def make(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Make:
    """Make a new loader of the same data, as the next process does."""
    of, workers = request.param
    made: Make = of(workers, tmp_path_factory.mktemp("data"), request)
    return made


def saved(batches: Batches) -> tuple[Any, Any]:
    """Return the place, and the random numbers of the process, which a checkpoint has too."""
    return batches.state_dict(), import_module("torch").get_rng_state()


def load(batches: Batches, checkpoint: tuple[Any, Any]) -> None:
    import_module("torch").set_rng_state(checkpoint[1])
    batches.load_state_dict(checkpoint[0])


def drawn(batches: Batches, count: int) -> list[list[int]]:
    return [ids_of(next(batches)).tolist() for _ in range(count)]


@pytest.mark.parametrize("before", [0, 3, 9, 10, 11, 14])
def test_in_a_new_process_the_batches_go_on_where_they_were(make: Make, before: int) -> None:
    batches = Batches(make())
    drawn(batches, before)
    checkpoint = saved(batches)
    expected = drawn(batches, 12)
    del batches

    again = Batches(make())
    load(again, checkpoint)
    assert again.position == before
    again.skip(3)

    assert drawn(again, 9) == expected[3:]
    assert (again.position, again.epoch, again.in_epoch) == (before + 12, (before + 11) // 10, (before + 11) % 10 + 1)


def test_within_a_process_the_batches_go_back_and_forth_over_the_ends_of_epochs(make: Make) -> None:
    batches, seen, checkpoints = Batches(make()), [], []
    for _ in range(25):
        checkpoints.append(saved(batches))
        seen += drawn(batches, 1)
    for place in (22, 12, 3, 10, 9, 20, 0):
        load(batches, checkpoints[place])
        assert drawn(batches, 3) == seen[place : place + 3]
    assert sorted(sample for batch in seen[:10] for sample in batch) == [*range(SAMPLES)]


def test_a_state_that_was_loaded_can_be_saved_before_the_next_batch(make: Make) -> None:
    batches = Batches(make())
    drawn(batches, 4)
    checkpoint = saved(batches)
    expected = drawn(batches, 4)
    load(batches, checkpoint)
    again = saved(batches)
    drawn(batches, 1)
    load(batches, again)
    assert drawn(batches, 4) == expected
