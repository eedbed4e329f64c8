"""Reader of ``faulthandler``'s output, and the action of the main thread by its frames. Takes any text."""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from functools import lru_cache
from itertools import islice
from typing import NamedTuple

from stabilitybackend.judging.liveness.budgets import is_long
from stabilitybackend.schema.json_data import NAME_CHARS
from stabilitybackend.schema.ranks import Where

#: Frames kept of the main thread, innermost ones; faulthandler writes at most 100.
MAX_FRAMES = 64
MAX_THREAD_FRAMES = 100
#: Characters of a text that are read: agents send at most 60,000.
MAX_CHARS = 100_000
#: Characters kept of a file's path, its end.
MAX_FILE_CHARS = 200
#: Innermost frames with the reason for the hang.
DEPTH = 24

_THREAD = re.compile(
    r"^(Current thread|Thread) 0x[0-9a-fA-F]+(?: \[.*\])? \(most recent call first\):[ \t\r]*$", re.MULTILINE
)
_FRAME = re.compile(r'^[ \t]+File "(.*)", line (\d{1,9}|\?\?\?) in (.*)$', re.MULTILINE)
#: Under the innermost frame: its call into C (docs/wire.md). faulthandler does not write it.
_CALL = re.compile(r"^[ \t]+~ (.{1,80})$", re.MULTILINE)

#: Paths in a frame's file -> meaning; the first match counts. Checkpoints before collectives:
#: ``torch/distributed/checkpoint`` is both.
_BY_FILE: tuple[tuple[str, Where], ...] = (
    ("torch/distributed/checkpoint", "checkpoint"),
    ("torch/serialization.py", "checkpoint"),
    ("/safetensors/", "checkpoint"),
    ("dist_checkpointing/", "checkpoint"),
    ("torch/utils/data/", "data"),
    ("/multiprocessing/queues.py", "data"),
    ("/queue.py", "data"),
    ("/datasets/", "data"),
    ("/webdataset/", "data"),
    ("/streaming/base/", "data"),
    ("torch/distributed/", "collective"),
    ("torch/nn/parallel/distributed.py", "collective"),
    ("/deepspeed/comm/", "collective"),
    ("/horovod/", "collective"),
    ("/mpi4py/", "collective"),
    ("/nccl", "collective"),
    ("torch/autograd/", "native"),
    ("torch/_tensor.py", "native"),
    ("torch/optim/", "native"),
    ("torch/cuda/", "native"),
    ("torch/_ops.py", "native"),
    ("/ctypes/__init__.py", "native"),
)
#: Functions of the job itself, by their names.
_BY_FUNCTION: tuple[tuple[re.Pattern[str], Where], ...] = (
    (re.compile(r"^(save|load|write|restore)_(\w+_)?(checkpoint|ckpt|state)s?$|^save_pretrained$"), "checkpoint"),
    (re.compile(r"^(next|get|load|fetch|read)_(next_)?(batch|batches|sample|samples|shard)$"), "data"),
    (re.compile(r"^(all_?reduce|all_?gather|reduce_?scatter|barrier|broadcast)(_\w+)?$"), "collective"),
)  # fmt: skip
#: Files of a mere wait; its reason is further out.
_WAITING = ("/threading.py", "/selectors.py", "/multiprocessing/connection.py", "/socket.py", "/subprocess.py")
#: Files whose code waits for a lock, if the function does, and such calls into C.
_LOCKS = re.compile(r"/(threading|multiprocessing/synchronize|filelock/\w+)\.py$")
_LOCK_FUNCTIONS = frozenset({"acquire", "__enter__"})
_LOCK_CALL = re.compile(r"^with |(^|\.)(acquire|acquire_lock|flock|lockf)$")
#: Files of Python's event loops: a main thread that rests there is idle.
_LOOPS = ("/asyncio/", "/concurrent/futures/")
#: Frames of compilers, of a child process that is waited for, and of transfers: the work is invisible here.
_WORKS_ELSEWHERE = re.compile(
    r"/torch/(_dynamo|_inductor|_functorch|utils/cpp_extension\.py|jit)|/triton/|/tensorrt|/jax/|/numba/|/subprocess\.py$"
    r"|/ssl\.py$|/http/client\.py$|/(aiohttp|boto3|botocore|fsspec|google/(cloud|resumable_media)|httpcore|httpx"
    r"|huggingface_hub|paramiko|requests|s3transfer|urllib3)/"
)
#: The outer frames of interactive interpreters: without frames of the job inside them their cell has ended.
_PROMPTS = ("/ipykernel/", "/IPython/terminal/", "/_pyrepl/", "/code.py")
#: Installed code that is not the job's own.
_INSTALLED = ("/site-packages/", "/dist-packages/", "/lib/python3")

