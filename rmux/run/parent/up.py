"""Bring a group up on this host and stay with it until it is done, down or interrupted."""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path

from rmux.clock import SystemClock, boot_id
from rmux.errors import ConflictError, DeadlineError, WorkerError
from rmux.events import EventType
from rmux.run import processes, valkey
from rmux.run.lease import HeldLease, holder, is_dead
from rmux.run.parent.children import Plan
from rmux.run.parent.ready import check_ready
from rmux.run.parent.supervisor import Supervisor
from rmux.store.engine import Conn, Store

_SWEEP_GRACE_S = 10.0
_UP_LEASE_S = 15.0


def run(
    store_url: str,
    group_id: str,
    *,
    host: str,
    run_dir: Path,
    redis_url: str | None = None,
    stay: bool = False,
    foreground: bool = True,
    heartbeat_s: float = 0.5,
    lease_s: float = 15.0,
    stop_timeout_s: float = 30.0,
    fence_floor_s: float = 60.0,
    fence_grace_s: float = 10.0,
    memory_look_s: float = 1.0,
    memory_pause_s: float = 3.0,
    tail_trigger: str = "gain",
    on_up: Callable[[], None] | None = None,
    on_served: Callable[[], None] | None = None,
) -> int:
    """Run the group's processes of this host; call from the main thread. Returns the exit status.

    `on_up` is called once it is this parent that serves the group, `on_served` when it is another.

    0 when every member ended, when the group was told to go down, or at once when the group is up
    on this host already (`served` tells beforehand); 130 and 143 after SIGINT and SIGTERM, 137 when
    the stop had to be forced. What `check_ready` raises, and UnavailableError when another process
    listens at the socket of the group, before anything starts. A job whose phase holds a device for
    longer than its bound (never below `fence_floor_s`) and `fence_grace_s` is killed and tried
    again. `tail_trigger` as in `DriverConfig`.
    """
    with _opened(store_url) as store:
        tag = group_tag(store_url, group_id, host=host)
        check_ready(store, group_id, host=host, tag=tag, run_dir=run_dir, redis_url=redis_url)
        try:
            lease = HeldLease.take(store, _lease_name(group_id, host), host=host, ttl_s=_UP_LEASE_S)
        except ConflictError:
            if on_served is not None:
                on_served()
            return 0
        try:
            processes.sweep(tag, grace_s=_SWEEP_GRACE_S)
            if redis_url is None:
                valkey.check_free(tag)
            _clear(tag)
            _want_up(store, group_id)
            if on_up is not None:
                on_up()
            plan = Plan(
                store_url=store_url,
                group=group_id,
                host=host,
                tag=tag,
                channel_url=redis_url or valkey.socket_url(tag),
                run_dir=run_dir,
                stay=stay,
                heartbeat_s=heartbeat_s,
                lease_s=lease_s,
                stop_s=stop_timeout_s / 2,
                fence_floor_s=fence_floor_s,
                fence_grace_s=fence_grace_s,
                memory_look_s=memory_look_s,
                memory_pause_s=memory_pause_s,
                tail_trigger=tail_trigger,
            )
            supervisor = Supervisor(
                store,
                plan,
                lease,
                embedded=redis_url is None,
                foreground=foreground,
                stop_timeout_s=stop_timeout_s,
            )
            try:
                return supervisor.run()
            finally:
                _clear(tag, grace_s=1.0)
        finally:
            lease.release()


@dataclass(frozen=True, slots=True, kw_only=True)
class Served:
    """The parent that serves a group on this host."""

    pid: int
    since: datetime


def served(store_url: str, group_id: str, *, host: str) -> Served | None:
    """Who serves the group on this host now."""
    with _opened(store_url) as store, store.read() as conn:
        return served_in(conn, group_id, host=host)


def served_in(conn: Conn, group_id: str, *, host: str) -> Served | None:
    """`served`, of a store that is open."""
    from rmux.store import leases

    clock = SystemClock()
    found = leases.live(conn, _lease_name(group_id, host), now_s=clock.now_s(), boot_id=boot_id())
    owner = None if found is None else holder(found.owner)
    if found is None or owner is None or is_dead(found.owner, host=host):
        return None
    age_s = clock.now_s() - owner[1].start_ticks / os.sysconf("SC_CLK_TCK")
    return Served(pid=owner[1].pid, since=clock.utc_now() - timedelta(seconds=age_s))


