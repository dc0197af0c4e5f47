"""The controller of one group: python -m rmux.run.controller --group ID …"""

from __future__ import annotations

import argparse
import logging
import signal
import sys
import threading
import time
from collections.abc import Sequence
from typing import Any

from rmux.clock import SystemClock
from rmux.errors import ConflictError, RmuxError
from rmux.ids import GroupId
from rmux.run.channel import Channel, connect
from rmux.run.controller.state import (
    Command,
    Finish,
    GroupView,
    Inputs,
    Limits,
    RemoveMember,
    Send,
    State,
    Write,
)
from rmux.run.controller.step import step
from rmux.run.controller.store_side import Placer, follow_group, to_operations
from rmux.run.inbox import Arrived, Inbox
from rmux.run.journal import Journal
from rmux.run.lease import HeldLease
from rmux.run.messages import NodeReport, streams
from rmux.run.processes import die_with_parent, take_precedence
from rmux.store.engine import Store

logger = logging.getLogger(__name__)

_TICK_S = 0.05
_STOP = object()
_LOST_LEASE = 5


def main(argv: Sequence[str]) -> int:
    args = _parse(argv)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    die_with_parent()
    # A thread that writes or measures must not keep the loop from its next message for 5 ms.
    sys.setswitchinterval(0.0005)
    inbox = Inbox()
    for signum in (signal.SIGTERM, signal.SIGINT):
        signal.signal(signum, lambda *_: inbox.post(_STOP))
    try:
        store = Store.open(args.store, lock_timeout_s=args.lock_timeout_s)
        lease = _take_lease(store, args)
        channel = connect(args.channel)
    except RmuxError as error:
        logger.error("%s", error)
        return 1
    logger.info("controller of %s, epoch %d", args.group, lease.epoch)
    return _Loop(args, inbox, store, lease, channel).run()


class _Loop:
    def __init__(
        self, args: Any, inbox: Inbox, store: Store, lease: HeldLease, channel: Channel
    ) -> None:
        self._inbox, self._store, self._lease, self._channel = inbox, store, lease, channel
        self._clock = SystemClock()
        self._stop = False
        self._stopped = threading.Event()
        self._reports: dict[str, str] = {}
        self._state = State(
            group_id=GroupId(args.group),
            epoch=lease.epoch,
            started_s=self._clock.now_s(),
            stay=args.stay,
            run_dir=args.run_dir,
            limits=Limits(
                heartbeat_s=args.heartbeat_s,
                gate_wait_s=args.gate_wait_s,
                fence_floor_s=args.fence_floor_s,
                stop_s=args.stop_s,
                silent_s=max(6 * args.heartbeat_s, 1.0),
            ),
        )
        self._journal = Journal(store, on_stored=inbox.post)
        self._placer = Placer(store, host=args.host)
        threading.Thread(target=self._follow, name="group", daemon=True).start()

    def run(self) -> int:
        take_precedence()
        self._inbox.listen(self._channel)
        status: int | None = None
        while status is None:
            status = self._turn(self._inbox.take(_TICK_S))
        self._stopped.set()
        # What the last member left free may be just what a pending job waits for.
        self._placer.close(last=status == 0 and not self._stop)
        self._journal.close(timeout_s=2.0)
        self._lease.release()
        self._inbox.close()
        self._channel.close()
        return status

    def _follow(self) -> None:
        follow_group(
            self._store, self._state.group_id, post=self._inbox.post, stopped=self._stopped
        )

    def _turn(self, items: list[Any]) -> int | None:
        if self._lease.is_lost:
            logger.error("another controller has the group")
            return _LOST_LEASE
        inputs = self._inputs(items)
        try:
            self._state, commands = step(self._state, inputs)
        except Exception:
            # A bug in one turn must not end the group: the next news is tried from the old state.
            logger.exception("a turn failed")
            return None
        for command in commands:
            if isinstance(command, Finish):
                logger.info("done: %s", command.why)
                return 0
            self._execute(command)
        return None

    def _inputs(self, items: list[Any]) -> Inputs:
        views = [item for item in items if isinstance(item, GroupView)]
        stored = [item for item in items if isinstance(item, int)]
        if views:
            self._subscribe(views[-1])
        self._stop = self._stop or _STOP in items
        return Inputs(
            now_s=self._clock.now_s(),
            utc=self._clock.utc_now(),
            reports=tuple(
                item.message
                for item in items
                if isinstance(item, Arrived)
                and isinstance(item.message, NodeReport)
                and self._reports.get(item.stream) == item.message.node
            ),
            view=views[-1] if views else None,
            stored_n=max(stored, default=None),
            may_grant=self._lease.is_safe,
            stop=self._stop,
        )

    def _subscribe(self, view: GroupView) -> None:
        nodes = set(view.nodes) | {
            device.node for member in view.members for device in member.member.placement.devices
        }
        reports = {streams.node_reports(self._state.group_id, node): node for node in nodes}
        if reports != self._reports:
            self._reports = dict(reports)
            self._channel.subscribe(reports)

    def _execute(self, command: Command) -> None:
        if isinstance(command, Send):
            stream = streams.grants(self._state.group_id, command.node)
            self._channel.send(stream, command.grants)
        elif isinstance(command, Write):
            self._journal.put(command.batch_n, to_operations(command.operations))
            if any(isinstance(operation, RemoveMember) for operation in command.operations):
                self._placer.hurry()


def _take_lease(store: Store, args: Any) -> HeldLease:
    """Wait while another controller, alive or not known to be dead, still has the group."""
    deadline_s = time.monotonic() + 2 * args.lease_s
    while True:
        try:
            return HeldLease.take(store, f"group:{args.group}", host=args.host, ttl_s=args.lease_s)
        except ConflictError as error:
            if time.monotonic() >= deadline_s:
                raise
            logger.info("%s", error.message)
            time.sleep(0.2)


def _parse(argv: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="rmux.run.controller")
    for name in ("--store", "--group", "--channel", "--host", "--run-dir"):
        parser.add_argument(name, required=True)
    parser.add_argument("--stay", action="store_true")
    parser.add_argument("--heartbeat-s", type=float, default=0.5)
    parser.add_argument("--lease-s", type=float, default=15.0)
    parser.add_argument("--gate-wait-s", type=float, default=10.0)
    parser.add_argument("--fence-floor-s", type=float, default=60.0)
    parser.add_argument("--stop-s", type=float, default=15.0)
    parser.add_argument("--lock-timeout-s", type=float, default=10.0)
    return parser.parse_args(argv)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
