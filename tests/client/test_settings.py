"""Wrong settings stop the start with a sentence that helps; ranks agree on a run id without talking."""

from __future__ import annotations

import argparse
import dataclasses
import enum
import json
import os
import signal
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import stabilityclient
from stabilityclient.settings import ClientSettings, usable

Start = Callable[..., stabilityclient.Run]

_NOTHING: dict[str, Any] = {
    "project": None,
    "name": None,
    "run_id": None,
    "config": None,
    "url": None,
    "api_key": None,
    "dir": None,
}


def _resolve(environ: dict[str, str] | None = None, **given: Any) -> Any:
    return ClientSettings({**_NOTHING, **given}, environ or {}, lambda: "20261120-131500-9f2c")


@pytest.mark.parametrize(
    ("given", "environ", "words"),
    [
        ({"run_id": "a/b"}, {}, ["run_id", "'a/b'", "A-Z a-z 0-9"]),
        ({"run_id": "x" * 101}, {}, ["run_id", "1 to 100 characters"]),
        ({"run_id": "../up"}, {}, ["run_id"]),
        ({"run_id": ".."}, {}, ["run_id"]),
        ({"run_id": 7}, {}, ["run_id", "7"]),
        ({}, {"STABILITY_RUN_ID": "ein Lauf"}, ["run_id", "ein Lauf"]),
        ({}, {"STABILITY_MODE": "onlien"}, ["STABILITY_MODE", "onlien", "offline"]),
        ({"url": "ftp://localhost:8080"}, {}, ["url", "localhost:8080", "http://"]),
        ({"url": "http://127.0.0.1:99999"}, {}, ["url", "99999", "65535"]),
        ({"url": "http://127.0.0.1:abc"}, {}, ["url", "abc", "port"]),
        ({"url": "http://127.0.0.1:"}, {}, ["url", "port"]),
        ({"url": "http://[::1"}, {}, ["url", "[::1", "host"]),
        ({"url": "http://::1:8080"}, {}, ["url", "host"]),
        ({"url": "http://:8080"}, {}, ["url", "host"]),
        ({"url": "http://my host:8080"}, {}, ["url", "host"]),
        ({"project": 3}, {}, ["project", "3", "string"]),
        ({"name": "n" * 201}, {}, ["name", "200"]),
        ({}, {"STABILITY_SPOOL_MIB": "lots"}, ["STABILITY_SPOOL_MIB", "lots", "number"]),
        ({}, {"STABILITY_DRAIN_S": "-1"}, ["STABILITY_DRAIN_S", "-1"]),
        ({}, {"STABILITY_DUMP_SIGNAL": "SIGTERM"}, ["STABILITY_DUMP_SIGNAL", "SIGTERM", "SIGRTMIN+<n>"]),
        ({}, {"STABILITY_DUMP_SIGNAL": "9"}, ["STABILITY_DUMP_SIGNAL", "9", "off"]),
        ({}, {"STABILITY_DUMP_SIGNAL": "SIGRTMIN+31"}, ["STABILITY_DUMP_SIGNAL"]),
        ({}, {"STABILITY_DUMP_SIGNAL": "SIGUSR1+1"}, ["STABILITY_DUMP_SIGNAL"]),
        ({}, {"STABILITY_DUMP_SIGNAL": "SIGRTMIN+"}, ["STABILITY_DUMP_SIGNAL"]),
        ({}, {"STABILITY_NODE": "rack 3/gpu-1"}, ["STABILITY_NODE", "rack 3/gpu-1", "A-Z a-z 0-9"]),
        ({}, {"RANK": "zero", "WORLD_SIZE": "2"}, ["RANK", "zero", "torchrun"]),
    ],
)
def test_a_wrong_setting_is_named_with_what_was_given_and_expected(
    given: dict[str, Any], environ: dict[str, str], words: list[str]
) -> None:
    with pytest.raises(stabilityclient.SettingError) as caught:
        _resolve(environ, **given)
    for word in words:
        assert word in str(caught.value)


@pytest.mark.parametrize(
    ("given", "number"),
    [
        ("", signal.SIGRTMIN + 6),
        ("SIGUSR2", signal.SIGUSR2),
        (" usr1 ", signal.SIGUSR1),
        ("SIGRTMIN", signal.SIGRTMIN),
        ("rtmin+30", signal.SIGRTMAX),
        ("12", 12),
        ("OFF", 0),
    ],
)
def test_a_dump_signal_is_a_name_a_number_or_off(given: str, number: int) -> None:
    assert _resolve({"STABILITY_DUMP_SIGNAL": given}).dump_signal == number


