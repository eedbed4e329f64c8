"""Takes the ids of ``run.data(ids=...)``: in the training thread only a copy, in another one the hashes.

Of a batch of tokens (two dimensions, a row a sample) some columns are copied: all of 32 or fewer, else eight from the
24th on and 8 to 15 at equal distances over the whole row. Rows that differ elsewhere only are taken for one: the same
text with a token changed between, or short texts with one beginning, padded. Where that may be, ids of samples are
better. The number of columns is part of the hash.

A tensor on a CUDA device is not waited for: its columns go into pinned memory, and an event shows when they are there,
as in ``metrics/metric_coercion.py``.
"""

from __future__ import annotations

import sys
import time
from binascii import b2a_base64

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from typing import Any

__all__ = [
    "KEPT",
    "MASK",
    "MAX_DATASETS",
    "MAX_QUEUED",
    "Batch",
    "Recorder",
    "factors",
    "kept_of",
    "mixed",
    "sample_hash",
    "shift_for",
    "taken",
    "unsigned",
]

MASK = 2**64 - 1
#: Hashes that a call keeps of a data set, at most on average; at least half as many. 8 bytes of text each: 64 to 128
#: bytes a step.
KEPT = 16
#: Bytes of a hash that travel: of 300,000 samples two are taken for one with a probability of 2**-12.
HASH_BYTES = 6

# The finaliser of SplitMix64 (Steele, Lea, Flood, OOPSLA 2014), its factors as signed numbers.
_ADD, _FIRST, _SECOND = 0x9E3779B97F4A7C15 - 2**64, 0xBF58476D1CE4E5B9 - 2**64, 0x94D049BB133111EB - 2**64


def mixed(values: Any) -> Any:
    """Return the hash of each of some signed 64-bit integers, as an array or tensor of the same kind."""
    values = values + _ADD
    values = (values ^ ((values >> 30) & 0x3FFFFFFFF)) * _FIRST
    values = (values ^ ((values >> 27) & 0x1FFFFFFFFF)) * _SECOND
    return values ^ ((values >> 31) & 0x1FFFFFFFF)


def _mixed_one(value: int) -> int:
    value = (value + _ADD) & MASK
    value = ((value ^ (value >> 30)) * _FIRST) & MASK
    value = ((value ^ (value >> 27)) * _SECOND) & MASK
    return value ^ (value >> 31)


def factors(count: int) -> list[int]:
    """Return ``count`` odd numbers, signed: a row of tokens is multiplied with them and added up.

    Two rows that differ have one sum with a probability of 2**-44 at most (multilinear hashing, Lemire and Kaser 2014;
    20 bits are lost where all differences are multiples of a large power of two, which tokens can't exceed).
    """
    numbers = (_mixed_one(at) | 1 for at in range(1, count + 1))
    return [number - 2**64 if number >= 2**63 else number for number in numbers]


def sample_hash(sample: object, salt: int = 0) -> int:
    """Return the hash of one id: a whole number, text or bytes; ``salt`` separates data sets.

    Raises:
        ValueError: it is none.
    """
    if isinstance(sample, str | bytes):
        from hashlib import blake2b  # most jobs have numbers

        text = sample if isinstance(sample, bytes) else sample.encode("utf-8", "surrogatepass")
        return _mixed_one(int.from_bytes(blake2b(text, digest_size=8).digest(), "little") + salt)
    try:
        return _mixed_one(sample.__index__() + salt)  # type: ignore[attr-defined]
    except Exception:
        kind = type(sample).__name__
        raise ValueError(f"an id of ids= is a {kind}, expected whole numbers or texts that name the samples") from None


