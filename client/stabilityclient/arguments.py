"""Checks of the arguments of a training script: a step is a whole number, a text has a bound."""

from __future__ import annotations

import sys
from _operator import index  # the same as operator.index, without the module's import time

from stabilityclient.errors import RefusedError
from stabilityclient.metrics.schemas import MAX_NAME_CHARS
from stabilityclient.metrics.values import on_device

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from types import TracebackType
    from typing import Any

__all__ = [
    "MAX_DATASETS", "MAX_STEP", "by_dataset", "cut", "cut_inside", "gist", "mapping_of", "name_in", "not_a_mapping",
    "plain", "share_in", "step_of", "trace_of", "without_secrets",
]  # fmt: skip

#: Largest step: the last one that a browser's double holds exactly.
MAX_STEP = 2**53 - 1
#: Data sets of one declaration.
MAX_DATASETS = 64
#: Free data (config, changes) deeper than this becomes text: the server takes 20 levels.
MAX_DEPTH = 12
#: Values in free data, at most.
MAX_VALUES = 20_000
#: Innermost frames of a traceback that are given with their source, characters kept of such a line, and lines of a file
#: that are read for it.
SOURCE_FRAMES = 4
MAX_SOURCE_CHARS = 200
MAX_SOURCE_LINES = 20_000
#: Characters kept of a traceback, of both its ends: servers keep 2,000 of a fact.
MAX_TRACE_CHARS = 1_900
#: Longest text in free data, characters: the server takes 100,000.
MAX_PLAIN_CHARS = 10_000
#: Values of an array in free data; a longer one is its text.
MAX_ARRAY = 1_000
#: Classes whose attributes are their content, by module and name: neither is imported for it.
_NAMESPACES = frozenset({("argparse", "Namespace"), ("types", "SimpleNamespace")})


def step_of(step: Any) -> int:
    """Return a step as an int, or refuse it.

    Raises:
        RefusedError: not a whole number, negative, too large, or on a device (reading it would wait).
    """
    if on_device(step):
        raise RefusedError(
            [f"step is a {type(step).__name__} on a device, expected an int: reading it would make training wait"]
        )
    try:
        number = _whole(step)
    except Exception as error:
        raise RefusedError([f"step is {step!r:.80} ({type(step).__name__}), expected a whole number"]) from error
    if not 0 <= number <= MAX_STEP:
        shown = (
            number
            if abs(number) < 10**30
            else f"about 10**{len(str(abs(number))) - 1}"
            if abs(number) < 10**1000
            else "huge"
        )
        raise RefusedError([f"step is {shown}, expected 0 to {MAX_STEP}"])
    return number


def _whole(step: Any) -> int:
    """Return a whole number that may come as 1.0, as a NumPy scalar or in an array or tensor without dimensions.

    Raises:
        TypeError: it is none.
    """
    value = step
    if getattr(step, "ndim", None) == 0 and callable(getattr(step, "item", None)):
        value = step.item()
    if isinstance(value, bool):
        raise TypeError
    if isinstance(value, float) and value.is_integer():
        return int(value)
    return index(value)


def name_in(role: str, name: object) -> str:
    """Return the name of a metric or data set, or refuse it (``RefusedError``)."""
    if not isinstance(name, str) or not 1 <= len(name) <= MAX_NAME_CHARS:
        raise RefusedError([f"{role} is {name!r:.80}, expected a name of 1 to {MAX_NAME_CHARS} characters"])
    return name


def by_dataset(role: str, metrics: Mapping[str, str]) -> dict[str, str]:
    """Return data set -> metric, or refuse it (``RefusedError``)."""
    if len(metrics) > MAX_DATASETS:
        raise RefusedError([f"{role} names {len(metrics)} data sets, expected at most {MAX_DATASETS}"])
    return {
        name_in(f"a data set of {role}", one): name_in(f"{role} of {one}", metric) for one, metric in metrics.items()
    }


