"""Tensors in log(): those of the CPU are read in place, those of a GPU come together and are never waited for."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest
from spooled import stored

import stabilityclient

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch

Start = Callable[..., stabilityclient.Run]

#: What was asked of PyTorch with a tensor that pretends to lie on a GPU: (function, thread).
Calls = list[tuple[str, str]]


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> Calls:
    """A GPU at the edge of the world: its stream, and an event that comes when a copy has arrived."""
    seen: Calls = []

    class Event:
        def __init__(self, *, blocking: bool) -> None:
            assert blocking

        def record(self, stream: str) -> None:
            seen.append(("record", stream))

        def synchronize(self) -> None:
            seen.append(("synchronize", threading.current_thread().name))

    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: f"stream of {device}")
    _OnGpu.seen = seen
    return seen


class _OnGpu(torch.Tensor):
    """A real tensor that says that it lies on a GPU and notes what is done with it."""

    seen: Calls = []  # noqa: RUF012 - one for all of them
    is_cuda = True
    is_cpu = False

    @classmethod
    def __torch_function__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = getattr(function, "__name__", "")
        if name not in ("__get__", "numel"):  # attributes are no work for a GPU
            cls.seen.append((name, threading.current_thread().name))
        return super().__torch_function__(function, types, args, kwargs or {})


def _on_gpu(value: float, dtype: Any = torch.float32) -> _OnGpu:
    return torch.tensor(value, dtype=dtype).as_subclass(_OnGpu)


def test_the_values_of_one_call_leave_a_gpu_by_one_stack_and_one_copy_and_only_another_thread_waits(
    start: Start, calls: Calls
) -> None:
    run = start()
    run.log(1, {f"loss/{i}": _on_gpu(i / 2) for i in range(12)})
    run.finish()
    ours = threading.current_thread().name
    assert [name for name, thread in calls if thread == ours] == ["stack", "to"]
    assert [thread for name, thread in calls if name == "synchronize"] == ["stability-values"]
    assert [name for name, _ in calls].index("record") < [name for name, _ in calls].index("synchronize")
    assert [metrics for _, _, metrics in stored(run.folder).rows()] == [{f"loss/{i}": i / 2 for i in range(12)}]


def test_values_of_several_types_on_a_gpu_keep_their_precision(start: Start, calls: Calls) -> None:
    run = start()
    run.log(1, {"loss": _on_gpu(0.5), "tokens": _on_gpu(2**53 - 1, torch.int64), "norm": _on_gpu(1 / 3, torch.float64)})
    run.finish()
    assert [name for name, _ in calls].count("stack") == 3
    assert [metrics for _, _, metrics in stored(run.folder).rows()] == [
        {"loss": 0.5, "tokens": 2.0**53 - 1, "norm": 1 / 3}
    ]


def test_a_tensor_of_several_elements_on_a_gpu_is_refused_and_its_neighbours_are_stored(
    start: Start, calls: Calls, caplog: pytest.LogCaptureFixture
) -> None:
    run = start()
    run.log(1, {"loss": _on_gpu(0.5), "many": torch.ones(3).as_subclass(_OnGpu)})
    run.finish()
    assert [metrics for _, _, metrics in stored(run.folder).rows()] == [{"loss": 0.5}]


def test_rows_of_cpu_tensors_floats_and_both_are_stored_as_they_are(start: Start) -> None:
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
        (torch.ones(3), "3 elements"),
        (torch.tensor(1j), "expected one number"),
        (torch.ones(0), "0 elements"),
    ],
)
def test_a_tensor_that_is_no_number_is_refused_in_words_also_once_its_type_is_known(
    start: Start, bad: Any, words: str
) -> None:
    run = start()
    run.log(1, {"a": torch.tensor(1.0), "b": torch.tensor(1.0)})
    with pytest.raises(stabilityclient.RefusedError, match=words):
        run.log(2, {"a": torch.tensor(2.0), "b": bad})
    run.finish()
    assert [(step, m) for step, _, m in stored(run.folder).rows()] == [(1, {"a": 1.0, "b": 1.0}), (2, {"a": 2.0})]


def test_a_row_of_tensors_asks_nothing_of_any_value_but_its_number(start: Start) -> None:
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
