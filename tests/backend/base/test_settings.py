"""Settings: where they come from, and that wrong ones stop the start with a sentence."""

from __future__ import annotations

from pathlib import Path

import pytest

from stabilitybackend.base.errors import SettingsError
from stabilitybackend.base.settings import Settings, is_loopback


def test_the_command_line_wins_over_the_environment_over_the_default() -> None:
    env = {"STABILITY_PORT": "9001", "STABILITY_HOST": "::1", "HOME": "/home/someone"}
    settings = Settings.from_env_and_args(env, port=9002, host=None)
    assert settings == Settings(host="::1", port=9002, data_dir=Path("/home/someone/.local/share/stabilityboard"))


def test_the_data_folder_follows_xdg() -> None:
    assert Settings.from_env_and_args({"XDG_DATA_HOME": "/x", "HOME": "/h"}).data_dir == Path("/x/stabilityboard")
    assert Settings.from_env_and_args({"XDG_DATA_HOME": "relative", "HOME": "/h"}).data_dir == Path(
        "/h/.local/share/stabilityboard"
    )


@pytest.mark.parametrize(
    ("given", "named"),
    [
        ({"port": 70000}, "setting port is '70000', expected a number from 0 to 65535"),
        ({"port": "http"}, "setting port is 'http', expected a number"),
        ({"host": "a b"}, "setting host is 'a b', expected an address"),
        ({"redis_url": "http://user:hunter2@h"}, "setting redis_url is 'scheme http', expected redis://"),
        ({"log_level": "loud"}, "setting log_level is 'loud', expected one of critical"),
        ({"data_dir": __file__}, "expected a folder, but this is a file"),
        ({"colour": "red"}, "unknown settings"),
    ],
)
def test_a_wrong_setting_is_named_with_what_was_given_and_expected(given: dict[str, object], named: str) -> None:
    with pytest.raises(SettingsError) as refused:
        Settings.from_env_and_args({"HOME": "/h"}, **given)
    assert named in refused.value.message
    assert "hunter2" not in refused.value.message


@pytest.mark.parametrize(
    ("given", "hint"),
    [
        ({"window_mib": -1.0}, "give --window-mib or set STABILITY_WINDOW_MIB"),
        ({"cache_mib": -1.0}, "set STABILITY_CACHE_MIB"),
        ({"hang_floor_s": 0.0}, "set STABILITY_HANG_FLOOR_S"),
        ({"public_url": "board"}, "set STABILITY_PUBLIC_URL"),
        ({"root_path": "user/x"}, "give --root-path or set STABILITY_ROOT_PATH"),
    ],
)
def test_the_hint_names_an_option_only_where_up_has_one(given: dict[str, object], hint: str) -> None:
    with pytest.raises(SettingsError) as refused:
        Settings.from_env_and_args({"HOME": "/h"}, **given)
    assert refused.value.hint == hint


def test_a_data_folder_that_can_not_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    settings = Settings(data_dir=tmp_path / "file" / "sub")
    with pytest.raises(SettingsError, match="can be made"):
        settings.make_data_dir()


def test_a_new_data_folder_is_private(tmp_path: Path) -> None:
    folder = Settings(data_dir=tmp_path / "a" / "b").make_data_dir()
    assert folder.stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize("host", ["127.0.0.1", "127.1.2.3", "::1", "[::1]", "localhost"])
def test_loopback_hosts_are_known(host: str) -> None:
    assert is_loopback(host)


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "10.0.0.1", "example.org", "localhost.example.org"])
def test_everything_else_counts_as_reachable(host: str) -> None:
    assert not is_loopback(host)
