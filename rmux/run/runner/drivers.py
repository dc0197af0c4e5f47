"""The drivers whose home is this node: started, adopted, watched, stopped, cleared away."""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rmux.events import EventType
from rmux.run import processes
from rmux.run.inbox import Ended, Inbox
from rmux.run.messages import DriverOrder, DriverReport, DriverStatus
from rmux.run.processes import ProcessId
from rmux.run.runner import launch
from rmux.run.runner.launch import Cleared, Launched, Site
from rmux.run.runner.saved import SavedDriver

if TYPE_CHECKING:
    from rmux.store.engine import Store

logger = logging.getLogger(__name__)

_ENDS = ("succeeded", "cancelled", "failed")
_LAST_WORD_S = 0.15
"""A driver's last report may be read a little after its process has ended."""
_FORGET_S = 10.0
_TERM_AFTER_S = 1.0
"""An order to stop comes by the channel; a driver that does not hear it gets SIGTERM."""


@dataclass(slots=True, kw_only=True)
class Driver:
    job: str
    attempt: int
    status: DriverStatus
    process: ProcessId | None = None
    child: subprocess.Popen[bytes] | None = None
    run_dir: Path | None = None
    events: tuple[dict[str, Any], ...] = ()
    stop_s: float | None = None
    """Since when it should have stopped."""
    termed: bool = False
    ended_s: float | None = None
    cleared: bool = False
    is_over: bool = False
    error: str = ""
    """Why this runner ended it, if it did."""

    @property
    def key(self) -> tuple[str, int]:
        return (self.job, self.attempt)


