"""Host memory of what runs for a node, measured now and then behind the loop."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Collection
from dataclasses import dataclass

from rmux.cluster import DeviceId
from rmux.ids import NodeId
from rmux.run.messages import DriverReport
from rmux.run.processes import tagged

_EVERY_S = 30.0  # the kernel walks every page of every process for it


@dataclass(frozen=True, slots=True)
class Resident:
    resident_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class JobProcesses:
    """Which processes of one attempt serve this node, as its driver has told so far."""

    tag: str
    own: frozenset[int] = frozenset()
    """Pids that serve a device of this node."""
    others: frozenset[int] = frozenset()
    """Pids that serve a device of another."""
    is_home: bool
    """Whether what serves no single device, the driver and its helpers, counts here."""


class NodeMemory:
    """Told by the runner's loop, read by the thread that measures: each job is replaced whole."""

    def __init__(self, node: NodeId) -> None:
        self._node = node
        self._jobs: dict[str, JobProcesses] = {}

    def learn(self, report: DriverReport, *, tag: str, is_home: bool) -> None:
        """Take in which pids a driver names for which devices."""
        job = report.status.job
        before = self._jobs.get(job)
        if before is None or before.tag != tag:
            before = JobProcesses(tag=tag, is_home=is_home)
        own, others = set(before.own), set(before.others)
        for use in report.uses:
            serves_here = DeviceId.parse(use.device).node == self._node
            (own if serves_here else others).update(use.pids)
        driver = {report.pid}
        self._jobs[job] = JobProcesses(
            tag=tag,
            own=frozenset(own - driver),
            others=frozenset(others - driver - own),
            is_home=is_home,
        )

    def keep(self, jobs: Collection[str]) -> None:
        """Forget every other job."""
        for job in [job for job in self._jobs if job not in jobs]:
            del self._jobs[job]

    def resident_bytes(self) -> int:
        """PSS of this runner and of the jobs' processes here: shared pages are counted once."""
        pids = {os.getpid()}
        for job in list(self._jobs.values()):
            found = {process.pid for process in tagged(job.tag)}
            pids |= found - job.others if job.is_home else found & job.own
        return sum(map(_pss_bytes, pids))


def watch_memory(memory: NodeMemory, *, post: Callable[[Resident], None]) -> None:
    """Post the sum every half minute, from a thread of its own."""

    def loop() -> None:
        pause = threading.Event()
        while not pause.wait(_EVERY_S):
            post(Resident(memory.resident_bytes()))

    threading.Thread(target=loop, name="memory", daemon=True).start()


def _pss_bytes(pid: int) -> int:
    import psutil

    try:
        return int(psutil.Process(pid).memory_full_info().pss)
    except psutil.Error:
        return 0
