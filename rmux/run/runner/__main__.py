"""The runner of one node: python -m rmux.run.runner --node NODE …"""

from __future__ import annotations

import argparse
import logging
import signal
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rmux.clock import SystemClock
from rmux.cluster import Node
from rmux.errors import RmuxError
from rmux.ids import GroupId, NodeId
from rmux.run import processes
from rmux.run.channel import Channel, connect
from rmux.run.inbox import Arrived, Ended, Inbox
from rmux.run.messages import DriverReport, Grants, NodeReport, Permits, streams
from rmux.run.nexts import is_news
from rmux.run.runner import saved as saved_file
from rmux.run.runner.drivers import Drivers
from rmux.run.runner.gate import Attempt, Gate
from rmux.run.runner.launch import Cleared, Launched, Site, attempt_tag, clear
from rmux.run.runner.memory import NodeMemory, Resident, watch_memory
from rmux.run.runner.outbox import Outbox
from rmux.run.runner.pressure import HOST_MARKS, NODE_MARKS, Marks, Policy
from rmux.run.runner.proof import Proofs
from rmux.run.runner.saved import Saved
from rmux.run.runner.shedding import Shedding
from rmux.store import pools
from rmux.store.engine import Store

logger = logging.getLogger(__name__)

_TICK_S = 0.05
_CLEAR_GRACES = 3
"""After so many graces a device is cleared here, whatever the runner of the driver's home does."""
_STOP = object()


def main(argv: Sequence[str]) -> int:
    args = _parse(argv)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    processes.die_with_parent()
    # A thread that writes or measures must not keep the loop from its next message for 5 ms.
    sys.setswitchinterval(0.0005)
    inbox = Inbox()
    for signum in (signal.SIGTERM, signal.SIGINT):
        signal.signal(signum, lambda *_: inbox.post(_STOP))
    try:
        store = Store.open(args.store, lock_timeout_s=args.lock_timeout_s)
        channel = connect(args.channel)
        with store.read() as conn:
            node = pools.load(conn).node(args.node)
    except RmuxError as error:
        logger.error("%s", error)
        return 1
    return Runner(args, inbox, store, channel, node=node).run()


