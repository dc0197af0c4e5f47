"""Who holds the write lock: for the error that a waiting command prints."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import sqlalchemy as sa
from sqlalchemy.exc import DBAPIError

if TYPE_CHECKING:
    from rmux.store.engine import Store


@dataclass(frozen=True, slots=True, kw_only=True)
class Holder:
    host: str
    pid: int
    command: str

    @property
    def sentence(self) -> str:
        return f"writer is `{self.command}` pid {self.pid} on {self.host}"

    @property
    def facts(self) -> dict[str, Any]:
        return {"host": self.host, "pid": self.pid, "command": self.command}


def find(store: Store) -> Holder | None:
    """The process that holds the write lock now, or None when the system does not tell."""
    return _of_file(store.path) if store.path is not None else _of_server(store)


def application_name() -> str:
    """How this process shows up in Postgres: 'rmux:host:pid:command', at most 63 bytes."""
    command = Path(sys.argv[0]).name if sys.argv and sys.argv[0] else "python"
    return f"rmux:{os.uname().nodename[:24]}:{os.getpid()}:{command[:20]}"


def _of_file(path: Path) -> Holder | None:
    inodes = set()
    for file in (path, path.with_name(path.name + "-shm")):
        try:
            inodes.add(file.stat().st_ino)
        except OSError:
            continue
    try:
        locks = Path("/proc/locks").read_text().splitlines()
    except OSError:
        return None
    for line in locks:
        # 1: POSIX  ADVISORY  WRITE 4242 fe:00:131 120 120
        fields = line.split()
        if len(fields) < 8 or fields[1] == "->" or fields[3] != "WRITE":
            continue
        pid = int(fields[4])
        if int(fields[5].rsplit(":", 1)[1]) in inodes and pid not in (0, os.getpid()):
            return Holder(host=os.uname().nodename, pid=pid, command=_command(pid))
    return None


def _of_server(store: Store) -> Holder | None:
    from rmux.store.engine import WRITE_LOCK

    query = sa.text(
        "SELECT a.application_name, a.pid, coalesce(host(a.client_addr), '') AS address"
        " FROM pg_locks l JOIN pg_stat_activity a USING (pid)"
        " WHERE l.locktype = 'advisory' AND l.granted AND l.classid = 0 AND l.objid = :lock"
    )
    try:
        with store.read() as conn:
            row = conn.execute(query, {"lock": WRITE_LOCK}).first()
    except DBAPIError:
        return None
    if row is None:
        return None
    parts = row.application_name.split(":")
    if len(parts) == 4 and parts[0] == "rmux" and parts[2].isdigit():
        return Holder(host=parts[1], pid=int(parts[2]), command=parts[3])
    return Holder(
        host=row.address or "the server", pid=row.pid, command=row.application_name or "psql"
    )


def _command(pid: int) -> str:
    try:
        raw = Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return "?"
    words = [word.decode(errors="replace") for word in raw.split(b"\0") if word]
    return " ".join(words)[:120] or "?"