def is_up(store_url: str, group_id: str, *, host: str) -> bool:
    """Whether a living parent serves the group on this host."""
    return served(store_url, group_id, host=host) is not None


def detach(
    store_url: str,
    group_id: str,
    *,
    host: str,
    run_dir: Path,
    redis_url: str | None = None,
    stay: bool = False,
    heartbeat_s: float = 0.5,
    lease_s: float = 15.0,
    stop_timeout_s: float = 30.0,
    tail_trigger: str = "gain",
    timeout_s: float = 30.0,
) -> bool:
    """Start the parent in its own session and return when the group is ready; False when it was up
    already. What `check_ready` raises, before anything starts; DeadlineError after `timeout_s`,
    WorkerError when it ended before that."""
    from rmux.store import events

    if is_up(store_url, group_id, host=host):
        return False
    tag = group_tag(store_url, group_id, host=host)
    with _opened(store_url) as store:
        check_ready(store, group_id, host=host, tag=tag, run_dir=run_dir, redis_url=redis_url)
        with store.read() as conn:
            seq = events.last_seq(conn, group_id)
        args = ["--store", store_url, "--group", group_id, "--host", host]
        args += ["--run-dir", str(run_dir), "--heartbeat-s", str(heartbeat_s)]
        args += ["--lease-s", str(lease_s), "--stop-timeout-s", str(stop_timeout_s)]
        args += ["--tail-trigger", tail_trigger]
        args += ["--redis", redis_url] if redis_url else []
        args += ["--stay"] if stay else []
        log = run_dir / group_id / "up.log"
        child = processes.spawn(
            processes.module_argv("rmux.run.parent", *args),
            environ={**os.environ, processes.TAG_VARIABLE: tag},
            log=log,
        )
        # It may end while this process lives on, and is not to stay behind as a zombie.
        threading.Thread(target=child.wait, name="detached", daemon=True).start()
        deadline_s = time.monotonic() + timeout_s
        while time.monotonic() < deadline_s:
            with store.read() as conn:
                found = events.read(
                    conn, group=group_id, types=[EventType.CONTROLLER], after_seq=seq
                )
            if any(event.data.get("change") == "ready" for event in found):
                return True
            status = child.returncode
            if status == 0:
                return True
            if status is not None:
                raise WorkerError(
                    f"the group ended with status {status} before it was ready",
                    details={"stderr": processes.last_lines(log)},
                    hint=f"look at {log}",
                )
            time.sleep(0.05)
    raise DeadlineError(f"group {group_id} was not ready within {timeout_s:g} s", hint=f"see {log}")


def sweep(store_url: str, group_id: str, *, host: str) -> int:
    """End whatever a dead run of the group left on this host: processes, sockets, shared memory.

    Returns how many processes there were. ConflictError while the group is up.
    """
    if is_up(store_url, group_id, host=host):
        raise ConflictError(f"group {group_id} is up on {host}", hint=f"rmux group down {group_id}")
    return _clear(group_tag(store_url, group_id, host=host))


def group_tag(store_url: str, group_id: str, *, host: str) -> str:
    """Run tag of everything a group runs on a host: the same in every run, and short."""
    text = f"{store_url}\n{group_id}\n{host}"
    return "rx" + hashlib.sha256(text.encode()).hexdigest()[:8]


def _clear(tag: str, *, grace_s: float = _SWEEP_GRACE_S) -> int:
    count = processes.sweep(tag, grace_s=grace_s)
    processes.remove_shared_memory(tag)
    shutil.rmtree(valkey.temp_folder(tag), ignore_errors=True)
    return count


@contextlib.contextmanager
def _opened(store_url: str) -> Iterator[Store]:
    store = Store.open(store_url)
    try:
        yield store
    finally:
        store.close()


def _want_up(store: Store, group_id: str) -> None:
    from rmux.store import groups

    with store.write() as conn:
        groups.set_desired(conn, group_id, "run")


def _lease_name(group_id: str, host: str) -> str:
    return f"up:{group_id}:{host}"
