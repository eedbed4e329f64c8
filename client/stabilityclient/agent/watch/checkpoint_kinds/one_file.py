"""One file: of ``torch.save``, a zip archive whose directory is at its end, or safetensors."""

from __future__ import annotations

import json
import zipfile
from contextlib import suppress

from stabilityclient.agent.watch.checkpoint_kinds.found import Folder, Found

__all__ = ["damage", "inspect_file", "pickle_of"]

#: Largest header of a safetensors file, bytes: its own format's limit.
#: https://github.com/huggingface/safetensors#format
MAX_HEADER_BYTES = 100_000_000
#: First bytes of a zip archive and of a bare pickle (torch.save before 1.6, and today on request).
_ZIP, _PICKLE = b"PK", b"\x80"
#: Lightning writes its version as one of the first values of a checkpoint (``dump_checkpoint``).
_LIGHTNING, _LIGHTNING_WITHIN_BYTES = b"pytorch-lightning_version", 65_536


def inspect_file(folder: Folder, name: str) -> Found:
    """Return the findings in one file of a folder. Raises OSError where it can't be read."""
    if not folder.sizes[name]:
        return Found("file", {name: "empty"})
    with folder.open(name) as file:
        head = file.read(2)
    if not name.endswith(".safetensors") and head != _ZIP:
        return Found("unknown", judged=False)
    wrong = damage(folder, name)
    lightning = head == _ZIP and not wrong and _LIGHTNING in pickle_of(folder, name, _LIGHTNING_WITHIN_BYTES)
    return Found("lightning" if lightning else "file", {name: wrong} if wrong else {}, loads_with="any")


def damage(folder: Folder, name: str) -> str:
    """Return the fault of a file of weights or state, "" for one that is whole.

    Of a bare pickle and of other formats only the first bytes are checked.

    Raises:
        OSError: it can't be read.
    """
    if not folder.sizes[name]:
        return "empty"
    if name.endswith(".safetensors"):
        return _damaged_safetensors(folder, name)
    try:
        with folder.open(name) as file:
            head = file.read(2)
            if head != _ZIP:
                return "" if head.startswith(_PICKLE) else "damaged: it begins as no file of torch.save does"
            archive = zipfile.ZipFile(file)
            first = min((entry.header_offset for entry in archive.infolist()), default=0)
    except (zipfile.BadZipFile, ValueError, NotImplementedError):
        return "truncated"  # the directory is written last
    return "damaged: a part of it is missing" if first else ""


def _damaged_safetensors(folder: Folder, name: str) -> str:
    size = folder.sizes[name]
    with folder.open(name) as file:
        length = int.from_bytes(file.read(8), "little")
        if size < 8 + length or not 2 <= length <= MAX_HEADER_BYTES:
            return "truncated" if length <= MAX_HEADER_BYTES else "damaged: its header is none"
        try:
            header = json.loads(file.read(length))
            ends = [each["data_offsets"][1] for tensor, each in header.items() if tensor != "__metadata__"]
            needed = 8 + length + max(ends, default=0)
        except (ValueError, KeyError, IndexError, TypeError, AttributeError, RecursionError):
            return "damaged: its header is none"
    return f"truncated ({size:,} of {needed:,} bytes)" if size < needed else ""


def pickle_of(folder: Folder, name: str, most: int) -> bytes:
    """Return the first ``most`` bytes of the pickle in a file of ``torch.save``, for a search in them; b"" for none."""
    with suppress(zipfile.BadZipFile, OSError, ValueError, NotImplementedError), folder.open(name) as file:
        archive = zipfile.ZipFile(file)
        for entry in archive.infolist():
            if entry.filename.endswith("/data.pkl"):
                with archive.open(entry) as inside:
                    return inside.read(most)
    return b""
