"""Expressions of metrics: ``loss/code - loss/web``. A small grammar of our own; no text is ever run as code.

    sum      = product { ("+" | "-") product }
    product  = sign { ("*" | "/") sign }
    sign     = "-" sign | atom
    atom     = number | name | function "(" sum { "," sum } ")" | "(" sum ")"

A name is letters, digits, ``_``, ``.``, ``:`` and ``/`` between two of those: ``loss/code`` is one metric,
``loss / code`` is a quotient. Any other name is quoted: `` `grad-norm` `` or ``"lm loss"``.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from stabilitybackend.base.errors import BadRequest

__all__ = ["EXPRESSION", "FUNCTIONS", "MAX_LENGTH", "MAX_METRICS", "Expression", "parse"]

#: First characters of the name of a series that is an expression.
EXPRESSION = "expr:"
#: Characters and parts of an expression: readable sizes.
MAX_LENGTH = 1_000
MAX_PARTS = 200
#: Metrics of one expression: each is read row by row.
MAX_METRICS = 8
#: Brackets and signs within each other.
MAX_DEPTH = 32

Column = NDArray[np.float64]
#: Function -> least and greatest number of arguments, and its implementation. NaN stays NaN in all of them.
FUNCTIONS: dict[str, tuple[int, int, Callable[..., Column]]] = {
    "abs": (1, 1, np.abs),
    "exp": (1, 1, np.exp),
    "log": (1, 1, np.log),
    "max": (2, 8, lambda *given: np.maximum.reduce(np.broadcast_arrays(*given))),
    "min": (2, 8, lambda *given: np.minimum.reduce(np.broadcast_arrays(*given))),
    "sqrt": (1, 1, np.sqrt),
}
_OPERATORS: dict[str, Callable[[Column, Column], Column]] = {
    "+": np.add,
    "-": np.subtract,
    "*": np.multiply,
    "/": np.divide,
}
_TOKEN = re.compile(
    r"(?P<space>\s+)|(?P<number>(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?(?![\w.:/]))|(?P<name>\w[\w.:]*(?:/[\w.:]+)*)"
    r"|`(?P<ticked>[^`]+)`|\"(?P<quoted>[^\"]+)\"|(?P<sign>[-+*/(),])"
)
_HINT = "write it as `loss/code - loss/web`; names with spaces or operators in quotes: `grad-norm`"


class _Token(NamedTuple):
    """A part of the text: ``kind`` is number, name, sign or end; ``at`` is where it begins, from 1."""

    kind: str
    text: str
    at: int


@dataclass(frozen=True, slots=True)
class Expression:
    """A parsed expression.

    Attributes:
        text: the given text. metrics: the names in it, each once, with its first position (from 1).
    """

    text: str
    metrics: Mapping[str, int]
    compute: Callable[[Mapping[str, Column]], Column]

    def values(self, columns: Mapping[str, Column]) -> Column:
        """Return the values over rows of the same steps. IEEE: 1/0 is Infinity, 0/0 and log(-1) are NaN."""
        with np.errstate(all="ignore"):
            size = len(next(iter(columns.values())))
            return np.ascontiguousarray(np.broadcast_to(self.compute(columns), size), np.float64)


def _wrong(text: str, at: int, what: str, hint: str = _HINT) -> BadRequest:
    return BadRequest(f"expression {text!r}: at character {at}: {what}", hint=hint, code="bad_expression", at=at)


def _tokens(text: str) -> list[_Token]:
    if len(text) > MAX_LENGTH:
        raise _wrong(text[:60] + "…", MAX_LENGTH + 1, f"{len(text)} characters, expected at most {MAX_LENGTH}")
    found, at = [], 0
    while at < len(text):
        match = _TOKEN.match(text, at)
        if match is None:
            what = "a quote that does not end" if text[at] in '`"' else f"{text[at]!r} has no meaning here"
            raise _wrong(text, at + 1, what)
        kind = match.lastgroup or ""
        if kind != "space":
            kind = "name" if kind in ("ticked", "quoted") else kind
            value = match["ticked"] or match["quoted"] or match[0]
            found.append(_Token("metric" if match[0][0] in '`"' else kind, value, at + 1))
        at = match.end()
    if len(found) > MAX_PARTS:
        raise _wrong(text, found[MAX_PARTS].at, f"{len(found)} parts, expected at most {MAX_PARTS}")
    return [*found, _Token("end", "", len(text) + 1)]


@lru_cache(maxsize=512)
def parse(text: str) -> Expression:
    """Return an expression.

    Raises:
        BadRequest: it is none; the message has the place, ``facts["at"]`` too.

    Example:
        >>> found = parse("2 * abs(a - b)")
        >>> found.values({"a": np.array([1.0, 5.0]), "b": np.array([3.0, 5.0])}).tolist()
        [4.0, 0.0]
    """
    parser = _Parser(text)
    compute = parser.sum(0)
    rest = parser.next
    if rest.kind != "end":
        raise _wrong(text, rest.at, f"{rest.text!r} where an operator or the end is expected")
    if not parser.metrics:
        raise _wrong(text, 1, "no metric in it")
    if len(parser.metrics) > MAX_METRICS:
        raise _wrong(text, list(parser.metrics.values())[MAX_METRICS], f"more than {MAX_METRICS} metrics")
    return Expression(text, parser.metrics, compute)


_Compute = Callable[[Mapping[str, Column]], Column]


class _Parser:
    def __init__(self, text: str) -> None:
        self.text = text
        self.metrics: dict[str, int] = {}
        self._tokens = _tokens(text)
        self._place = 0

    @property
    def next(self) -> _Token:
        return self._tokens[self._place]

    def _take(self, *signs: str) -> str:
        """Return the next sign if it is one of these, else ""."""
        token = self.next
        if token.kind != "sign" or token.text not in signs:
            return ""
        self._place += 1
        return token.text

    def _expect(self, sign: str, what: str) -> None:
        if not self._take(sign):
            given = repr(self.next.text) if self.next.text else "the end"
            raise _wrong(self.text, self.next.at, f"{given} where {what} is expected")

    def sum(self, depth: int) -> _Compute:
        left = self._product(depth)
        while sign := self._take("+", "-"):
            left = _binary(_OPERATORS[sign], left, self._product(depth))
        return left

    def _product(self, depth: int) -> _Compute:
        left = self._sign(depth)
        while sign := self._take("*", "/"):
            left = _binary(_OPERATORS[sign], left, self._sign(depth))
        return left

    def _sign(self, depth: int) -> _Compute:
        if depth > MAX_DEPTH:
            raise _wrong(self.text, self.next.at, f"more than {MAX_DEPTH} brackets or signs within each other")
        if self._take("-"):
            inner = self._sign(depth + 1)
            return lambda columns: np.negative(inner(columns))
        return self._atom(depth)

    def _atom(self, depth: int) -> _Compute:
        token = self.next
        self._place += token.kind != "end"
        if token.kind == "number":
            number = np.float64(token.text)
            return lambda columns: np.asarray(number)
        if token.kind == "name" and token.text in FUNCTIONS and self.next.text == "(" and self.next.kind == "sign":
            return self._function(token, depth)
        if token.kind in ("name", "metric"):
            self.metrics.setdefault(token.text, token.at)
            return lambda columns: columns[token.text]
        if token.kind == "sign" and token.text == "(":
            inner = self.sum(depth + 1)
            self._expect(")", "')'")
            return inner
        given = repr(token.text) if token.text else "the end"
        raise _wrong(self.text, token.at, f"{given} where a metric, a number or '(' is expected")

    def _function(self, name: _Token, depth: int) -> _Compute:
        least, most, function = FUNCTIONS[name.text]
        self._expect("(", "'('")
        given = [self.sum(depth + 1)]
        while self._take(","):
            given.append(self.sum(depth + 1))
        self._expect(")", "',' or ')'")
        if not least <= len(given) <= most:
            wanted = str(least) if least == most else f"{least} to {most}"
            raise _wrong(self.text, name.at, f"{name.text} of {len(given)}, expected {wanted} in its brackets")
        return lambda columns: function(*(one(columns) for one in given))


def _binary(operator: Callable[[Column, Column], Column], left: _Compute, right: _Compute) -> _Compute:
    return lambda columns: operator(left(columns), right(columns))
