"""A checkpoint of each kind is known for what it is, and one that is torn says which file is missing or cut off."""

from __future__ import annotations

import os
import shutil
from argparse import Namespace
from pathlib import Path

import pytest

from stabilityclient.agent.watch.checkpoint_kinds.dcp import parts_needed
from stabilityclient.agent.watch.checkpoint_kinds.inspection import inspect
from support.agent.written_checkpoints import WRITERS


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A whole checkpoint of each kind."""
    made = {}
    for name, write in WRITERS.items():
        made[name] = write(tmp_path_factory.mktemp(name))
    return made


def _copy(path: Path, folder: Path) -> Path:
    copied = folder / path.name
    return Path(shutil.copytree(path, copied) if path.is_dir() else shutil.copy2(path, copied))


@pytest.mark.parametrize(
    ("name", "kind", "files", "world_size", "loads_with"),
    [
        ("torch", "file", 1, None, "any"),
        ("safetensors", "file", 1, None, "any"),
        ("dcp", "dcp", 3, 2, "any"),
        ("dcp_own", "dcp", 2, 1, "any"),
        ("zero", "deepspeed", 3, 2, "same"),
        ("zero_root", "deepspeed", 4, 2, "same"),
        ("hugging_face", "hugging_face", 9, 2, "any"),
        ("hugging_face_shards", "hugging_face", 11, 2, "any"),
        ("lightning", "lightning", 1, None, "any"),
        ("lightning_shards", "lightning", 3, 1, "any"),
        ("megatron", "megatron", 4, 1, "any"),
        ("megatron_ranks", "megatron", 8, 8, "any"),
    ],
)
def test_a_whole_one_is_known(
    written: dict[str, Path], name: str, kind: str, files: int, world_size: int | None, loads_with: str
) -> None:
    look = inspect(str(written[name]), 2)
    assert (look.kind, look.complete, look.problem, look.files) == (kind, True, "", files)
    assert (look.world_size, look.loads_with) == (world_size, loads_with)
    inside = [each for each in (written[name], *written[name].rglob("*")) if each.is_file()]
    assert look.size_bytes == sum(each.stat().st_size for each in inside)


_NEEDED = [
    ("torch", ""),
    ("safetensors", ""),
    ("dcp", ".metadata"),
    ("dcp", "__0_0.distcp"),
    ("dcp", "__1_0.distcp"),
    ("dcp_own", "__0_0.distcp"),
    ("zero", "mp_rank_00_model_states.pt"),
    ("zero", "zero_pp_rank_0_mp_rank_00_optim_states.pt"),
    ("zero", "zero_pp_rank_1_mp_rank_00_optim_states.pt"),
    ("zero_root", "global_step7/zero_pp_rank_1_mp_rank_00_optim_states.pt"),
    ("hugging_face", "model.safetensors"),
    ("hugging_face", "optimizer.pt"),
    ("hugging_face", "scheduler.pt"),
    ("hugging_face", "rng_state_0.pth"),
    ("hugging_face", "rng_state_1.pth"),
    ("hugging_face", "trainer_state.json"),
    ("hugging_face_shards", "model-00002-of-00002.safetensors"),
    ("hugging_face_shards", "model.safetensors.index.json"),
    ("lightning", ""),
    ("lightning_shards", "__0_0.distcp"),
    ("lightning_shards", "meta.pt"),
    ("megatron", ".metadata"),
    ("megatron", "__0_0.distcp"),
    ("megatron", "common.pt"),
    ("megatron", "metadata.json"),
    ("megatron_ranks", "mp_rank_00_000/model_optim_rng.pt"),
    ("megatron_ranks", "mp_rank_00_001/distrib_optim.pt"),
    ("megatron_ranks", "mp_rank_01_001/model_optim_rng.pt"),
]


@pytest.mark.parametrize(("name", "file"), [each for each in _NEEDED if each[1]])
def test_a_missing_file_is_named(written: dict[str, Path], tmp_path: Path, name: str, file: str) -> None:
    path = _copy(written[name], tmp_path)
    (path / file).unlink()
    look = inspect(str(path), 2)
    assert (look.complete, look.bad, look.problem) == (False, (file,), f"{file} is missing")


@pytest.mark.parametrize("share", [0.0, 0.5, 0.99])
@pytest.mark.parametrize(("name", "file"), _NEEDED)
def test_a_file_that_was_cut_off_is_named(
    written: dict[str, Path], tmp_path: Path, name: str, file: str, share: float
) -> None:
    path = _copy(written[name], tmp_path)
    torn = path / file if file else path
    os.truncate(torn, int(torn.stat().st_size * share))
    look = inspect(str(path), 2)
    assert (look.complete, look.bad) == (False, (file or path.name,))
    assert f"{file or path.name} is {'truncated' if share else 'empty'}" in look.problem


def test_a_save_of_megatron_that_went_on_in_the_background_is_not_whole_before_its_last_file(
    written: dict[str, Path], tmp_path: Path
) -> None:
    path = _copy(written["megatron"], tmp_path)
    order = ["metadata.json", ".metadata", "__0_0.distcp"]
    problems = []
    for name in order:
        (path / name).unlink()
        problems.append(inspect(str(path), 1))
    assert [(look.kind, look.complete) for look in problems] == [("megatron", False)] * 3


@pytest.mark.parametrize("folder", ["mp_rank_01_000", "mp_rank_01_001"])
def test_a_model_parallel_rank_of_megatron_without_any_file_is_missed(
    written: dict[str, Path], tmp_path: Path, folder: str
) -> None:
    path = _copy(written["megatron_ranks"], tmp_path)
    shutil.rmtree(path / folder)
    look = inspect(str(path), 8)
    assert (look.complete, look.bad) == (False, (f"{folder}/distrib_optim.pt", f"{folder}/model_optim_rng.pt"))


def test_of_experts_spread_over_ranks_no_file_is_missed_that_may_not_be_due(tmp_path: Path) -> None:
    import torch

    args = Namespace(tensor_model_parallel_size=2, pipeline_model_parallel_size=1, expert_model_parallel_size=4)
    for rank in ("00_000", "01_001", "00_002", "01_003"):  # as they are with --expert-tensor-parallel-size 1
        (tmp_path / f"mp_rank_{rank}").mkdir()
        torch.save({"args": args}, tmp_path / f"mp_rank_{rank}/model_optim_rng.pt")
    look = inspect(str(tmp_path), 8)
    assert (look.kind, look.complete, look.problem) == ("megatron", None, "")


def test_model_states_alone_are_no_checkpoint_where_they_say_that_zero_has_the_optimizer(
    written: dict[str, Path], tmp_path: Path
) -> None:
    path = _copy(written["zero"], tmp_path)
    for shard in path.glob("zero_*"):
        shard.unlink()
    look = inspect(str(path), 2)
    assert (look.complete, look.bad, look.loads_with) == (False, ("*zero_pp_rank_*_optim_states.pt",), "same")


def test_optimizer_states_of_more_ranks_than_the_model_states_tell_are_of_another_save(
    written: dict[str, Path], tmp_path: Path
) -> None:
    path = _copy(written["zero"], tmp_path)
    other = "zero_pp_rank_2_mp_rank_00_optim_states.pt"
    shutil.copy2(path / other.replace("rank_2", "rank_1"), path / other)
    look = inspect(str(path), 2)
    assert (look.complete, look.bad, look.world_size) == (False, (other,), 2)


def test_random_states_of_more_ranks_than_the_job_has_are_of_another_save(written: dict[str, Path]) -> None:
    look = inspect(str(written["hugging_face"]), 1)
    assert (look.complete, look.bad) == (False, ("rng_state_1.pth",))


def test_a_file_that_is_written_under_another_name_first_is_missing_and_that_is_said(
    written: dict[str, Path], tmp_path: Path
) -> None:
    path = _copy(written["dcp"], tmp_path)
    (path / ".metadata").rename(path / ".metadata.tmp")
    assert inspect(str(path)).problem == ".metadata is missing (only .metadata.tmp is there)"


def test_what_torch_reads_from_its_metadata_is_what_we_read_without_unpickling(written: dict[str, Path]) -> None:
    from torch.distributed.checkpoint import FileSystemReader

    reader = FileSystemReader(written["dcp"])
    needed: dict[str, int] = {}
    for piece in reader.read_metadata().storage_data.values():
        needed[piece.relative_path] = max(needed.get(piece.relative_path, 0), piece.offset + piece.length)
    assert parts_needed((written["dcp"] / ".metadata").read_bytes()) == needed


def test_of_a_large_metadata_the_parts_are_known_by_their_names(
    written: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = _copy(written["dcp"], tmp_path)
    monkeypatch.setattr("stabilityclient.agent.watch.checkpoint_kinds.dcp.MAX_METADATA_BYTES", 100)
    whole = inspect(str(path))
    os.truncate(path / "__0_0.distcp", 0)
    (path / "__1_0.distcp").unlink()
    torn = inspect(str(path))
    assert (whole.complete, whole.world_size, torn.bad) == (True, 2, ("__0_0.distcp", "__1_0.distcp"))


def test_nothing_of_a_metadata_is_executed(tmp_path: Path) -> None:
    (tmp_path / ".metadata").write_bytes(b"cos\nsystem\n(S'touch " + os.fsencode(tmp_path / "ran") + b"'\ntR.")
    look = inspect(str(tmp_path))
    assert (look.kind, look.complete, sorted(os.listdir(tmp_path))) == ("dcp", None, [".metadata"])


def test_of_a_kind_that_we_do_not_know_nothing_is_said(tmp_path: Path) -> None:
    (tmp_path / "weights.npy").write_bytes(b"\x93NUMPY and so on")
    assert [(look.kind, look.complete) for look in map(inspect, (str(tmp_path), str(tmp_path / "weights.npy")))] == [
        ("unknown", None),
        ("unknown", None),
    ]
    assert inspect(str(tmp_path / "nothing")) is None
