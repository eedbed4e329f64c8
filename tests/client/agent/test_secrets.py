"""Secrets in the shapes that people give them: none of a command line, a config or a text stays."""

from __future__ import annotations

import time
from typing import Any

import pytest

from stabilityclient.secrets.texts import HIDDEN, clean_text
from stabilityclient.secrets.values import clean_arguments, clean_config

#: A secret that only its name or its place gives away, with marks that passwords have.
S = "Zqhorse4battery"

_LINES = [
    ["train.py", "--password", S],
    ["train.py", f"--password={S}"],
    ["train.py", f"--db.password={S},{S};{S}&{S}"],
    [f"HF_TOKEN={S}", "python", "train.py"],
    ["env", f"WANDB_API_KEY={S}", "python", "train.py"],
    ["bash", "-c", f"export HF_TOKEN={S}; python train.py"],
    ["bash", "-c", f"HF_TOKEN='{S}, {S}' python train.py"],
    ["bash", "-c", f"python train.py --password {S}"],
    ["bash", "-lc", f'python train.py --msg "login with password={S}"'],
    ["curl", "-u", f"me:{S}", "https://h.example/x"],
    ["curl", f"--user=me:{S}", "https://h.example/x"],
    ["bash", "-c", f"curl -u me:{S} https://h.example/x"],
    ["curl", "-H", f"Authorization: Bearer {S}"],
    ["curl", "-H", f"Authorization: Basic {S}"],
    ["curl", "-H", f"Authorization: token {S}"],
    ["curl", "-H", f"X-Api-Key: {S}"],
    ["curl", "-H", f"Cookie: theme=dark; session={S}"],
    ["train.py", "--db", f"postgres://me:{S}@h.example:5432/x"],
    ["train.py", "--db", f"postgres://me:a/{S}@h.example:5432/x"],
    ["train.py", "--db", f"postgres://me:a@{S}@h.example:5432/x"],
    ["train.py", f"--redis=redis://:{S}@h.example:6379/0"],
    ["train.py", "--data", f"https://h.example/x?page=1&token={S}"],
    ["train.py", "--data", f"https://h.example/x#access_token={S}"],
    ["train.py", "--data", f"s3://bucket/x?X-Amz-Signature={S}"],
    ["train.py", "--notify", f"https://hooks.slack.com/services/T000/B000/{S}"],
    ["train.py", f"--notify=https://discord.com/api/webhooks/123456/{S}"],
    ["train.py", "--config", f'{{"lr": 1, "hf_token": "{S}"}}'],
    ["train.py", "--config", f'{{\\"lr\\": 1, \\"hf_token\\": \\"{S}\\"}}'],
    ["train.py", f"+logger.hf_token={S}"],
    ["sshpass", "-p", S, "ssh", "h.example"],
    ["mysql", "-uroot", f"-p{S}"],
    ["redis-cli", "-h", "h.example", "-a", S],
    ["docker", "login", "-u", "me", "-p", S],
    ["openssl", "enc", "-pass", f"pass:{S}"],
]

_CONFIGS: list[Any] = [
    {"hf_token": S},
    {"model": {"auth": {"user": "me", "value": S}}},
    {"secrets": {"a": S, "b": [S]}},
    {"api_keys": [S, S]},
    {"passwords": [S]},
    {"hooks": [f"HF_TOKEN={S}"]},
    {"hooks": [{"env": f"HF_TOKEN={S}"}]},
    {"env": [{"name": "HF_TOKEN", "value": S}]},
    {"argv": ["train.py", "--password", S]},
    {"launch": f"train.py --password {S}"},
    {"launch": f"curl -u me:{S} https://h.example"},
    {"url": f"https://h.example/x?token={S}"},
    {"url": f"https://me:{S}@h.example/x"},
    {"dsn": f"https://{S}@o1.ingest.sentry.example/1"},
    {"notify": f"https://hooks.slack.com/services/T000/B000/{S}"},
    {"notify": f"https://discord.com/api/webhooks/123/{S}"},
    {"notify": f"https://x.webhook.office.com/webhookb2/a@b/IncomingWebhook/c/{S}"},
    {"notify": f"https://api.telegram.org/bot12345:{S}/sendMessage"},
    {"notify": f"https://mattermost.example/hooks/{S}"},
    {"storage": f"AccountName=x;AccountKey={S};EndpointSuffix=core"},
    {"text": f'{{"password": "{S}"}}'},
    {"text": f"{{'password': '{S}'}}"},
    {"text": f"header: Authorization: Basic {S}"},
    {f"HF_TOKEN={S}": 1},
    {"a": {"b": {"c": {"d": {"e": [[[[f"token={S}"]]]]}}}}},
    {"key": f"-----BEGIN OPENSSH PRIVATE KEY-----\n{S}\n{S}\n-----END OPENSSH PRIVATE KEY-----"},
]