#: Frameworks whose loop is the job's: their saves and validations, by names of functions and files.
_FRAMEWORKS = (
    "/accelerate/", "/composer/", "/deepspeed/", "/fastai/", "/ignite/", "/lightning/", "/megatron/", "/mmengine/",
    "/nemo/", "/pytorch_lightning/", "/torchtitan/", "/torchtune/", "/transformers/", "/trl/", "/ultralytics/",
)  # fmt: skip
_SAVES_OR_VALIDATES = frozenset({"eval", "evaluate", "evaluation", "save", "validate", "validation"})
#: Other parts of a name do not count in that of the loop itself (``train_and_eval``), or of a part of each step:
#: ``checkpoint_forward`` stores no checkpoint.
_LOOP = frozenset({"finetune", "fit", "pretrain", "train"})
_IN_A_STEP = frozenset({"activation", "backward", "forward", "gradient", "recompute"})

__all__ = [
    "ParsedFrame", "at_prompt", "calls_of", "classify", "collective_of", "in_long_work", "lock_of", "main_call",
    "main_thread", "own_call", "works_elsewhere",
]  # fmt: skip


class ParsedFrame(NamedTuple):
    """One call of a stack; ``line`` is 0 for unknown."""

    function: str
    file: str
    line: int


def main_thread(text: str) -> tuple[ParsedFrame, ...]:
    """Return the frames of the main thread, innermost first; empty for none."""
    return _frames(_main_block(text))[:MAX_FRAMES]


def main_call(text: str) -> str:
    """Return the call into C of the main thread's innermost frame, "" for unknown."""
    called = _CALL.search(_main_block(text))
    return "" if called is None else called[1]


def _main_block(text: str) -> str:
    """Return the part of a text about the main thread, "" for none.

    faulthandler lists the newest thread first, so the main thread is last; threads of ``threading`` show it at their
    outer end. Of several dumps in one text the last one counts. A text cut in the middle of the threads gives the one
    that took the signal, which is nearly always the main thread.
    """
    text = text[-MAX_CHARS:]
    heads = list(_THREAD.finditer(text))
    signalled, end = "", len(text)
    for head in reversed(heads):
        block = text[head.end() : end]
        frames = _frames(block)
        end = head.start()
        if frames and frames[-1].function not in ("_bootstrap", "__bootstrap"):
            return block
        if frames and head[1] == "Current thread" and not signalled:
            signalled = block
    return signalled


def _frames(block: str) -> tuple[ParsedFrame, ...]:
    """Return the frames of one thread; other lines are ignored."""
    return tuple(
        ParsedFrame(
            sys.intern(match[3][:NAME_CHARS]),
            sys.intern(match[1][-MAX_FILE_CHARS:]),
            int(match[2]) if match[2].isascii() and match[2].isdigit() else 0,
        )
        for match in islice(_FRAME.finditer(block), MAX_THREAD_FRAMES)
    )


def classify(frames: Sequence[ParsedFrame], phase: str = "", call: str = "") -> Where:
    """Return the action of a main thread with these frames.

    Args:
        frames: innermost first.
        phase: of the slot, empty for none: user code in a data phase is data.
        call: the call into C of the innermost frame, "" for unknown.
    """
    if not frames:
        return "unknown"
    if lock_of(frames, call) or _in_lock(frames):
        return "lock"
    for frame in frames[:DEPTH]:
        where = _where(frame.file, frame.function)
        if where == "native" and frame is not frames[0] and _is_own(frames[0].file):
            return _by_phase("user", phase)  # a hook of the job, called from the engine
        if where is not None:
            return where
    inner = frames[0].file.replace("\\", "/")
    if _rests([frame.file.replace("\\", "/") for frame in frames[:3]]):
        return _by_phase("idle", phase)
    if _is_own(inner) or _waits(inner):
        return _by_phase("user", phase)
    return _by_phase("native", phase)


def lock_of(frames: Sequence[ParsedFrame], call: str) -> str:
    """Return the job's own call that takes the awaited lock, e.g. ``with cache``; "" for none.

    A lock of Python's own has no frame: its call is at the line of the job.
    """
    return call if frames and _is_own(frames[0].file) and _LOCK_CALL.search(call) else ""


def _in_lock(frames: Sequence[ParsedFrame]) -> bool:
    """Return whether a thread is in the code of a compound lock: a semaphore, one of processes, a file."""
    inner = [frame for frame in frames[:4] if _LOCKS.search("/" + frame.file.replace("\\", "/"))]
    return inner[:1] == list(frames[:1]) and any(frame.function in _LOCK_FUNCTIONS for frame in inner)


