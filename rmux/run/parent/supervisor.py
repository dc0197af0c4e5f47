"""The parent's loop: start, watch and restart children; follow membership; stop in order."""

from __future__ import annotations

import contextlib
import logging
import os
import select
import signal
import sys
import time
from collections.abc import Iterator

from rmux.clock import SystemClock
from rmux.errors import DeadlineError, RmuxError
from rmux.events import EventType, PhaseEvent
from rmux.ids import GroupId, NodeId
from rmux.run import processes
from rmux.run.journal import Journal, Operation
from rmux.run.lease import HeldLease
from rmux.run.parent.children import SERVER, Child, Plan, role_log, runner_role
from rmux.store.engine import Store

logger = logging.getLogger(__name__)

_POLL_S = 0.2
_DONE, _LOST_LEASE = 0, 5
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class _KillError(Exception):
    """A second signal: no more patience."""


class Supervisor:
    def __init__(
        self,
        store: Store,
        plan: Plan,
        lease: HeldLease,
        *,
        embedded: bool,
        foreground: bool,
        stop_timeout_s: float,
    ) -> None:
        self._store, self._plan, self._lease = store, plan, lease
        self._foreground = foreground
        self._stop_timeout_s = stop_timeout_s
        self._clock = SystemClock()
        self._journal = Journal(store)
        self._event_n = 0
        self._source = f"parent {processes.this_process()}"
        self._signals: list[int] = []
        self._wake_in, self._wake_out = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._server = Child(SERVER, plan.start_server, tell=self._tell) if embedded else None
        self._controller = Child("controller", plan.start_controller, tell=self._tell)
        self._runners: dict[NodeId, Child] = {}
        self._polled_s = float("-inf")
        self._revision: int | None = None
        self._forced = False

    def run(self) -> int:
        """Until the controller is done or a signal comes; the exit status."""
        self._plan.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        late: DeadlineError | None = None
        with self._signals_caught():
            try:
                try:
                    self._serve()
                except DeadlineError as error:
                    late = error
                    # It has been heard; the group is stopped in order now.
                    signal.setitimer(signal.ITIMER_REAL, 0)
                    self._say(f"{error.message}: stopping group {self._plan.group}")
                self._stop()
            except _KillError:
                self._say("killing what is left")
                self._kill()
        self._journal.close(timeout_s=2.0)
        os.close(self._wake_in)
        os.close(self._wake_out)
        if late is not None:
            raise late
        if self._forced:
            return 137
        return 128 + self._signals[0] if self._signals else 0

    def _serve(self) -> None:
        while not self._signals:
            now_s = time.monotonic()
            if now_s - self._polled_s >= _POLL_S:
                self._follow_nodes()
                self._polled_s = now_s
            for child in self._children():
                status = child.poll(now_s=now_s)
                if child is self._controller and status == _DONE:
                    return
            if self._lease.is_lost:
                self._say("another parent serves this group now")
                return
            self._wait(now_s)

    def _children(self) -> list[Child]:
        server = [self._server] if self._server else []
        return [*server, *self._runners.values(), self._controller]

    def _wait(self, now_s: float) -> None:
        """Sleep until a child ends, a restart is due, a signal comes or the store is to be read."""
        poller = select.poll()
        poller.register(self._wake_in, select.POLLIN)
        waits = [_POLL_S]
        for child in self._children():
            due_s = child.due_in_s(now_s=now_s)
            if due_s is not None:
                waits.append(due_s)
            if child.pidfd is not None:
                poller.register(child.pidfd, select.POLLIN)
        poller.poll(min(waits) * 1000)
        with contextlib.suppress(BlockingIOError):
            os.read(self._wake_in, 4096)

    def _follow_nodes(self) -> None:
        from rmux.store import groups, pools

        try:
            with self._store.read() as conn:
                revision = groups.revision(conn)
                if revision == self._revision:
                    return
                group = groups.get(conn, self._plan.group)
                cluster = pools.load(conn)
            self._revision = revision
        except RmuxError as error:
            logger.warning("cannot read the group: %s", error.message)
            return
        placed = {device.node for member in group.members for device in member.placement.devices}
        nodes = {
            node for node in placed.union(group.nodes) if cluster.node(node).host == self._plan.host
        }
        for node in sorted(nodes - set(self._runners)):
            self._runners[node] = self._runner(node)
        for node in sorted(set(self._runners) - nodes):
            # Its last job has left, and with it every driver.
            self._runners.pop(node).stop(grace_s=1.0)

    def _runner(self, node: NodeId) -> Child:
        return Child(runner_role(node), lambda: self._plan.start_runner(node), tell=self._tell)

    def _stop(self) -> None:
        """Controller first: it tells the drivers and puts their jobs back; the server last."""
        deadline_s = time.monotonic() + self._stop_timeout_s
        self._await_controller(deadline_s)
        runners = list(self._runners.values())
        for child in runners:
            child.retire()
            child.terminate()
        for child in runners:
            self._forced |= self._stop_child(child, deadline_s)
        if self._server is not None:
            self._forced |= self._stop_child(self._server, time.monotonic() + 2.0)

    def _await_controller(self, deadline_s: float) -> None:
        self._controller.retire()
        self._controller.terminate()
        while self._controller.process is not None and time.monotonic() < deadline_s:
            now_s = time.monotonic()
            for child in self._children():
                child.poll(now_s=now_s)
            self._check_signals()
            self._wait(now_s)
        self._forced |= self._controller.stop(grace_s=0.1)

    def _stop_child(self, child: Child, deadline_s: float) -> bool:
        while child.process is not None and time.monotonic() < deadline_s:
            child.retire()
            child.poll(now_s=time.monotonic())
            self._check_signals()
            if child.process is not None:
                self._wait_briefly(child)
        return child.stop(grace_s=0.1)

    def _wait_briefly(self, child: Child) -> None:
        poller = select.poll()
        poller.register(self._wake_in, select.POLLIN)
        if child.pidfd is not None:
            poller.register(child.pidfd, select.POLLIN)
        child.terminate()
        poller.poll(100)

    def _check_signals(self) -> None:
        if len(self._signals) > 1:
            raise _KillError

    def _kill(self) -> None:
        self._forced = True
        for child in self._children():
            child.kill()
        processes.sweep(self._plan.tag, grace_s=0.0)

    @contextlib.contextmanager
    def _signals_caught(self) -> Iterator[None]:
        before = {number: signal.getsignal(number) for number in _SIGNALS}

        def note(number: int, frame: object) -> None:
            if number == signal.SIGHUP and self._signals:
                return  # a parent that dies says so once for each of its threads
            self._signals.append(number)
            if len(self._signals) == 1:
                self._say(
                    f"stopping group {self._plan.group} within {self._stop_timeout_s:g} s; "
                    "once more to kill it"
                )
            with contextlib.suppress(BlockingIOError):
                os.write(self._wake_out, b"s")

        for number in _SIGNALS:
            signal.signal(number, note)
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def _say(self, text: str) -> None:
        if self._foreground:
            sys.stderr.write(f"rmux: {text}\n")
            sys.stderr.flush()
        else:
            logger.info("%s", text)

    def _tell(self, role: str, change: str, *, pid: int, **data: object) -> None:
        """Journal what happened to a child, behind the loop."""
        logger.info("%s pid %d %s %s", role, pid, change, data)
        if change == "died" and self._foreground:
            log = self._plan.folder / role_log(role)
            self._say(f"{role} died ({data.get('exit')}) and is started again; see {log}")
        self._event_n += 1
        event = PhaseEvent(
            type=EventType.PROCESS,
            at=self._clock.utc_now(),
            at_s=self._clock.now_s(),
            source=self._source,
            source_n=self._event_n,
            group_id=GroupId(self._plan.group),
            data={"role": role, "pid": pid, "change": change, **data},
        )
        self._journal.put(self._event_n, [_append(event)])


def _append(event: PhaseEvent) -> Operation:
    from rmux.store import events

    return lambda conn: events.append(conn, [event])