def test_a_node_has_the_name_that_it_was_given_or_its_host_name() -> None:
    assert [_resolve(environ).node for environ in ({}, {"STABILITY_NODE": "gpu-03"})] == [os.uname().nodename, "gpu-03"]


@pytest.mark.parametrize(
    "url",
    ["http://h", "https://h.example:443/board", "http://[::1]:8080", "http://[::1]", "http://u:p@h:1", "http://h?q"],
)
def test_an_address_that_can_be_one_is_taken(url: str) -> None:
    assert _resolve(url=url).url == url


def test_a_wrong_key_is_not_shown() -> None:
    with pytest.raises(stabilityclient.SettingError) as caught:
        _resolve(api_key="geheim\nnis")
    assert "geheim" not in str(caught.value)


@pytest.mark.usefixtures("quiet")
def test_a_wrong_argument_raises_outside_of_pytest_too() -> None:
    with pytest.raises(stabilityclient.StabilityError):
        stabilityclient.init(project=3)  # type: ignore[arg-type]


def test_a_wrong_variable_is_told_and_its_default_holds() -> None:
    said: list[str] = []
    given = {
        "STABILITY_MODE": "onlien", "STABILITY_SPOOL_MIB": "lots", "WORLD_SIZE": "two", "RANK": "",
        "STABILITY_NODE": "a b", "STABILITY_RUN_ID": "ein Lauf", "STABILITY_DRAIN_S": "5",
        "STABILITY_DUMP_SIGNAL": "SIGTERM",
    }  # fmt: skip

    kept = usable(given, said.append)

    assert kept == {"RANK": "", "STABILITY_DRAIN_S": "5", "STABILITY_RUN_ID": "ein-Lauf"}
    assert [text.split(" ")[0] for text in said] == [
        *("STABILITY_MODE", "STABILITY_RUN_ID", "STABILITY_NODE", "STABILITY_SPOOL_MIB", "STABILITY_DUMP_SIGNAL"),
        "WORLD_SIZE",
    ]
    assert _resolve(kept).run_id == "ein-Lauf"


def test_a_wrong_address_in_the_environment_keeps_the_data_on_the_node() -> None:
    said: list[str] = []

    kept = usable({"STABILITY_URL": "http://h:99999"}, said.append)

    assert (kept, len(said)) == ({"STABILITY_MODE": "offline"}, 1)


@pytest.mark.parametrize(
    ("given", "url"),
    [
        ("localhost:8080", "http://localhost:8080"),
        ("board", "http://board"),
        ("10.0.0.7:80/board/", "http://10.0.0.7:80/board"),
        ("[::1]:8080", "http://[::1]:8080"),
    ],
)
def test_an_address_without_a_scheme_is_http(given: str, url: str) -> None:
    assert _resolve(url=given).url == _resolve({"STABILITY_URL": given}).url == url


class Colour(enum.Enum):
    RED = "red"


@dataclasses.dataclass
class Args:
    lr: float
    parts: list[Any]


class OfAnother:
    """A config class of somebody: public attributes."""

    def __init__(self) -> None:
        self.width = 8
        self._hidden = 1


@pytest.mark.parametrize(
    ("given", "want"),
    [
        ({"lr": np.float32(1.5), "n": np.int64(3), "on": np.bool_(True)}, {"lr": 1.5, "n": 3, "on": True}),
        (argparse.Namespace(lr=0.1, inner=argparse.Namespace(n=1)), {"lr": 0.1, "inner": {"n": 1}}),
        (Args(0.1, [np.float64(2), Args(1.0, [])]), {"lr": 0.1, "parts": [2.0, {"lr": 1.0, "parts": []}]}),
        (
            {"where": Path("/data"), "colour": Colour.RED, "shape": np.array([2, 3]), 7: None},
            {"where": "/data", "colour": "red", "shape": [2, 3], "7": None},
        ),
        (types.MappingProxyType({"a": 1}), {"a": 1}),
        (OfAnother(), {"width": 8}),
        ([1, 2], {"config": [1, 2]}),
        (None, {}),
    ],
)
def test_a_config_is_taken_as_what_it_is(start: Start, given: Any, want: dict[str, Any]) -> None:
    run = start(config=given)

    assert json.loads((Path(str(run.folder)) / "run.json").read_text())["config"] == want