def share_in(dataset: str, share: object) -> float:
    """Return the share of a data set, 0 to 1, or refuse it (``RefusedError``)."""
    if isinstance(share, bool) or not isinstance(share, int | float) or not 0 <= share <= 1:
        raise RefusedError([f"the share of {dataset!r:.80} is {share!r:.80}, expected a number from 0 to 1"])
    return float(share)


def not_a_mapping(step: object, metrics: object) -> RefusedError:
    """Return the refusal of a call of log() without a mapping of metrics."""
    if metrics is None and hasattr(step, "values"):
        return RefusedError(["the metrics came alone, expected run.log(step, {'loss': 1.5}): give the step first"])
    what = f"metrics is {metrics!r:.80} ({type(metrics).__name__})"
    return RefusedError([f"{what}, expected a mapping of names to numbers: run.log(step, {{'loss': 1.5}})"])


def cut(text: object, chars: int) -> str:
    """Return ``text`` with at most ``chars`` characters, marked where it was cut, and as valid Unicode."""
    given = text if isinstance(text, str) else str(text)
    given = given.encode("utf-8", "replace").decode()  # half a surrogate pair can't be sent
    return given if len(given) <= chars else f"{given[: chars - 40]}... ({len(given)} characters)"


def without_secrets(url: str) -> str:
    """Return a URL without its user, password and query, which may be a key, a signature or a token.

    The part before ``@`` in Azure's URLs is a container: ``abfss://container@account.dfs.core.windows.net/path``.
    """
    scheme, _, rest = url.partition("://")
    place, slash, path = rest.partition("?")[0].partition("/")
    user, _, host = place.rpartition("@")
    if user and scheme in ("abfs", "abfss", "wasb", "wasbs"):
        host = f"{user.partition(':')[0]}@{host}"
    return f"{scheme}://{host}{slash}{path}"


