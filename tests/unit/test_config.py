from pathlib import Path

import pytest

from rmux.config import KEYS, display_url, load_settings, state_dir
from rmux.errors import SpecError, UserError


@pytest.fixture
def home(tmp_path):
    (tmp_path / "config" / "rmux").mkdir(parents=True)
    (tmp_path / "project").mkdir()
    return tmp_path


@pytest.fixture
def load(home):
    def settings(flags=None, **variables):
        env = {"HOME": str(home), "XDG_CONFIG_HOME": str(home / "config"), **variables}
        return load_settings(flags, env=env, folder=home / "project")

    return settings


def test_without_anything_the_store_is_in_the_users_state_folder(load, home):
    settings = load()
    assert settings.store_url == f"sqlite:///{home}/.local/state/rmux/rmux.db"
    assert settings.redis_url is None
    assert settings.origins["store.url"] == "default"
    assert load(XDG_STATE_HOME="/s").store_url == "sqlite:////s/rmux/rmux.db"


def test_each_source_beats_the_one_below_it_and_says_so(load, home):
    user = home / "config" / "rmux" / "config.toml"
    project = home / "project" / "rmux.toml"

    def seen(flags=None, **variables):
        settings = load(flags, **variables)
        return settings.store_url, settings.origins["store.url"]

    user.write_text('[store]\nurl = "user"\n')
    assert seen() == ("user", str(user))
    project.write_text('[store]\nurl = "project"\n')
    assert seen() == ("project", str(project))
    assert seen(RMUX_STORE="variable") == ("variable", "RMUX_STORE")
    assert seen({"store_url": "given"}, RMUX_STORE="variable") == ("given", "flag")


def test_a_file_sets_only_what_it_names(load, home):
    (home / "config" / "rmux" / "config.toml").write_text('[run]\ngrace = "3s"\nhost = "a"\n')
    (home / "project" / "rmux.toml").write_text('[run]\nhost = "b"\n')
    settings = load()
    assert (settings.grace_s, settings.host) == (3.0, "b")


def test_a_named_file_is_the_only_one_and_must_exist(load, home):
    (home / "project" / "rmux.toml").write_text('[run]\nhost = "project"\n')
    other = home / "other.toml"
    with pytest.raises(UserError, match=r"no config file .*other\.toml"):
        load({"config": str(other)})
    other.write_text('[store]\nlock_timeout = "250ms"\n')
    settings = load({"config": str(other)})
    assert settings.lock_timeout_s == 0.25
    assert settings.host != "project"
    assert load(RMUX_CONFIG=str(other)).lock_timeout_s == 0.25


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('[store]\nurll = "a"\n', r"rmux\.toml:2: store.urll is not a setting .*store\.url\?"),
        ('stor = "a"\n', r"rmux\.toml:1: stor is not a setting"),
        ("[run]\ngrace = 3\n", r"rmux\.toml:2: run.grace is 3; write text in quotes"),
        ('[run]\ngrace = "3"\n', "'3' is not a duration"),
        ('[output]\ncolor = "blue"\n', "write one of auto, always, never"),
    ],
)
def test_a_setting_that_cannot_be_used_is_told_with_its_line(load, home, text, message):
    (home / "project" / "rmux.toml").write_text(text)
    with pytest.raises(SpecError, match=message):
        load()


@pytest.mark.parametrize(
    ("variable", "value", "message"),
    [("RMUX_TIMEOUT", "5", "RMUX_TIMEOUT"), ("RMUX_YES", "maybe", "write 1 or 0")],
)
def test_a_variable_that_cannot_be_used_is_named(load, variable, value, message):
    with pytest.raises(SpecError, match=message):
        load(**{variable: value})


def test_variables_are_read_by_their_kind(load):
    settings = load(RMUX_YES="1", RMUX_NO_INPUT="0", RMUX_TIMEOUT="2m", RMUX_RUN_DIR="~/r")
    assert settings.assume_yes is True
    assert settings.no_input is False
    assert settings.timeout_s == 120
    assert settings.run_dir == Path("~/r").expanduser()
    assert load(RMUX_YES="").assume_yes is False


def test_every_setting_has_its_own_variable_and_place():
    assert len({key.env for key in KEYS}) == len(KEYS)
    assert len({key.name for key in KEYS}) == len(KEYS)


def test_a_password_is_never_shown():
    assert display_url("postgresql://me:se@cret@db/x") == "postgresql://me:***@db/x"
    assert display_url("postgresql://me@db/x") == "postgresql://me@db/x"
    assert display_url(None) == "-"


def test_the_state_folder_follows_xdg():
    assert state_dir({"HOME": "/h"}) == Path("/h/.local/state/rmux")


@pytest.mark.parametrize(
    ("variables", "said"),
    [
        ({"RMUX_LEASE": "0s"}, "run.lease is 0s (RMUX_LEASE); at least 3 heartbeats of 1s"),
        ({"RMUX_HEARTBEAT": "0s"}, "run.heartbeat is 0s (RMUX_HEARTBEAT)"),
        ({"RMUX_HEARTBEAT": "10s"}, "run.lease is 6s (default); at least 3 heartbeats of 10s"),
    ],
)
def test_a_lease_must_outlive_a_few_heartbeats(load, variables, said):
    with pytest.raises(SpecError) as caught:
        load(**variables)
    assert said in caught.value.message