def test_an_argument_wins_over_the_environment_and_that_over_the_default() -> None:
    environ = {"STABILITY_URL": "http://b:1", "STABILITY_RUN_ID": "from-env", "STABILITY_DIR": "/tmp/e"}
    assert _resolve().url == "http://127.0.0.1:8080"
    assert (_resolve(environ).url, _resolve(environ).run_id, _resolve(environ).dir) == (
        "http://b:1",
        "from-env",
        "/tmp/e",
    )
    chosen = _resolve(environ, url="https://c/", run_id="mine", dir="/tmp/m")
    assert (chosen.url, chosen.run_id, chosen.dir) == ("https://c", "mine", "/tmp/m")


def test_a_single_process_gets_its_name_with_date_and_suffix() -> None:
    assert _resolve(name="7b on a100!").run_id == "7b-on-a100-20261120-131500-9f2c"


def _elastic(rank: int, **more: str) -> dict[str, str]:
    return {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2", **more}


def test_ranks_of_one_launch_agree_on_the_run_id_and_other_launches_get_another() -> None:
    launch = {"TORCHELASTIC_RUN_ID": "job-7"}
    ids = {_resolve(_elastic(rank, **launch), project="p", name="n").run_id for rank in (0, 1)}
    assert len(ids) == 1
    other = _resolve(_elastic(0, TORCHELASTIC_RUN_ID="job-8"), project="p", name="n").run_id
    assert {other} != ids


def test_ranks_that_know_only_their_master_agree_too() -> None:
    launch = {"MASTER_ADDR": "10.0.0.1", "MASTER_PORT": "29500", "TORCHELASTIC_RUN_ID": "none"}
    ids = {_resolve(_elastic(rank, **launch), name="n").run_id for rank in (0, 1)}
    assert len(ids) == 1


_OPEN_MPI = {
    "OMPI_COMM_WORLD_RANK": "5",
    "OMPI_COMM_WORLD_SIZE": "8",
    "OMPI_COMM_WORLD_LOCAL_RANK": "1",
    "OMPI_COMM_WORLD_LOCAL_SIZE": "4",
}
_HYDRA = {"PMI_RANK": "5", "PMI_SIZE": "8", "MPI_LOCALRANKID": "1", "MPI_LOCALNRANKS": "4"}


@pytest.mark.parametrize("launcher", [_OPEN_MPI, _HYDRA], ids=["Open MPI", "MPICH and Intel MPI"])
def test_ranks_come_from_mpirun_also_inside_of_a_slurm_job(launcher: dict[str, str]) -> None:
    batch = {"SLURM_PROCID": "0", "SLURM_NTASKS": "2", "SLURM_LOCALID": "0", "SLURM_NTASKS_PER_NODE": "1"}
    ranks = _resolve(batch | launcher).ranks
    assert (ranks.rank, ranks.world_size, ranks.local_rank, ranks.local_world_size) == (5, 8, 1, 4)


def test_ranks_come_from_torchrun_or_else_from_slurm() -> None:
    slurm = _resolve({"SLURM_PROCID": "3", "SLURM_NTASKS": "8", "SLURM_LOCALID": "1", "SLURM_JOB_ID": "99"}).ranks
    assert (slurm.rank, slurm.world_size, slurm.local_rank, slurm.one_node) == (3, 8, 1, False)
    torchrun = _resolve(_elastic(1, SLURM_PROCID="0", TORCHELASTIC_RESTART_COUNT="2")).ranks
    assert (torchrun.rank, torchrun.world_size, torchrun.generation, torchrun.one_node) == (1, 2, 2, True)


def test_a_job_that_spans_nodes_has_a_folder_for_each_node() -> None:
    from stabilityclient.start import run_folder

    environ = {"WORLD_SIZE": "4", "LOCAL_WORLD_SIZE": "2", "STABILITY_RUN_ID": "r", "STABILITY_DIR": "/d"}
    assert run_folder(_resolve(environ), "n1") == "/d/r@n1"
    assert run_folder(_resolve({**environ, "LOCAL_WORLD_SIZE": "4"}), "n1") == "/d/r"
