"""Whatever event an agent sends, no free text of it leaves the node with a secret: each field of each type is tried."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from msgspec import inspect

from stabilitybackend.schema.events import EVENTS
from stabilitybackend.schema.health import AgentState, TypedHealth
from stabilityclient.agent.upload.framing import encoded_frame
from stabilityclient.agent.upload.records import STEP_TIME, SpooledEvent, SpooledRow
from stabilityclient.node_frames import frames_in
from stabilityclient.secrets.messages import cleaned
from stabilityclient.secrets.texts import is_secret_name
from stabilityclient.wire import EventBlock, Health, Hello, Output, OutputLine, PointsBlock, SourceInfo, encode_message

#: Fields that are places to load from, and names of metrics: of these only the addresses are cleaned.
ADDRESSES = {"path", "bad", "files", "folder", "script", "python", "roles", "datasets"}
GOLDEN = Path(__file__).parents[1] / "client" / "golden"


class Plants:
    """Makes texts, each with secrets of its own."""

    def __init__(self) -> None:
        self._numbers = itertools.count()

    def text(self, field: str) -> str:
        secret = f"Zq{next(self._numbers)}planted"
        address = f"https://me:{secret}a@h.example/x?page=1&token={secret}b"
        return address if field in ADDRESSES else f"failed with password={secret}c at {address}, key hf_{secret}d"

    def data(self, kind: inspect.Type, field: str) -> Any:
        """Return a value of a type in which every text has a secret, at every place where the type takes a text."""
        if isinstance(kind, inspect.UnionType):
            return self._union(kind, field)
        if isinstance(kind, inspect.StructType):
            return {each.encode_name: self.data(each.type, each.encode_name) for each in kind.fields}
        if isinstance(kind, inspect.DictType):
            inner = self.data(kind.value_type, field)
            return {f"name of {self.text(field)}": inner}
        if isinstance(kind, inspect.ListType):
            return [self.data(kind.item_type, field)]
        if isinstance(kind, inspect.AnyType):
            return {"free": [{"deep": self.text("")}], "hf_token": self.text(""), f"{self.text('')}": 1}
        if isinstance(kind, inspect.LiteralType):
            return kind.values[0]
        return self._plain(kind, field)

    def _union(self, kind: inspect.UnionType, field: str) -> Any:
        order = (inspect.StrType, inspect.StructType, inspect.DictType, inspect.ListType, inspect.AnyType)
        return self.data(
            min(kind.types, key=lambda each: next((at for at, one in enumerate(order) if isinstance(each, one)), 9)),
            field,
        )

    def _plain(self, kind: inspect.Type, field: str) -> Any:
        values = {inspect.StrType: self.text(field), inspect.BoolType: True, inspect.FloatType: 1.0}
        return values.get(type(kind), 1)


def planted(kind: type[msgspec.Struct]) -> dict[str, Any]:
    found = Plants().data(inspect.type_info(kind), "")
    assert isinstance(found, dict)
    return found


@pytest.mark.parametrize("kind", EVENTS)
def test_no_event_leaves_with_a_secret(kind: str) -> None:
    record = SpooledEvent(1, kind, 1.0, 1, planted(EVENTS[kind]))

    _, sent = encoded_frame(SourceInfo("r0-1-1", rank=0), [record])

    assert b"planted" not in sent


def test_an_event_of_a_type_that_nobody_knows_yet_leaves_without_its_secrets() -> None:
    data = {"said": Plants().text(""), "at": [Plants().text("")], "hub_token": "Zqplanted1"}

    _, sent = encoded_frame(SourceInfo("r0-1-1", rank=0), [SpooledEvent(1, "of a later agent", 1.0, 1, data)])

    assert b"planted" not in sent


def test_no_report_of_health_leaves_with_a_secret() -> None:
    (rank,) = Plants().data(inspect.type_info(TypedHealth), "")["ranks"]
    health = Health("a1", "n0", 1.0, [rank], planted(AgentState))

    assert b"planted" not in encode_message(cleaned(health))


def test_no_introduction_and_no_line_of_output_leaves_with_a_secret() -> None:
    plants = Plants()
    texts = [plants.text("") for _ in range(4)]
    hello = Hello("r1", "a1", "n0", "1", name=texts[0], config={"x": [texts[1]]}, tags=[texts[2]], notes=texts[3])
    output = Output("a1", "n0", [OutputLine(1.0, 0, "out", 1, plants.text(""))])

    assert b"planted" not in encode_message(cleaned(hello))
    assert b"planted" not in encode_message(cleaned(output))


def test_no_name_of_a_metric_leaves_with_a_secret_and_two_stay_two() -> None:
    names = ("loss", "loss/s3://b/x?token=Zqplanted1", "loss/s3://b/x?token=Zqplanted2")
    row = SpooledRow(1, names, STEP_TIME.pack(1, 1.0) + bytes(24))

    frame, sent = encoded_frame(SourceInfo("r0-1-1", rank=0), [row])

    assert b"planted" not in sent
    (block,) = frame.blocks
    assert isinstance(block, PointsBlock)
    assert (block.names[0], len(set(block.names))) == ("loss", 3)


def test_no_field_of_the_wire_is_taken_for_a_secret_by_its_name() -> None:
    def names(kind: inspect.Type) -> Iterator[str]:
        if isinstance(kind, inspect.StructType):
            yield from (each.encode_name for each in kind.fields)
        for inner in [*getattr(kind, "types", ()), *(each.type for each in getattr(kind, "fields", ()))]:
            yield from names(inner)
        for part in ("item_type", "value_type"):
            if hasattr(kind, part):
                yield from names(getattr(kind, part))

    found = {name for kind in [*EVENTS.values(), TypedHealth] for name in names(inspect.type_info(kind))}

    assert {name for name in found if is_secret_name(name)} == set()


@pytest.mark.parametrize("file", sorted(GOLDEN.glob("*frame*.bin")), ids=lambda file: file.name)
def test_frames_without_secrets_leave_as_they_are(file: Path) -> None:
    for frame in frames_in(file.read_bytes()):
        before = encode_message(frame)
        assert any(isinstance(block, EventBlock) for block in frame.blocks) or frame.blocks
        assert encode_message(cleaned(frame)) == before