def in_long_work(frames: Sequence[ParsedFrame], where: Where, *, outside: bool, lively: bool = False) -> bool:
    """Return whether a main thread is in long work, a save or a validation, and is not stuck in it.

    Args:
        frames: innermost first. where: ``classify`` of them.
        outside: it has left the loop of its steps: other work may be long there.
        lively: it runs Python repeatedly: its data, or the other rank, arrives.
    """
    if not frames or (where in ("collective", "data") and not lively):
        return False
    if where == "checkpoint" or any(_is_long_work(frame.file, frame.function) for frame in frames[:DEPTH]):
        return True
    return outside and where not in ("collective", "data")


def works_elsewhere(frames: Sequence[ParsedFrame]) -> bool:
    """Return whether a main thread waits for a compiler, a child process or a transfer over the network."""
    return any(_WORKS_ELSEWHERE.search(frame.file) for frame in frames[:DEPTH])


def at_prompt(frames: Sequence[ParsedFrame]) -> bool:
    """Return whether a main thread waits for its user's next input: the cell of a notebook has ended, or was
    interrupted.

    In a running cell the innermost frames are the cell's, not those of the event loop.
    """
    files = ["/" + frame.file.replace("\\", "/") for frame in frames]
    if not files or not any(part in file for part in _PROMPTS for file in files):
        return False
    return files[0].endswith(("/code.py", "/_pyrepl/unix_console.py")) or _rests(files[:3])


def collective_of(frames: Sequence[ParsedFrame]) -> str:
    """Return the name of the collective in a stack, e.g. ``all_reduce``; empty for none."""
    for frame in frames[:DEPTH]:
        inside = "torch/distributed/" in frame.file.replace("\\", "/")
        if inside and not frame.function.startswith(("_", "wrap", "wait")):
            return frame.function
    return ""


def calls_of(frames: Sequence[ParsedFrame]) -> str:
    """Return the innermost call, and the job's own around it: "select (selectors.py:415), from main (a.py:3)"."""
    return ", from ".join(dict.fromkeys((_call(frames[0]), own_call(frames))))


def own_call(frames: Sequence[ParsedFrame]) -> str:
    """Return the innermost call of the job's own code, of any code where a stack has none: "main (a.py:3)"."""
    return _call(next((frame for frame in frames if _is_own(frame.file)), frames[0]))


def _call(frame: ParsedFrame) -> str:
    return f"{frame.function} ({frame.file.split('/')[-1]}:{frame.line})"


def _rests(files: Sequence[str]) -> bool:
    """Return whether a main thread leaves the work to others: in an event loop, or at the end of a thread.

    A wait for a child (``subprocess.run``) or at a pipe is the job's own call, though it polls, too.
    """
    polls = files[0].endswith("/selectors.py")
    looks = files[1:] if polls else files[:1]
    return any(part in file for part in _LOOPS for file in looks) or all(
        file.endswith("/threading.py") for file in files[:2]
    )


def _by_phase(where: Where, phase: str) -> Where:
    return "data" if phase == "data" else where


@lru_cache(maxsize=8_192)
def _where(file: str, function: str) -> Where | None:
    path = "/" + file.replace("\\", "/")
    for part, where in _BY_FILE:
        if part in path:
            return where
    return next((where for pattern, where in _BY_FUNCTION if pattern.search(function)), None) if _is_own(path) else None


@lru_cache(maxsize=8_192)
def _is_own(file: str) -> bool:
    path = file.replace("\\", "/")
    return not path.startswith("<") and not any(part in path for part in _INSTALLED)


@lru_cache(maxsize=8_192)
def _is_long_work(file: str, function: str) -> bool:
    """Return whether a function of the job, or of a training framework, saves or validates, by its name."""
    path, words = file.replace("\\", "/"), function.lower().split("_")
    if _is_own(path):
        loop = words[0] in _LOOP or ("and" in words and not _LOOP.isdisjoint(words))
        return is_long(function) and not (loop or function.startswith("__")) and _IN_A_STEP.isdisjoint(words)
    return any(part in path for part in _FRAMEWORKS) and not _SAVES_OR_VALIDATES.isdisjoint(
        (*words, *path.rpartition("/")[2].removesuffix(".py").split("_"))
    )


@lru_cache(maxsize=8_192)
def _waits(file: str) -> bool:
    path = "/" + file.replace("\\", "/")
    return any(part in path for part in _WAITING)
