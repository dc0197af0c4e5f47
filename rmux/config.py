"""Settings: flags over RMUX_* over rmux.toml over the user's config over defaults."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rmux import units
from rmux.errors import QuantityError, SpecError, UserError
from rmux.toml_lines import Location, dotted, line_of, nearest, read_toml

PROJECT_FILE = "rmux.toml"


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    store_url: str
    redis_url: str | None
    """None: `group up` starts a server of its own at a socket fixed per group."""
    run_dir: Path
    """Logs, checkpoints and attempts of jobs."""
    host: str
    """The name by which pools call this host."""
    lock_timeout_s: float
    """Longest wait for a locked store."""
    timeout_s: float | None
    """Deadline of the whole command."""
    heartbeat_s: float
    """Between two announcements of a process of a group."""
    lease_s: float
    """How long a controller's lease lasts unless renewed."""
    grace_s: float
    """How long a process may take to stop before it is killed."""
    color: str
    """'auto', 'always' or 'never'."""
    assume_yes: bool
    no_input: bool
    log_level: str
    origins: Mapping[str, str] = field(default_factory=dict)
    """Key of `KEYS` to where its value came from: 'flag', 'RMUX_STORE', a file, 'default'."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Key:
    """One setting: its field, where it may be set, how its text is read."""

    field: str
    env: str
    toml: Location
    read: Callable[[str], Any]
    help: str

    @property
    def name(self) -> str:
        return dotted(self.toml)


def _text(text: str) -> str:
    return text


def _path(text: str) -> Path:
    return Path(text).expanduser().absolute()


def _truth(text: str) -> bool:
    words = {
        "1": True,
        "true": True,
        "yes": True,
        "0": False,
        "false": False,
        "no": False,
        "": False,
    }
    if text.lower() not in words:
        raise ValueError("write 1 or 0")
    return words[text.lower()]


def _word(*choices: str) -> Callable[[str], str]:
    def read(text: str) -> str:
        if text not in choices:
            raise ValueError(f"write one of {', '.join(choices)}")
        return text

    return read


KEYS: tuple[Key, ...] = (
    Key(
        field="store_url",
        env="RMUX_STORE",
        toml=("store", "url"),
        read=_text,
        help="sqlite:///PATH or postgresql+psycopg://USER@HOST/NAME",
    ),
    Key(
        field="redis_url",
        env="RMUX_REDIS",
        toml=("store", "redis"),
        read=_text,
        help="redis://HOST:PORT/0 or unix:///PATH; none: group up starts its own",
    ),
    Key(
        field="lock_timeout_s",
        env="RMUX_LOCK_TIMEOUT",
        toml=("store", "lock_timeout"),
        read=units.parse_duration_s,
        help="longest wait for a locked store",
    ),
    Key(
        field="run_dir",
        env="RMUX_RUN_DIR",
        toml=("run", "dir"),
        read=_path,
        help="folder of job logs and checkpoints",
    ),
    Key(
        field="host",
        env="RMUX_HOST",
        toml=("run", "host"),
        read=_text,
        help="name by which pools call this host",
    ),
    Key(
        field="heartbeat_s",
        env="RMUX_HEARTBEAT",
        toml=("run", "heartbeat"),
        read=units.parse_duration_s,
        help="between two announcements of a process",
    ),
    Key(
        field="lease_s",
        env="RMUX_LEASE",
        toml=("run", "lease"),
        read=units.parse_duration_s,
        help="how long a controller's lease lasts unless renewed",
    ),
    Key(
        field="grace_s",
        env="RMUX_GRACE",
        toml=("run", "grace"),
        read=units.parse_duration_s,
        help="how long a process may take to stop",
    ),
    Key(
        field="timeout_s",
        env="RMUX_TIMEOUT",
        toml=("run", "timeout"),
        read=units.parse_duration_s,
        help="deadline of a whole command",
    ),
    Key(
        field="color",
        env="RMUX_COLOR",
        toml=("output", "color"),
        read=_word("auto", "always", "never"),
        help="auto, always or never",
    ),
    Key(
        field="assume_yes",
        env="RMUX_YES",
        toml=("output", "yes"),
        read=_truth,
        help="answer yes to every question",
    ),
    Key(
        field="no_input",
        env="RMUX_NO_INPUT",
        toml=("output", "no_input"),
        read=_truth,
        help="never ask; fail instead",
    ),
    Key(
        field="log_level",
        env="RMUX_LOG",
        toml=("output", "log"),
        read=_word("error", "warning", "info", "debug"),
        help="error, warning, info or debug, on stderr",
    ),
)


_LEAST_BEAT_S, _MOST_BEAT_S = 0.01, 60.0
_BEATS_A_LEASE = 3


def load_settings(
    flags: Mapping[str, Any] | None = None,
    *,
    env: Mapping[str, str] | None = None,
    folder: Path | None = None,
) -> Settings:
    """Settings from `flags` (field name to value, or to its text; None is "not given") down.

    `flags["config"]` names the one file to read instead of rmux.toml and the user's. UserError
    and SpecError name the source and the key.
    """
    env = os.environ if env is None else env
    flags = dict(flags or {})
    values = dict(_defaults(env))
    origins = dict.fromkeys((key.name for key in KEYS), "default")
    for path in reversed(config_files(flags.pop("config", None), env=env, folder=folder)):
        for key, value in _from_file(path):
            values[key.field], origins[key.name] = value, str(path)
    for key in KEYS:
        if (text := env.get(key.env)) is not None and text != "":
            values[key.field], origins[key.name] = _read(key, text, source=key.env), key.env
    for key in KEYS:
        if (given := flags.get(key.field)) is not None:
            value = _read(key, given, source=f"--{key.field}") if isinstance(given, str) else given
            values[key.field], origins[key.name] = value, "flag"
    _check_beat(values, origins)
    return Settings(**values, origins=origins)


def _check_beat(values: Mapping[str, Any], origins: Mapping[str, str]) -> None:
    """A lease that a late heartbeat or two cannot keep alive would be lost again and again."""
    beat_s, lease_s = values["heartbeat_s"], values["lease_s"]
    if not _LEAST_BEAT_S <= beat_s <= _MOST_BEAT_S:
        raise SpecError(
            f"run.heartbeat is {beat_s:g}s ({origins['run.heartbeat']}); "
            f"from {_LEAST_BEAT_S:g}s to {_MOST_BEAT_S:g}s is possible",
            code="config.invalid",
        )
    if lease_s < _BEATS_A_LEASE * beat_s:
        raise SpecError(
            f"run.lease is {lease_s:g}s ({origins['run.lease']}); at least {_BEATS_A_LEASE} "
            f"heartbeats of {beat_s:g}s ({origins['run.heartbeat']}) must fit in",
            code="config.invalid",
        )


def config_files(
    given: str | Path | None, *, env: Mapping[str, str], folder: Path | None = None
) -> list[Path]:
    """The files that count, nearest first; one that is named must be there."""
    named = given if given is not None else env.get("RMUX_CONFIG") or None
    if named is not None:
        if not Path(named).exists():
            raise UserError(f"no config file {named}", code="config.missing")
        return [Path(named)]
    home = Path(env.get("XDG_CONFIG_HOME") or Path(env.get("HOME", "~")).expanduser() / ".config")
    candidates = [(folder or Path.cwd()) / PROJECT_FILE, home / "rmux" / "config.toml"]
    return [path for path in candidates if path.is_file()]


def state_dir(env: Mapping[str, str] | None = None) -> Path:
    """<XDG_STATE_HOME>/rmux; the store makes it, readable by its owner only."""
    env = os.environ if env is None else env
    home = Path(env.get("HOME", "~")).expanduser()
    return Path(env.get("XDG_STATE_HOME") or home / ".local" / "state") / "rmux"


def display_url(url: str | None) -> str:
    """The URL without its password."""
    if url is None or "@" not in url:
        return url or "-"
    scheme, _, rest = url.partition("://")
    credentials, _, place = rest.rpartition("@")
    user, colon, _ = credentials.partition(":")
    return f"{scheme}://{user}{':***' if colon else ''}@{place}"


def _defaults(env: Mapping[str, str]) -> dict[str, Any]:
    state = state_dir(env)
    return {
        "store_url": f"sqlite:///{state / 'rmux.db'}",
        "redis_url": None,
        "run_dir": state / "runs",
        "host": socket.gethostname(),
        "lock_timeout_s": 10.0,
        "timeout_s": None,
        "heartbeat_s": 1.0,
        "lease_s": 6.0,
        "grace_s": 10.0,
        "color": "auto",
        "assume_yes": False,
        "no_input": False,
        "log_level": "warning",
    }


def _from_file(path: Path) -> list[tuple[Key, Any]]:
    document, text = read_toml(path)
    by_place = {key.toml: key for key in KEYS}
    found = []
    for section, body in document.items():
        entries = body.items() if isinstance(body, dict) else [(None, body)]
        for name, value in entries:
            location: Location = (section,) if name is None else (section, name)
            key = by_place.get(location)
            where = f"{path}:{line_of(text, location)}: "
            if key is None:
                meant = nearest(dotted(location), (key.name for key in KEYS))
                hint = f" (did you mean {meant}?)" if meant else ""
                raise SpecError(
                    f"{where}{dotted(location)} is not a setting{hint}", code="config.unknown-key"
                )
            found.append((key, _read(key, value, source=f"{where}{key.name}")))
    return found


def _read(key: Key, value: Any, *, source: str) -> Any:
    if isinstance(value, bool) and key.read is _truth:
        return value
    if not isinstance(value, str):
        raise SpecError(f"{source} is {value!r}; write text in quotes", code="config.invalid")
    try:
        return key.read(value)
    except QuantityError as error:
        raise SpecError(
            f"{source}: {error.message}", hint=error.hint, code="config.invalid"
        ) from error
    except ValueError as error:
        raise SpecError(f"{source} is {value!r}; {error}", code="config.invalid") from error