_TEXTS = [
    f"db password={S} at postgres://me:{S}@h.example/x",
    f"cannot log in to postgres://me:{S}",  # cut before the @
    f'{{"user": "me", "password": "{S}',  # cut before the quote
    f"Command '['curl', '-u', 'me:{S}', 'h.example']' returned non-zero exit status 6",
    f"Command '['train.py', '--password', '{S}']' returned non-zero exit status 6",
    f"Namespace(lr=1.0, hf_token='{S}', seed=1)",
    f"the password is {S}",
    f"401 for https://h.example/x?page=2&access_token={S}",
    f"error=\"login failed\" detail='token={S}'",
    f"Authorization: Bearer {S}",
    f"x = dict(password => '{S}')",
]

#: Texts without a secret: what the page shows of them is all of it.
_PLAIN = [
    "RuntimeError: CUDA error: device-side assert triggered",
    "loss: 2.31, lr: 3e-4, step: 100",
    "expected tokenizer with pad_token: <pad>, got eos_token=</s>",
    "max_tokens=4096 --max-tokens 4096",
    "connect http://node1:29500/x and tcp://10.0.0.1:1234",
    "docker run -u 1000:1000 image:2.1",
    "/root/.cache/hub/models--x/snapshots/0e9e39f249a16976918f6564b8830bc894c89659/model.safetensors",
    "python -u train.py --data /mnt/data/part-00001-of-00100.parquet",
    "Email anna@example.org, see https://git.example/x/y?page=2#top",
    "KeyError: 'input_ids'",
    "RuntimeError: unexpected key: model.layers.0.weight",
    "    rows = sorted(rows, key=lambda row: row.step)",
    "pass=2 sig: 0.31 token: 50256",
    "token is 50256",
    "https://h.example/webhooks and https://h.example/api/v1/hooks",
    'File "/x/token_loop.py", line 12 in next_token',
]


#: In a text nothing tells such a value from an option.
_DASHED = ["train.py", "--password", "-x" + S]


@pytest.mark.parametrize("arguments", [*_LINES, _DASHED], ids=" ".join)
def test_no_command_line_shows_its_secret(arguments: list[str]) -> None:
    shown = " ".join(clean_arguments(arguments))

    assert S not in shown
    assert HIDDEN in shown or "@" not in shown


@pytest.mark.parametrize("arguments", _LINES, ids=" ".join)
def test_no_text_shows_the_secret_of_a_command_line_in_it(arguments: list[str]) -> None:
    assert S not in clean_text("$ " + " ".join(arguments))


@pytest.mark.parametrize("config", _CONFIGS, ids=str)
def test_no_config_shows_its_secret(config: Any) -> None:
    assert S not in str(clean_config(config))


@pytest.mark.parametrize("text", _TEXTS)
def test_no_message_shows_its_secret(text: str) -> None:
    assert S not in clean_text(text)


@pytest.mark.parametrize("text", _PLAIN)
def test_a_text_without_a_secret_stays_as_it_is(text: str) -> None:
    assert clean_text(text, digests=True) == text
    assert clean_config({"text": text}) == {"text": text}


def test_a_config_of_names_without_secrets_stays_as_it_is() -> None:
    config = {
        "max_tokens": 4096, "pad_token": "<pad>", "tokenizer": "gpt2", "resume_from": "s3://bucket/run-1/step-100",
        "run_id": "llama-7b-0a1b2c3d4e5f60718293a4b5c6d7e8f9", "lr": 3e-4, "betas": [0.9, 0.95], "key": "value",
        "image_key": "image.jpg",
        "argv": ["train.py", "--lr", "3e-4"], "authors": ["a", "b"], "password": None, "use_auth_token": True,
    }  # fmt: skip
    assert clean_config(config) == config


@pytest.mark.parametrize(
    "unit", ["a", "a=", "a:", "--a ", "://", "?a=", "-u a:", "'a", "\\'", "token ", "A1", "pass, ", "mysql "]
)
def test_the_work_grows_with_the_length_of_a_text_and_not_faster(unit: str) -> None:
    def seconds(chars: int) -> float:
        text = (unit * chars)[:chars]
        begin = time.process_time()
        clean_text(text)
        return time.process_time() - begin

    seconds(1_000)
    assert min(seconds(64_000) for _ in range(3)) < 0.5
