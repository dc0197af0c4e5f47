"""`rmux group up --all`: a parent of its own for every group of this host, also later ones."""

from __future__ import annotations

import contextlib
import logging
import os
import select
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from rmux.errors import UnreachableError
from rmux.ids import GroupId
from rmux.run import processes
from rmux.run.lease import HeldLease
from rmux.run.parent.children import Child, exit_text
from rmux.run.parent.ready import check_host
from rmux.run.parent.up import Served, group_tag, served_in
from rmux.store.engine import Store

logger = logging.getLogger(__name__)

_POLL_S = 0.5
_LEASE_S = 15.0
_SLACK_S = 10.0
"""Beyond a parent's own bound on its stop."""
_KILLED = 137
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def run_every(
    store: Store,
    *,
    host: str,
    run_dir: Path,
    redis_url: str | None,
    options: tuple[str, ...] = (),
    stay: bool = False,
    stop_timeout_s: float = 30.0,
    say: Callable[[str], None],
) -> int:
    """Serve every group with nodes on this host; call from the main thread. The exit status.

    0 when no group here has a job left to run, unless `stay`; with no group at all it waits for the
    first. 130 and 143 after SIGINT and SIGTERM, 137 when the stop had to be forced. A group that is
    taken down stays down. ConflictError (`lease.held`) when another process does this already, what
    `check_host` raises before anything starts. `options` go to every parent.
    """
    check_host(run_dir=run_dir, redis_url=redis_url)
    lease = HeldLease.take(store, f"up-all:{host}", host=host, ttl_s=_LEASE_S)
    try:
        args = ["--host", host, "--run-dir", str(run_dir), *options]
        args += ["--stop-timeout-s", str(stop_timeout_s), "--tied"]
        args += ["--redis", redis_url] if redis_url else []

        def start(group_id: GroupId) -> subprocess.Popen[bytes]:
            own = ["--store", store.url, "--group", group_id, *args]
            return processes.spawn(
                processes.module_argv("rmux.run.parent", *own),
                environ={
                    **os.environ,
                    processes.TAG_VARIABLE: group_tag(store.url, group_id, host=host),
                },
                log=run_dir / group_id / "up.log",
            )

        every = EveryGroup(store, start, host=host, run_dir=run_dir, stay=stay, say=say)
        return every.run(stop_timeout_s=stop_timeout_s)
    finally:
        lease.release()


class EveryGroup:
    """Follows the store and keeps one parent running per group that has something to run."""

    def __init__(
        self,
        store: Store,
        start: Callable[[GroupId], subprocess.Popen[bytes]],
        *,
        host: str,
        run_dir: Path,
        stay: bool,
        say: Callable[[str], None],
    ) -> None:
        self._store, self._start, self._say = store, start, say
        self._host, self._run_dir, self._stay = host, run_dir, stay
        self._parents: dict[GroupId, Child] = {}
        self._troubled: set[GroupId] = set()
        self._known: set[GroupId] = set()
        self._told_idle = False
        self._signals: list[int] = []
        self._forced = False

    def run(self, *, stop_timeout_s: float) -> int:
        with self._signals_caught():
            while not self._signals:
                self._reap()
                if self._follow() and not self._stay:
                    self._say("every group of this host is done")
                    break
                self._wait()
            self._stop(stop_timeout_s)
        if self._forced:
            return _KILLED
        return 128 + self._signals[0] if self._signals else 0

    def _follow(self) -> bool:
        """Start a parent where one is missing; True when nothing is left to serve."""
        try:
            wanted = self._wanted()
        except UnreachableError as error:
            logger.warning("cannot read the groups: %s", error.message)
            return False
        for group_id, other in wanted.items():
            if group_id not in self._parents and other is None:
                self._say(f"group {group_id} comes up; its log is {self._log(group_id)}")
                self._parents[group_id] = self._child(group_id)
            elif group_id not in self._known and other is not None:
                self._say(f"group {group_id} is up already, pid {other.pid}")
        self._known.update(wanted)
        self._reap()
        if not self._known and not self._told_idle:
            self._told_idle = True
            self._say(f"no group has a job for {self._host} yet; waiting for the first")
        return bool(self._known) and not wanted and not self._parents

    def _wanted(self) -> dict[GroupId, Served | None]:
        """Groups here with a job to run, and the parent that serves each."""
        from rmux.store import groups, pools

        with self._store.read() as conn:
            cluster = pools.load(conn)
            return {
                group.id: served_in(conn, group.id, host=self._host)
                for group in groups.ls(conn)
                if group.members
                # What was down before counts as asked for now; what is taken down later does not.
                and (group.desired == "run" or group.id not in self._known)
                and any(cluster.node(node).host == self._host for node in group.nodes)
            }

    def _child(self, group_id: GroupId) -> Child:
        def tell(role: str, change: str, *, pid: int, **data: object) -> None:
            logger.info("%s pid %d %s %s", role, pid, change, data)

        return Child(f"parent of {group_id}", lambda: self._start(group_id), tell=tell)

    def _reap(self) -> None:
        now_s = time.monotonic()
        for group_id, child in [*self._parents.items()]:
            status = child.poll(now_s=now_s)
            if status is None:
                continue
            self._forced |= status == _KILLED
            if status == 0 or self._signals:
                del self._parents[group_id]
                self._troubled.discard(group_id)
                self._say(f"group {group_id} has ended")
            elif group_id not in self._troubled:
                self._troubled.add(group_id)
                last = processes.last_lines(self._log(group_id), count=1).rpartition(" ERROR ")[2]
                self._say(f"group {group_id} did not stay up ({exit_text(status)}): {last}")

    def _log(self, group_id: GroupId) -> Path:
        return self._run_dir / group_id / "up.log"

    def _wait(self) -> None:
        """Until a parent ends or the store is to be read again; a signal is seen after that."""
        poller = select.poll()
        for child in self._parents.values():
            if child.pidfd is not None:
                poller.register(child.pidfd, select.POLLIN)
        poller.poll(_POLL_S * 1000)

    def _stop(self, timeout_s: float) -> None:
        """All at once: each parent takes its own group down in order."""
        deadline_s = time.monotonic() + timeout_s + _SLACK_S
        passed_on = 0
        for child in self._parents.values():
            child.retire()
        while self._parents and time.monotonic() < deadline_s:
            if passed_on < max(1, len(self._signals)):
                passed_on += 1
                for child in self._parents.values():
                    child.terminate()
            self._wait()
            self._reap()
            for group_id in [g for g, child in self._parents.items() if child.process is None]:
                del self._parents[group_id]
        for group_id, child in self._parents.items():
            self._forced = True
            child.kill()
            processes.sweep(group_tag(self._store.url, group_id, host=self._host), grace_s=0.0)

    @contextlib.contextmanager
    def _signals_caught(self) -> Iterator[None]:
        before = {number: signal.getsignal(number) for number in _SIGNALS}

        def note(number: int, frame: object) -> None:
            if number == signal.SIGHUP and self._signals:
                return  # a parent that dies says so once for each of its threads
            self._signals.append(number)
            if len(self._signals) == 1:
                self._say(f"stopping {len(self._parents)} groups; once more to kill them")

        for number in _SIGNALS:
            signal.signal(number, note)
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