def cut_inside(text: object, chars: int) -> str:
    """Return ``text`` as ``cut`` does, but with its end: a traceback ends with the error."""
    given = cut(text, 2**31)
    if len(given) <= chars:
        return given
    mark = f" ... ({len(given)} characters) ... "
    kept = max(0, chars - len(mark))
    return given[: kept - kept // 2] + mark + given[len(given) - kept // 2 :]


def gist(text: str) -> str:
    """Return an exception's message in a line: of a traceback in it the lines around it.

    A DataLoader raises "Caught ValueError in DataLoader worker process 0.", some 30 lines, and then the cause.
    PyTorch adds to each error of a GPU the same four lines of general advice.
    """
    if text.startswith(("CUDA error: ", "HIP error: ")):
        return text.partition("\n")[0].strip()
    head, found, trace = text.partition("Traceback (most recent call last):")
    if not found:
        return " ".join(text.split()) if "\n" in text else text
    before = [line.strip() for line in head.splitlines() if line.strip() and line.strip() != "Original"]
    after = [line.strip() for line in trace.splitlines() if line.strip() and not line.startswith((" ", "\t"))]
    return " ".join((*before[:1], *after[-1:])) or " ".join(text.split())


def trace_of(error: BaseException) -> str:
    """Return the frames of an exception, outermost first, as Python prints it; of the last frames with their source.

    Imports nothing: the imports of the module traceback at its first use make Python forget that Ctrl-C ended the
    process (its exit would be 1). Python prints the same lines right after this, from the same files.
    """
    frames, at = [], error.__traceback__
    count = _depth(at)
    while at is not None:
        code = at.tb_frame.f_code
        frames.append(f'  File "{code.co_filename}", line {at.tb_lineno}, in {code.co_name}\n')
        count -= 1
        if count < SOURCE_FRAMES and (line := _source(code.co_filename, at.tb_lineno)):
            frames[-1] += f"    {line}\n"
        if len(frames) > 200:
            del frames[40:-40]  # of an endless recursion; both ends alone are longer than the limit
        at = at.tb_next
    return cut_inside("".join(frames), MAX_TRACE_CHARS)


def _depth(trace: TracebackType | None) -> int:
    count = 0
    while trace is not None:
        count, trace = count + 1, trace.tb_next
    return count


def _source(path: str, number: int) -> str:
    """Return a line of a file, cut to the limit; "" where there is none, or it lies far down."""
    known = sys.modules.get("linecache")  # it has the cells of a notebook, too
    try:
        if known is not None:
            return str(known.getline(path, number)).strip()[:MAX_SOURCE_CHARS]
        if number > MAX_SOURCE_LINES:
            return ""
        with open(path, encoding="utf-8", errors="replace") as file:
            return next((line for at, line in enumerate(file, 1) if at == number), "").strip()[:MAX_SOURCE_CHARS]
    except Exception:  # no file, or a foreign loader that raises
        return ""


def plain(value: Any) -> Any:
    """Return free data in types that both JSON and MessagePack hold. Other things become their text; never raises.

    Data deeper than MAX_DEPTH levels or with more than MAX_VALUES values (it may refer to itself) is cut with a mark.
    """
    return _plain(value, MAX_DEPTH, [MAX_VALUES])


def mapping_of(given: Any) -> dict[str, Any]:
    """Return a config as a dict, {} for one without names; never raises.

    Args:
        given: None, a mapping, argparse's Namespace, a dataclass, or any object with public attributes.
    """
    try:
        found = _opened(given)
        if not isinstance(found, dict):
            found = {name: value for name, value in vars(given).items() if not name.startswith("_")}
        return {_plain_text(name): value for name, value in found.items()}
    except Exception:  # no attributes, or foreign ones that raise
        return {} if given is None else {"config": given}


def _opened(value: Any) -> Any:
    """Return the content of a value that JSON does not know: a dict, a list or a scalar; else the value itself."""
    kind = type(value)
    if isinstance(value, dict | list | tuple | set | frozenset | str | bytes | type(None)):
        return value
    fields = getattr(kind, "__dataclass_fields__", None)
    if fields is not None:
        return {name: getattr(value, name, None) for name in fields}
    if hasattr(kind, "keys") and hasattr(kind, "__getitem__"):
        return {key: value[key] for key in value.keys()}  # noqa: SIM118 - no other method is promised
    if any((base.__module__, base.__name__) in _NAMESPACES for base in kind.__mro__):
        return vars(value)
    if any((base.__module__, base.__name__) == ("enum", "Enum") for base in kind.__mro__):
        return _opened(value.value)
    size = getattr(value, "size", None)
    count = size if isinstance(size, int) else getattr(value, "numel", lambda: 0)()
    if callable(getattr(value, "item", None)) and not on_device(value) and 0 < count <= MAX_ARRAY:
        return value.item() if getattr(value, "ndim", 0) == 0 else value.tolist()
    return value


def _plain(value: Any, depth: int, left: list[int]) -> Any:
    left[0] -= 1
    try:
        value = _opened(value)
    except Exception:  # a foreign object
        return _plain_text(value)
    if value is None or isinstance(value, bool | float) or (isinstance(value, int) and -(2**63) <= value < 2**63):
        return value
    if isinstance(value, dict | list | tuple | set | frozenset):
        if depth == 0 or left[0] <= 0:
            return "..."
        if isinstance(value, dict):
            return {_plain_text(key): _plain(inner, depth - 1, left) for key, inner in value.items() if left[0] > 0}
        return [_plain(inner, depth - 1, left) for inner in value if left[0] > 0]
    return _plain_text(value)


def _plain_text(value: object) -> str:
    try:
        # Python refuses to write out an integer of thousands of digits.
        text = hex(value) if isinstance(value, int) and abs(value) >= 2**63 else value
        return cut(text, MAX_PLAIN_CHARS)
    except Exception:  # a foreign __str__
        return f"a {type(value).__name__}"