class Runner:
    def __init__(
        self,
        args: Any,
        inbox: Inbox,
        store: Store,
        channel: Channel,
        *,
        node: Node,
    ) -> None:
        self._group, self._node = GroupId(args.group), NodeId(args.node)
        self._heartbeat_s: float = args.heartbeat_s
        self._inbox, self._channel = inbox, channel
        self._clock = SystemClock()
        self._id = str(processes.this_process())
        self._outbox = Outbox(source=self._id, group=args.group, node=args.node, clock=self._clock)
        self._site = Site(
            group=args.group,
            tag=args.tag,
            run_dir=Path(args.run_dir),
            channel_url=args.channel,
            heartbeat_s=args.heartbeat_s,
            tail_trigger=args.tail_trigger,
        )
        self._path = saved_file.path_of(args.tag, args.node)
        saved = saved_file.read(self._path)
        self._gate = Gate(
            map(str, node.devices),
            emit=self._outbox.emit,
            fence_grace_s=args.fence_grace_s,
            epoch=saved.epoch,
            positions=saved.positions,
        )
        self._proofs = Proofs()
        self._drivers = Drivers(
            store, self._site, inbox, emit=self._outbox.emit, stop_grace_s=args.stop_grace_s
        )
        self._heard = False
        self._stopping = False
        self._clearing: set[Attempt] = set()
        self._memory = NodeMemory(self._node)
        self._memory_look_s: float = args.memory_look_s
        self._resident: Resident | None = None
        self._shedding = Shedding(
            node.id,
            limit_bytes=node.usable_memory_bytes,
            policy=Policy(node=args.node_marks, host=args.host_marks, pause_s=args.memory_pause_s),
            emit=self._outbox.emit,
        )
        self._written = (-1, -1, -1)
        self._subscribed: set[str] | None = None
        self._permits: dict[str, tuple[Permits, float]] = {}
        self._reported: tuple[NodeReport | None, float] = (None, float("-inf"))
        for driver in saved.drivers:
            self._drivers.adopt(driver, now_s=self._clock.now_s())

    def run(self) -> int:
        self._subscribe()
        self._inbox.listen(self._channel)
        watch_memory(
            self._memory,
            post=self._inbox.post,
            least_s=self._memory_look_s,
            is_tight=self._shedding.is_tight,
        )
        processes.take_precedence()
        while not (self._stopping and self._drivers.all_over):
            wait_s = self._proofs.wait_s()
            items = self._inbox.take(_TICK_S if wait_s is None else min(wait_s, _TICK_S))
            try:
                self._turn(items)
            except Exception:
                # One bad item must not take the node's other jobs with it.
                logger.exception("a turn failed")
        self._send_report(self._clock.now_s())
        self._path.unlink(missing_ok=True)
        self._inbox.close()
        self._channel.close()
        logger.info("stopped")
        return 0

    def _turn(self, items: list[Any]) -> None:
        now_s = self._clock.now_s()
        for item in items:
            self._take(item, now_s=now_s)
        for device, order in self._proofs.check(self._gate.to_prove()).items():
            self._gate.prove(device, order=order, now_s=self._clock.now_s())
        orders = {
            job: order for job, order in self._gate.orders.items() if order.home == self._node
        }
        self._drivers.follow(orders, heard=self._heard, stopping=self._stopping, now_s=now_s)
        self._end_attempts(now_s)
        self._save()
        self._subscribe()
        self._send_permits(now_s)
        self._send_report(now_s)

    def _take(self, item: Any, *, now_s: float) -> None:
        if isinstance(item, Arrived):
            if isinstance(item.message, Grants) and item.message.group == self._group:
                self._heard = self._gate.take_grants(item.message, now_s=now_s) or self._heard
                self._outbox.drop(stored_n=self._gate.acks.get(self._id, 0))
            elif isinstance(item.message, DriverReport):
                report = item.message
                if item.stream == streams.driver_reports(report.status.job, self._node):
                    self._gate.take_report(report, now_s=now_s)
                    self._drivers.take_report(report)
                    self._shedding.take_report(report)
                    self._learn(report)
        elif isinstance(item, Launched | Ended):
            self._drivers.take(item, now_s=now_s)
        elif isinstance(item, Cleared):
            self._clearing.discard((item.job, item.attempt))
            self._gate.end_attempt((item.job, item.attempt), now_s=now_s)
            self._drivers.take(item, now_s=now_s)
        elif isinstance(item, Resident):
            self._take_resident(item, now_s=now_s)
        elif item is _STOP and not self._stopping:
            logger.info("stopping: its drivers end first")
            self._stopping = True
            for driver in self._drivers.known.values():
                self._drivers.terminate(driver)

    def _take_resident(self, seen: Resident, *, now_s: float) -> None:
        self._resident = seen
        in_use = {
            position.grant.job
            for position in self._gate.positions.values()
            if position.grant is not None and not position.is_free
        }
        self._shedding.take(seen, self._gate.orders, in_use=in_use, now_s=now_s)

    def _learn(self, report: DriverReport) -> None:
        job, attempt = report.status.job, report.status.attempt
        driver = self._drivers.known.get(job)
        is_home = driver is not None and driver.attempt == attempt
        tag = attempt_tag(self._site.tag, job, attempt)
        self._memory.learn(report, tag=tag, is_home=is_home)

    def _end_attempts(self, now_s: float) -> None:
        """Clear away attempts that are over, and fence those that hold on for too long."""
        overdue = self._gate.overdue(now_s=now_s)
        for order in self._gate.orders.values():
            if order.fence:
                overdue.setdefault((order.job, order.attempt), order.fence)
        for key, why in overdue.items():
            self._drivers.fence(key, why=why)
        for key, why in self._shedding.stops.items():
            self._drivers.fence(key, why=why)
        # The runner of its home kills a driver; this one steps in where that does not happen.
        for key in self._gate.overdue(now_s=now_s, graces=_CLEAR_GRACES):
            if key[0] not in self._drivers.known:
                self._clear(key)
        if not self._heard:
            return
        for key in self._gate.strays():
            driver = self._drivers.known.get(key[0])
            if driver is None or driver.attempt != key[1]:
                self._clear(key)

    def _clear(self, key: Attempt) -> None:
        if key in self._clearing:
            return
        self._clearing.add(key)

        def run() -> None:
            self._inbox.post(clear(self._site, key[0], key[1], run_dir=None))

        threading.Thread(target=run, name=f"clear-{key[0]}", daemon=True).start()

    def _save(self) -> None:
        """A grant must be on record before its driver hears of it."""
        now = (self._gate.generation, self._drivers.generation, self._gate.epoch)
        if now != self._written:
            saved_file.write(
                self._path,
                Saved(
                    epoch=self._gate.epoch,
                    positions=self._gate.positions,
                    drivers=self._drivers.saved(),
                ),
            )
            self._written = now

    def _subscribe(self) -> None:
        jobs = set(self._gate.orders) | set(self._drivers.known)
        jobs |= {p.grant.job for p in self._gate.positions.values() if p.grant and not p.is_free}
        wanted = {streams.driver_reports(job, self._node) for job in jobs}
        orders = streams.grants(self._group, self._node)
        if self._subscribed is None:
            # Only new ones: what an earlier controller wanted may start what has long ended.
            self._channel.subscribe([orders])
        if wanted != self._subscribed:
            # From the oldest kept: what a driver said while this node had no runner.
            self._channel.subscribe([orders, *sorted(wanted)], replay=True)
            self._subscribed = wanted
            self._memory.keep(jobs)

    def _send_permits(self, now_s: float) -> None:
        attempts = {order.job: order.attempt for order in self._gate.orders.values()}
        for driver in self._drivers.known.values():
            if not driver.is_over:
                attempts[driver.job] = driver.attempt
        for job, attempt in attempts.items():
            shed, shed_n = self._shedding.asked(job, attempt)
            grants = self._gate.passed_on(job, attempt)
            permits = Permits(
                grants=grants,
                desired=self._desired(job, attempt),
                acks=tuple(
                    (source, number)
                    for source, number in self._gate.acks.items()
                    if source == f"{job}/{attempt}"
                ),
                shed=shed,
                shed_n=shed_n,
                nexts=self._gate.nexts(grants, now_s=now_s),
            )
            before, sent_s = self._permits.get(job, (None, float("-inf")))
            elapsed_s = now_s - sent_s
            if elapsed_s >= self._heartbeat_s or is_news(before, permits, elapsed_s=elapsed_s):
                self._channel.send(streams.permits(job, self._node), permits)
                self._permits[job] = (permits, now_s)
        self._permits = {job: sent for job, sent in self._permits.items() if job in attempts}

    def _desired(self, job: str, attempt: int) -> str:
        order = self._gate.orders.get(job)
        driver = self._drivers.known.get(job)
        if driver is None:
            return "run"
        if self._stopping or (self._heard and (order is None or order.attempt != attempt)):
            return "stop"
        return order.desired if order is not None else "run"

    def _send_report(self, now_s: float) -> None:
        driver_events = [
            event
            for driver in self._drivers.known.values()
            for event in driver.events
            if event.get("source_n", 0) > self._gate.acks.get(f"{driver.job}/{driver.attempt}", 0)
        ]
        report = NodeReport(
            node=self._node,
            runner=self._id,
            epoch=self._gate.epoch,
            devices=self._gate.reports(now_s=now_s),
            drivers=self._drivers.statuses(),
            events=(*self._outbox.events, *driver_events),
            resident_bytes=0 if self._resident is None else self._resident.resident_bytes,
            jobs_bytes=tuple(sorted(self._resident.jobs.items())) if self._resident else (),
            stops=tuple((*key, why) for key, why in sorted(self._shedding.stops.items())),
        )
        before, sent_s = self._reported
        if report != before or now_s - sent_s >= self._heartbeat_s:
            self._channel.send(streams.node_reports(self._group, self._node), report)
            self._reported = (report, now_s)


def _parse(argv: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="rmux.run.runner")
    for name in ("--store", "--group", "--node", "--channel", "--run-dir", "--tag"):
        parser.add_argument(name, required=True)
    parser.add_argument("--heartbeat-s", type=float, default=0.5)
    parser.add_argument("--stop-grace-s", type=float, default=8.0)
    parser.add_argument("--fence-grace-s", type=float, default=10.0)
    parser.add_argument("--lock-timeout-s", type=float, default=10.0)
    parser.add_argument("--memory-look-s", type=float, default=1.0)
    parser.add_argument("--tail-trigger", default="gain")
    parser.add_argument("--memory-pause-s", type=float, default=Policy().pause_s)
    # Fractions at which caches go, state is spilled, an attempt ends: '0.95,1,1.05'.
    parser.add_argument("--node-marks", type=_marks, default=NODE_MARKS)
    parser.add_argument("--host-marks", type=_marks, default=HOST_MARKS)
    return parser.parse_args(argv)


def _marks(text: str) -> Marks:
    caches, spill, stop = map(float, text.split(","))
    return Marks(caches=caches, spill=spill, stop=stop)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