def shift_for(samples: int) -> int:
    """Return how many leading zero bits the hashes of a batch of so many samples need to be kept."""
    return max(0, (max(samples, 1) - 1) // KEPT).bit_length()


def kept_of(hashes: Iterable[int], shift: int) -> str:
    """Return the upper HASH_BYTES of the hashes with ``shift`` leading zero bits, as base64."""
    limit = 64 - shift
    kept: Sequence[int] = sorted({one for one in hashes if not one >> limit})
    data = b"".join([one.to_bytes(8, "big")[:HASH_BYTES] for one in kept[: 4 * KEPT]])
    return b2a_base64(data, newline=False).decode()


def unsigned(values: Iterable[int]) -> list[int]:
    """Return signed 64-bit numbers as hashes."""
    return [value & MASK for value in values]


#: Data sets of one call.
MAX_DATASETS = 64
MAX_NAME_CHARS = 100
#: Rows up to this many columns are hashed whole; of longer ones HEAD (after the start of texts of one template,
#: before the padding of short ones), and ACROSS to twice as many over the whole row. Each line of
#: memory is one that the core has to wait for, 5 ns: of 512 rows of 2,048 tokens 5,120 (benchmarks/batch_ids.py).
WHOLE_COLUMNS = 32
HEAD = slice(24, 32)
ACROSS = 8
#: Rows of one batch of tokens; more of them are ids.
MAX_ROWS = 65_536

_factors: dict[tuple[str, int], Any] = {}


class Batch:
    """One rank's samples of a step, copied; ``hashed`` may run in any thread.

    Attributes:
        of: their kind: ``ids``, or ``tokens[2048]`` with the length of a row.
        samples, tokens: how many; tokens is None where ids were given.
    """

    def __init__(self, of: str, samples: int, tokens: int | None, read: Callable[[], Any]) -> None:
        self.of, self.samples, self.tokens, self._read = of, samples, tokens, read

    def hashed(self, dataset: str = "") -> tuple[int, int, str]:
        """Return the sum of the samples' hashes, the number of zero bits of those that are kept, and these.

        Raises:
            ValueError: an id is none.
        """
        shift = shift_for(self.samples)
        salt = sample_hash(dataset) >> 1 if dataset else 0  # sample 5 of one data set is another than that of the next
        found = self._read()
        if isinstance(found, tuple):
            hashes = [sample_hash(one, salt) for one in found]
            return sum(hashes) & MASK, shift, kept_of(hashes, shift)
        hashed = mixed(found + salt)
        few = hashed[((hashed >> (64 - shift)) & (2**shift - 1)) == 0] if shift else hashed[: 4 * KEPT]
        return int(hashed.sum()) & MASK, shift, kept_of(unsigned(few.tolist()), shift)


def taken(ids: Any) -> dict[str, Batch]:
    """Return a copy of ``ids`` by data set (``""`` where none is named), without waiting for a device.

    Raises:
        ValueError: it is none; the text has the given and the expected value.
    """
    if not isinstance(ids, dict) and not hasattr(ids, "keys"):
        return {"": _taken(ids)}
    named: Mapping[str, Any] = ids
    if len(named) > MAX_DATASETS:
        raise ValueError(f"ids= has {len(named)} data sets, expected at most {MAX_DATASETS}")
    return {str(name)[:MAX_NAME_CHARS]: _taken(one) for name, one in named.items()}


def _taken(ids: Any) -> Batch:
    if isinstance(ids, list | tuple | range):
        copied = tuple(ids)
        return Batch("ids", len(copied), None, lambda: copied)
    torch, numpy = sys.modules.get("torch"), sys.modules.get("numpy")
    is_tensor = torch is not None and isinstance(ids, torch.Tensor)
    if not is_tensor and (numpy is None or not isinstance(ids, numpy.ndarray)):
        kind = type(ids).__name__
        raise ValueError(
            f"ids= is a {kind}, expected a list of whole numbers or texts, an array or tensor of them, or one with a "
            "row of tokens for each sample"
        )
    if is_tensor and hasattr(ids, "to_local"):
        raise ValueError("ids= is a distributed tensor, expected this rank's own: call .to_local()")
    if is_tensor and numpy is not None and ids.is_cpu and not ids.is_floating_point():
        ids, is_tensor = ids.detach().numpy(), False  # the same memory, and asking and copying cost half as much
    if not is_tensor and ids.ndim == 1 and ids.dtype.kind in "USO":
        return _taken(ids.tolist())
    whole = not (ids.is_floating_point() or ids.is_complex()) if is_tensor else ids.dtype.kind in "iub"
    if not whole or ids.ndim not in (1, 2) or len(ids) > MAX_ROWS:
        raise ValueError(
            f"ids= has the shape {tuple(ids.shape)} of {ids.dtype}, expected whole numbers: one a sample, or a row of "
            f"tokens a sample, at most {MAX_ROWS:,} samples"
        )
    pieces = [ids]
    if ids.ndim == 2 and ids.shape[1] > WHOLE_COLUMNS:
        pieces = [ids[:, HEAD], ids[:, :: ids.shape[1] // ACROSS]]
    copies = _tensor_copies(torch, pieces) if is_tensor else _array_copies(numpy, pieces)
    if ids.ndim == 1:
        return Batch("ids", len(ids), None, lambda: copies()[0])
    columns = int(ids.shape[1])
    return Batch(f"tokens[{columns}]", len(ids), len(ids) * columns, lambda: _rows(copies(), columns))


def _array_copies(numpy: Any, pieces: list[Any]) -> Callable[[], list[Any]]:
    copied = [piece.astype(numpy.int64) for piece in pieces]
    return lambda: copied


def _tensor_copies(torch: Any, pieces: list[Any]) -> Callable[[], list[Any]]:
    if not pieces[0].is_cuda:
        with torch.no_grad():
            copied = [piece.detach().clone() for piece in pieces]
        return lambda: [piece.cpu().to(torch.int64) for piece in copied]
    with torch.no_grad():
        hosted = [piece.detach().to("cpu", non_blocking=True) for piece in pieces]
    arrived = torch.cuda.Event(blocking=True)
    arrived.record(torch.cuda.current_stream(pieces[0].device))

    def read() -> list[Any]:
        arrived.synchronize()
        return [piece.to(torch.int64) for piece in hosted]

    return read


def _rows(pieces: list[Any], columns: int) -> Any:
    """Return a number for each row of tokens, to be hashed."""
    total: Any = columns
    at = 0
    for piece in pieces:
        width = int(piece.shape[1])
        total = total + (piece * _factors_like(piece, at, width)).sum(1)
        at += width
    return total


def _factors_like(piece: Any, at: int, width: int) -> Any:
    key = (f"{type(piece).__module__} {at}", width)
    known = _factors.get(key)
    if known is None:
        numbers = factors(at + width)[at:]
        if hasattr(piece, "new_tensor"):
            known = piece.new_tensor(numbers)
        else:
            known = sys.modules["numpy"].array(numbers, "int64")
        if len(_factors) >= MAX_DATASETS:
            _factors.clear()
        _factors[key] = known
    return known


#: Batches waiting for the thread, or for their device. Beyond it they are dropped and counted.
MAX_QUEUED = 1_000

Facts = dict[str, object]


class Recorder:
    """Hashes batches in a thread of its own and hands their events on, in order.

    Args:
        store: called as ``store(step, when, data)`` from the thread.
        trouble: called with an exception when a batch can't be hashed.

    Attributes:
        dropped: batches that did not fit the queue.
    """

    def __init__(self, store: Callable[[int, float, Facts], object], trouble: Callable[[Exception], None]) -> None:
        import queue
        import threading

        self.dropped = 0
        self._store = store
        self._trouble = trouble
        self._full = queue.Full
        self._queue: queue.Queue[tuple[int, float, Facts, dict[str, Batch]]] = queue.Queue(MAX_QUEUED)
        threading.Thread(target=self._work, name="stability-data", daemon=True).start()

    def put(self, step: int, when: float, facts: Facts, sets: dict[str, Batch]) -> bool:
        """Queue the data of a step; return False where the queue is full."""
        try:
            self._queue.put_nowait((step, when, facts, sets))
        except self._full:
            self.dropped += 1
            return False
        return True

    def drain(self, wait_s: float) -> None:
        """Wait until everything queued is stored, ``wait_s`` seconds at most."""
        deadline = time.monotonic() + wait_s
        while self._queue.unfinished_tasks and time.monotonic() < deadline:
            time.sleep(0.001)

    def _work(self) -> None:
        while True:
            step, when, facts, sets = self._queue.get()
            try:
                self._store(step, when, {**event_data(sets), **facts})
            except Exception as error:  # the thread must live as long as the run
                self._trouble(error)
            finally:
                self._queue.task_done()


def event_data(sets: dict[str, Batch]) -> Facts:
    """Return the data of a ``batch`` event (docs/wire.md)."""
    total, tokens, shown = 0, 0, []
    for name, batch in sets.items():
        part, shift, kept = batch.hashed(name)
        total += part
        tokens += batch.tokens or 0
        shown.append({"name": name, "samples": batch.samples, "shift": shift, "kept": kept})
    data: Facts = {"fingerprint": f"{total & (2**64 - 1):016x}", "of": "+".join(sorted({b.of for b in sets.values()}))}
    data["samples"] = sum(batch.samples for batch in sets.values())
    if tokens:
        data["tokens"] = tokens
    return {**data, "sets": shown}