class Drivers:
    def __init__(
        self,
        store: Store,
        site: Site,
        inbox: Inbox,
        *,
        emit: Callable[..., None],
        stop_grace_s: float,
    ) -> None:
        self._store, self._site, self._inbox, self._emit = store, site, inbox, emit
        self._stop_grace_s = stop_grace_s
        self.known: dict[str, Driver] = {}
        """The newest attempt of each job."""
        self.generation = 0
        """Counts changes of what `saved` returns."""

    def adopt(self, saved: SavedDriver, *, now_s: float) -> None:
        """Go on watching a driver that an earlier runner of this node started."""
        driver = Driver(
            job=saved.job,
            attempt=saved.attempt,
            status=DriverStatus(job=saved.job, attempt=saved.attempt, state="starting"),
            process=saved.process,
            run_dir=Path(saved.run_dir),
        )
        self.known[saved.job] = driver
        alive = processes.is_alive(saved.process)
        self._tell(driver, "adopted" if alive else "died while its runner was away")
        self._inbox.watch(saved.process)

    def follow(
        self, orders: Mapping[str, DriverOrder], *, heard: bool, stopping: bool, now_s: float
    ) -> None:
        """Start and stop as ordered; nothing is stopped before a controller was `heard`."""
        for order in orders.values():
            driver = self.known.get(order.job)
            if stopping or (driver is not None and driver.attempt >= order.attempt):
                continue
            if driver is None or driver.is_over:
                self._start(order)
            else:
                self._stop(driver, now_s=now_s)
        for driver in list(self.known.values()):
            found = orders.get(driver.job)
            listed = found is not None and found.attempt == driver.attempt
            ordered = found is not None and listed and found.desired in ("stop", "cancel-now")
            if stopping or ordered or (heard and not listed):
                self._stop(driver, now_s=now_s)
            self._settle(driver, orders, now_s=now_s)
            if driver.is_over and heard and not listed and self._is_old(driver, now_s):
                del self.known[driver.job]
                self.generation += 1

    def fence(self, key: tuple[str, int], *, why: str) -> None:
        """Kill a driver that holds a device past its bound."""
        driver = self.known.get(key[0])
        if driver is None or driver.attempt != key[1] or driver.error or driver.ended_s:
            return
        driver.error = why
        self._tell(driver, "fenced", why=why)
        if driver.process is not None:
            processes.signal_group(driver.process, signal.SIGKILL)

    def take_report(self, report: DriverReport) -> None:
        driver = self.known.get(report.status.job)
        if driver is not None and driver.attempt == report.status.attempt:
            driver.status = report.status
            driver.events = report.events

    def take(self, item: Launched | Cleared | Ended, *, now_s: float) -> None:
        """News of a launch, of a clearing or of the end of a process."""
        if isinstance(item, Ended):
            for driver in self.known.values():
                if driver.process == item.process and driver.ended_s is None:
                    self._end(driver, now_s=now_s)
            return
        found = self.known.get(item.job)
        if found is None or found.attempt != item.attempt:
            return
        if isinstance(item, Cleared):
            found.cleared = True
            if item.num_processes or item.segments:
                self._tell(
                    found, "cleared", processes=item.num_processes, segments=list(item.segments)
                )
            return
        found.run_dir, found.process, found.child = item.run_dir, item.process, item.child
        found.error = found.error or item.error
        self.generation += 1
        if item.process is None:
            self._end(found, now_s=now_s)
        else:
            self._tell(found, "started")
            self._inbox.watch(item.process)

    def statuses(self) -> tuple[DriverStatus, ...]:
        """An attempt counts as ended only when its process is, and all it started."""
        return tuple(
            driver.status
            if driver.is_over or driver.status.state not in _ENDS
            else replace(driver.status, state="running", wants=())
            for _, driver in sorted(self.known.items())
        )

    def saved(self) -> tuple[SavedDriver, ...]:
        return tuple(
            SavedDriver(
                job=driver.job,
                attempt=driver.attempt,
                process=driver.process,
                tag=launch.attempt_tag(self._site.tag, driver.job, driver.attempt),
                run_dir=str(driver.run_dir),
            )
            for driver in self.known.values()
            if driver.process is not None
        )

    @property
    def all_over(self) -> bool:
        return all(driver.is_over for driver in self.known.values())

    def _start(self, order: DriverOrder) -> None:
        driver = Driver(
            job=order.job,
            attempt=order.attempt,
            status=DriverStatus(job=order.job, attempt=order.attempt, state="starting"),
        )
        self.known[order.job] = driver
        if order.desired in ("cancel", "cancel-now", "stop"):
            driver.status = replace(driver.status, state="cancelled")
            driver.is_over = True
            return

        def run() -> None:
            self._inbox.post(launch.launch(self._store, self._site, order.job, order.attempt))

        threading.Thread(target=run, name=f"launch-{order.job}", daemon=True).start()

    def _stop(self, driver: Driver, *, now_s: float) -> None:
        if driver.is_over or driver.ended_s is not None or driver.process is None:
            return
        if driver.stop_s is None:
            driver.stop_s = now_s
        if now_s - driver.stop_s > self._stop_grace_s:
            processes.signal_group(driver.process, signal.SIGKILL)
        elif now_s - driver.stop_s > _TERM_AFTER_S and not driver.termed:
            self.terminate(driver)

    def terminate(self, driver: Driver) -> None:
        """SIGTERM to the driver alone: it closes its own engines in order."""
        if driver.process is not None and not driver.termed:
            driver.termed = True
            if processes.is_alive(driver.process):
                os.kill(driver.process.pid, signal.SIGTERM)

    def _end(self, driver: Driver, *, now_s: float) -> None:
        driver.ended_s = now_s
        self._tell(driver, "ended", exit=_exit_text(driver))

        def run() -> None:
            self._inbox.post(
                launch.clear(self._site, driver.job, driver.attempt, run_dir=driver.run_dir)
            )

        threading.Thread(target=run, name=f"clear-{driver.job}", daemon=True).start()

    def _settle(self, driver: Driver, orders: Mapping[str, DriverOrder], *, now_s: float) -> None:
        """Decide how an attempt ended, once its last word and all its processes are gone."""
        if driver.is_over or driver.ended_s is None or not driver.cleared:
            return
        told = driver.status.state in _ENDS
        if not told and now_s - driver.ended_s < _LAST_WORD_S:
            return
        driver.is_over = True
        if told and not driver.error:
            driver.status = replace(driver.status, wants=())
            return
        order = orders.get(driver.job)
        asked = order is not None and order.desired in ("cancel", "cancel-now", "stop")
        stopped = (asked or driver.stop_s is not None) and not driver.error
        driver.status = replace(
            driver.status,
            state="cancelled" if stopped else "failed",
            wants=(),
            error="" if stopped else self._failure(driver),
        )

    def _failure(self, driver: Driver) -> str:
        first = driver.error or f"the driver {_exit_text(driver)}"
        if driver.run_dir is None:
            return first
        log = launch.attempt_folder(driver.run_dir, driver.attempt) / "driver.log"
        return f"{first}\n{processes.last_lines(log)}".strip()

    def _is_old(self, driver: Driver, now_s: float) -> bool:
        return not driver.events or now_s - (driver.ended_s or 0.0) > _FORGET_S

    def _tell(self, driver: Driver, change: str, **data: Any) -> None:
        pid = driver.process.pid if driver.process else None
        logger.info("driver %s/%d pid %s: %s %s", driver.job, driver.attempt, pid, change, data)
        self._emit(
            EventType.PROCESS,
            job=driver.job,
            data={
                "role": "driver",
                "pid": pid,
                "change": change,
                "attempt": driver.attempt,
                **data,
            },
        )


def _exit_text(driver: Driver) -> str:
    if driver.child is None:
        return "ended, its exit status went to another process" if driver.process else "never ran"
    status = driver.child.poll()
    if status is None:
        return "is ending"
    if status < 0:
        return f"was killed by {signal.Signals(-status).name}"
    return f"ended with status {status}"
