"""DeepSpeed: a tag's folder with a file of model states for each model-parallel rank, and a file for each ZeRO rank."""

from __future__ import annotations

import re
from collections.abc import Sequence

from stabilityclient.agent.watch.checkpoint_kinds.found import Folder, Found
from stabilityclient.agent.watch.checkpoint_kinds.one_file import damage, pickle_of

__all__ = ["inspect_tag", "is_tag", "tag_of"]

#: deepspeed/runtime/engine.py, ``_get_ckpt_name``, ``_get_zero_ckpt_name``: ZeRO-3 has model states of each rank too.
_MODEL = re.compile(r"mp_rank_(?P<mp>\d{2,9})_model_states\.pt")
_ZERO = re.compile(
    r"(?P<half>bf16_|fp16_)?zero_pp_rank_(?P<dp>\d{1,9})_mp_rank_(?P<mp>\d{2,9})_(?P<what>optim|model)_states\.pt"
)
#: The number of its data-parallel ranks is in the model states, near the end of their pickle: so many bytes
#: are searched.
_PICKLE_BYTES = 32 * 1024 * 1024
#: The key as torch's pickle has it, a note of its place, a small whole number.
_DP = re.compile(rb"X\x0d\x00\x00\x00dp_world_size(?:q.|r.{4})(?:K(.)|M(.{2})|J(.{4}))", re.DOTALL)
#: The key of the optimizer's state with None behind it: it is in ZeRO's files, or there is no optimizer.
_ELSEWHERE = re.compile(rb"X\x09\x00\x00\x00optimizer(?:q.|r.{4})N", re.DOTALL)
#: The stage of ZeRO in the configuration, which the model states have too.
_STAGE = re.compile(rb"X\x05\x00\x00\x00stage(?:q.|r.{4})K[\x01-\x03]", re.DOTALL)


def tag_of(folder: Folder) -> Folder | None:
    """Return the folder that ``latest`` of a save folder names, None for another folder. Raises OSError."""
    if "latest" not in folder:
        return None
    with folder.open("latest") as file:
        tag = file.read(1_000).decode(errors="replace").strip()
    if not tag or "/" in tag or tag in (".", ".."):
        return None
    return folder.inner(tag)


def is_tag(folder: Folder) -> bool:
    """Whether a folder is one of a tag."""
    return any(_MODEL.fullmatch(name) or _ZERO.fullmatch(name) for name in folder.sizes)


def inspect_tag(folder: Folder) -> Found:
    """Return the findings. Raises OSError where a file can't be read."""
    found = Found("deepspeed", loads_with="any")
    models = {int(match["mp"]): name for name in folder.sizes if (match := _MODEL.fullmatch(name))}
    zero = [match for name in folder.sizes if (match := _ZERO.fullmatch(name))]
    universal = any(name.startswith("zero/") for name in folder.sizes)
    for name in [*models.values(), *(match[0] for match in zero)]:
        if wrong := damage(folder, name):
            found.bad[name] = wrong
    mp = max([*models, *(int(match["mp"]) for match in zero), 0]) + 1
    telling = [*models.values(), *(match[0] for match in zero if match["what"] == "model")]
    whole = (pickle_of(folder, name, _PICKLE_BYTES) for name in telling if name not in found.bad)
    known, zero_ordered = next((one for one in map(_written_by, whole) if one[0]), (None, False))
    seen = max((int(match["dp"]) + 1 for match in zero), default=0)
    dp = known or seen
    if zero and not universal:
        found.loads_with = "same"
    found.world_size = dp * mp or None
    if not zero and zero_ordered and not universal:
        found.bad["*zero_pp_rank_*_optim_states.pt"] = "missing"
        found.loads_with = "same"
    expected = _expected(zero, range(dp), range(mp), universal=universal)
    for name in expected - folder.sizes.keys():
        found.bad[name] = folder.wrong(name)
    if known and seen > known:
        for match in zero:
            if int(match["dp"]) >= known:
                found.bad[match[0]] = f"of another save: the model states are of {known} data-parallel ranks"
    return found


def _expected(zero: Sequence[re.Match[str]], dp: range, mp: range, *, universal: bool) -> set[str]:
    """Return the files of a whole tag, by its ZeRO files and the numbers of ranks."""
    half = next((match["half"] or "" for match in zero), "")
    expected = {f"{half}zero_pp_rank_{d}_mp_rank_{m:02d}_optim_states.pt" for d in dp for m in mp} if zero else set()
    if any(match["what"] == "model" for match in zero):
        expected |= {f"zero_pp_rank_{d}_mp_rank_{m:02d}_model_states.pt" for d in dp for m in mp}
    elif not universal:
        expected |= {f"mp_rank_{m:02d}_model_states.pt" for m in mp}
    return expected


def _written_by(pickle: bytes) -> tuple[int | None, bool]:
    """Return how many data-parallel ranks wrote model states, None where it is absent, and whether with ZeRO."""
    zero = bool(_ELSEWHERE.search(pickle) and _STAGE.search(pickle))
    match = _DP.search(pickle)
    if match is None:
        return None, zero
    return int.from_bytes(next(each for each in match.groups() if each is not None), "little"), zero
