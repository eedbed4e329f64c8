"""Tensors in log(): those of the CPU are read in place, those of a GPU come together and are never waited for."""

from __future__ import annotations

import importlib
import threading
from collections.abc import Callable
from typing import Any, cast

import pytest

import stabilityclient
from support.agent.spooled import stored
from support.installed import needs

pytestmark = [pytest.mark.torch, needs("torch", "tensors are those of PyTorch")]

Start = Callable[..., stabilityclient.Run]
#: (function, thread) of what was asked of PyTorch.
Calls = list[tuple[str, str]]


@pytest.fixture(scope="module")
def torch() -> Any:
    return importlib.import_module("torch")


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The module ``support.agent.pretended_gpu`` with its GPU in place."""
    module = importlib.import_module("support.agent.pretended_gpu")
    module.pretend(monkeypatch)
    return module


@pytest.fixture
def calls(gpu: Any) -> Calls:
    """What is asked of the GPU."""
    return cast(Calls, gpu.OnGpu.seen)


def test_the_values_of_one_call_leave_a_gpu_by_one_stack_and_one_copy_and_only_another_thread_waits(
    start: Start, gpu: Any, calls: Calls
) -> None:
    run = start()
    run.log(1, {f"loss/{i}": gpu.on_gpu(i / 2) for i in range(12)})
    run.finish()
    ours = threading.current_thread().name
    assert [name for name, thread in calls if thread == ours] == ["stack", "to"]
    assert [thread for name, thread in calls if name == "synchronize"] == ["stability-values"]
    assert [name for name, _ in calls].index("record") < [name for name, _ in calls].index("synchronize")
    assert [metrics for _, _, metrics in stored(run.folder).rows()] == [{f"loss/{i}": i / 2 for i in range(12)}]


def test_values_of_several_types_on_a_gpu_keep_their_precision(
    start: Start, torch: Any, gpu: Any, calls: Calls
) -> None:
    run = start()
    run.log(
        1,
        {
            "loss": gpu.on_gpu(0.5),
            "tokens": gpu.on_gpu(2**53 - 1, torch.int64),
            "norm": gpu.on_gpu(1 / 3, torch.float64),
        },
    )
    run.finish()
    assert [name for name, _ in calls].count("stack") == 3
    assert [metrics for _, _, metrics in stored(run.folder).rows()] == [
        {"loss": 0.5, "tokens": 2.0**53 - 1, "norm": 1 / 3}
    ]


def test_a_tensor_of_several_elements_on_a_gpu_is_refused_and_its_neighbours_are_stored(
    start: Start, torch: Any, gpu: Any, caplog: pytest.LogCaptureFixture
) -> None:
    run = start()
    run.log(1, {"loss": gpu.on_gpu(0.5), "many": torch.ones(3).as_subclass(gpu.OnGpu)})
    run.finish()
    assert [metrics for _, _, metrics in stored(run.folder).rows()] == [{"loss": 0.5}]


def test_rows_of_cpu_tensors_floats_and_both_are_stored_as_they_are(start: Start, torch: Any) -> None:
    run = start()
    rows = [
        {"a": torch.tensor(0.25), "b": torch.tensor([1.5], requires_grad=True), "c": torch.nn.Parameter(torch.ones(1))},
        {"a": 0.5, "b": torch.tensor(float("nan")), "c": 7},
        {"a": torch.tensor(float("-inf")), "b": torch.tensor(3), "c": torch.tensor(True)},
    ]
    for step in range(9):  # types are learned by the first rows and read the quick way after
        run.log(step, rows[step % 3])
    run.finish()
    want = ["{'a': 0.25, 'b': 1.5, 'c': 1.0}", "{'a': 0.5, 'b': nan, 'c': 7.0}", "{'a': -inf, 'b': 3.0, 'c': 1.0}"]
    assert [str(metrics) for _, _, metrics in stored(run.folder).rows()] == want * 3


@pytest.mark.parametrize(
    ("bad", "words"),
    [
        (lambda torch: torch.ones(3), "3 elements"),
        (lambda torch: torch.tensor(1j), "expected one number"),
        (lambda torch: torch.ones(0), "0 elements"),
    ],
)
def test_a_tensor_that_is_no_number_is_refused_in_words_also_once_its_type_is_known(
    start: Start, torch: Any, bad: Callable[[Any], Any], words: str
) -> None:
    run = start()
    run.log(1, {"a": torch.tensor(1.0), "b": torch.tensor(1.0)})
    with pytest.raises(stabilityclient.RefusedError, match=words):
        run.log(2, {"a": torch.tensor(2.0), "b": bad(torch)})
    run.finish()
    assert [(step, m) for step, _, m in stored(run.folder).rows()] == [(1, {"a": 1.0, "b": 1.0}), (2, {"a": 2.0})]


def test_a_row_of_tensors_asks_nothing_of_any_value_but_its_number(start: Start, torch: Any) -> None:
    run = start()
    row = {f"loss/{i}": torch.tensor(float(i)) for i in range(12)}
    run.log(0, row)
    with _Counted() as counted:
        run.log(1, row)
    run.finish()
    assert counted.lines < 60, "a line of Python for each value would be 12 more of each"


class _Counted:
    """Counts the lines of Python that run inside it."""

    lines = 0

    def __enter__(self) -> _Counted:
        import sys

        def trace(frame: Any, event: str, arg: object) -> Any:
            self.lines += event == "line"
            return trace

        self._before = sys.gettrace()
        sys.settrace(trace)
        return self

    def __exit__(self, *error: object) -> None:
        import sys

        sys.settrace(self._before)
