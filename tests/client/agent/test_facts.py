"""Facts of a launch: what is sent of it, and that no secret is among it, whatever shape it has."""

from __future__ import annotations

import os
import string
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from stabilityclient.agent.facts import IMAGES, LAUNCHER, checkout, launch_facts
from stabilityclient.secrets.texts import HIDDEN, clean_text
from stabilityclient.secrets.values import clean_arguments, clean_config

#: A secret as people choose them: no look gives it away, only its name or its place does.
SECRETS = st.text(string.ascii_letters + string.digits, min_size=10, max_size=24).map("Zq".__add__)
NAMES = st.sampled_from(
    ["api-key", "api_key", "apikey", "token", "hf-token", "hf_token", "password", "db.password", "secret",
     "clientSecret", "wandb-key", "credentials", "aws-secret-access-key", "AWS_SECRET_ACCESS_KEY", "auth-token",
     "access_key", "passwd"]
)  # fmt: skip
SHAPES = [
    lambda name, secret: [f"--{name}={secret}"],
    lambda name, secret: [f"--{name}", secret],
    lambda name, secret: [f"-{name}", secret],
    lambda name, secret: [f"{name}={secret}"],
    lambda name, secret: [f"+trainer.{name}={secret}"],
    lambda name, secret: [f"FOO_{name.upper()}={secret}", "cmd"],
    lambda name, secret: ["bash", "-c", f"FOO_{name.replace('-', '_').upper()}={secret} python train.py"],
    lambda name, secret: ["bash", "-c", f"python train.py --{name} {secret} --lr 3e-4"],
    lambda name, secret: ["bash", "-c", f"python train.py --{name}='{secret}' --lr 3e-4"],
    lambda name, secret: ["--config", f'{{"lr": 1, "{name}": "{secret}"}}'],
    lambda name, secret: ["--db", f"postgres://user:{secret}@host:5432/db"],
    lambda name, secret: ["--url", f"https://host/path?{name}={secret}&page=1"],
    lambda name, secret: ["--header", f"Authorization: Bearer {secret}1"],
]
#: What looks like a key, whatever stands before it.
KEYS = [
    "sk-ant-api03-abcdefghijklmnop", "hf_abcdefghijklmnopqrst", "ghp_abcdefghijklmnopqrst0123", "glpat-abcdefghijkl",
    "AKIAIOSFODNN7EXAMPLE", "xoxb-1234567890-abcdefgh", "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxIn0.abcdefgh",
    "0123456789abcdef0123456789abcdef01234567", "wJalrXUtnFEMIK7MDENGbPxRfiCYEXAMPLEKEY1a2b",
]  # fmt: skip


@given(NAMES, SECRETS, st.sampled_from(SHAPES))
@example("api-key", "Zqpassword1", SHAPES[1])
def test_no_secret_of_a_command_line_is_sent(name: str, secret: str, shape: object) -> None:
    arguments = ["python", "train.py", *shape(name, secret), "--lr", "3e-4"]  # type: ignore[operator]
    cleaned = clean_arguments(arguments)
    assert secret not in " ".join(cleaned)
    assert cleaned[-2:] == ["--lr", "3e-4"]


@pytest.mark.parametrize("key", KEYS)
def test_what_looks_like_a_key_is_hidden_without_a_name(key: str) -> None:
    assert clean_arguments(["train.py", key, f"--x={key}"]) == ["train.py", HIDDEN, f"--x={HIDDEN}"]
    assert key not in clean_text(f"the key is {key}, keep it")


@pytest.mark.parametrize(
    "arguments",
    [
        [
            "python",
            "-u",
            "train.py",
            "--lr=3e-4",
            "--max-tokens",
            "4096",
            "--pad-token",
            "<pad>",
            "--tokenizer",
            "gpt2",
        ],
        ["torchrun", "--nproc-per-node=8", "--rdzv-endpoint=node1:29500", "train.py", "model.dim=4096"],
        ["--data", "/mnt/data/a-long-folder-name-of-data-sets-2024/part-00001-of-00100.parquet"],
        ["--run-id", "llama-7b-20261120-131500-9f2c", "--commit", "3f786850e387550fdab836ed7e6dc881de23001b"],
    ],
)
def test_a_command_line_without_secrets_stays_as_it_is(arguments: list[str]) -> None:
    assert clean_arguments(arguments) == arguments


@given(st.text(max_size=200))
def test_any_text_can_be_cleaned_and_is_clean_then(text: str) -> None:
    once = clean_text(text)
    assert clean_text(once) == once or HIDDEN in once
    clean_arguments([text, text])


def test_a_config_loses_its_secrets_and_nothing_else() -> None:
    config = {"lr": 3e-4, "max_token": 9, "pad_token": "<pad>", "image_key": "jpg", "model": {"hf_token": "abcdefgh"}}
    assert clean_config(config) == config | {"model": {"hf_token": HIDDEN}}


def test_the_facts_of_a_process_are_its_own_and_no_other_variable_is_among_them(tmp_path: Path) -> None:
    for command in ("init -q", "add -A", "-c user.name=a -c user.email=a@b commit -qm First"):
        (tmp_path / "train.py").write_text("import sys; print('ready', flush=True); sys.stdin.read()")
        subprocess.run(["git", *command.split()], cwd=tmp_path, check=True)
    subprocess.run(["git", "remote", "add", "origin", "https://me:pw12345@git.example/x.git"], cwd=tmp_path, check=True)
    environ = {**os.environ, "SLURM_JOB_ID": "4711", "MY_OWN": "Zqsecret", "CONTAINER_IMAGE": "img:1"}
    command = [sys.executable, "train.py", "--api-key", "Zqsecret"]
    with subprocess.Popen(
        command, cwd=tmp_path, env=environ, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as job:
        assert job.stdout is not None
        job.stdout.readline()
        (tmp_path / "new.py").write_text("")
        facts = launch_facts(job.pid)
        assert job.stdin is not None
        job.stdin.close()
    assert facts is not None
    assert "Zqsecret" not in str(facts)
    assert "pw12345" not in str(facts)
    assert facts["command"] == [sys.executable, "train.py", "--api-key", HIDDEN]
    assert facts["script"] == str(tmp_path / "train.py")
    assert facts["folder"] == str(tmp_path)
    assert facts["image"] == "img:1"
    assert facts["launcher"]["SLURM_JOB_ID"] == "4711"
    assert set(facts["launcher"]) <= {*LAUNCHER, *IMAGES}
    git = facts["git"]
    assert (git["dirty"], git["changed"], git["files"], git["subject"]) == (True, 1, ["new.py"], "First")
    assert git["remote"] == "https://git.example/x.git"
    assert len(git["commit"]) == 40


def test_a_folder_in_no_checkout_has_no_commit(tmp_path: Path) -> None:
    assert checkout(str(tmp_path)) == {}


def test_of_a_process_that_is_gone_nothing_is_known() -> None:
    with subprocess.Popen([sys.executable, "-c", ""]) as job:
        pass
    assert launch_facts(job.pid) is None
