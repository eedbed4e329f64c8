"""What an uncaught exception says arrives with its end; in a line: of a quoted traceback the outer lines."""

from __future__ import annotations

from pathlib import Path

import pytest

from stabilityclient.arguments import MAX_TRACE_CHARS, cut_inside, gist, trace_of
from support.agent.gateway import Gateway
from support.agent.spooled import child
from support.waiting import wait_until


@pytest.mark.parametrize(
    ("message", "line"),
    [
        ("bad batch", "bad batch"),
        ("two\n  lines", "two lines"),
        ("", ""),
        ("Caught KeyError in worker 3.\nOriginal Traceback (most recent call last):\n  File x\nKeyError: 'text'\n",
         "Caught KeyError in worker 3. KeyError: 'text'"),
        ("CUDA error: out of memory\nCUDA kernel errors might be reported later.\nCompile with `TORCH_USE_CUDA_DSA`.\n",
         "CUDA error: out of memory"),
        ("\nTraceback (most recent call last):\n  File x\n", "Traceback (most recent call last): File x"),
    ],
)  # fmt: skip
def test_a_message_that_quotes_a_traceback_is_told_by_its_outer_lines(message: str, line: str) -> None:
    assert gist(message) == line


def _deeper(calls: int) -> None:
    if not calls:
        raise KeyError("image")
    _deeper(calls - 1)


@pytest.mark.parametrize("calls", [0, 300])
def test_where_an_exception_came_from_is_told_at_its_end_with_its_source_whatever_its_depth(calls: int) -> None:
    with pytest.raises(KeyError) as found:
        _deeper(calls)
    trace = trace_of(found.value)
    assert trace.splitlines()[-2].endswith(", in _deeper")
    assert trace.splitlines()[-1] == '    raise KeyError("image")'
    assert f'File "{__file__}", line ' in trace
    assert len(trace) <= MAX_TRACE_CHARS


@pytest.mark.parametrize("chars", [60, 61, 99])
def test_a_text_that_is_cut_inside_keeps_both_ends_and_the_length_that_was_asked_for(chars: int) -> None:
    text = "b" * 200 + "e" * 200
    found = cut_inside(text, chars)
    assert (len(found), found[0], found[-1], "(400 characters)" in found) == (chars, "b", "e", True)
    assert cut_inside("short", chars) == "short"


def test_of_a_long_exception_the_end_is_told_too_for_there_stands_what_was_wrong(agents: Path) -> None:
    with Gateway() as server:
        job = child(
            f"""
import stabilityclient
run = stabilityclient.init(run_id="r", dir={str(agents)!r}, url={server.url!r})
frames = "  File loader.py, in fetch\\n" * 2000
text = "Caught ValueError in worker 0.\\nOriginal Traceback (most recent call last):\\n" + frames
raise ValueError(text + "ValueError: shard 31 is broken\\n")
"""
        )
        job.communicate(timeout=60)
        wait_until(lambda: server.store.events("process_death"), 10, "the death is told")
        store = server.store
    told = store.events("process_death")[0].data["evidence"]["exception"]
    assert told == "ValueError: Caught ValueError in worker 0. ValueError: shard 31 is broken"
    message = store.events("exception")[0].data["message"]
    assert (len(message), message.endswith("ValueError: shard 31 is broken\n")) == (10_000, True)
