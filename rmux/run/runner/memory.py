"""Host memory of what runs for a node, measured now and then behind the loop."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass

from rmux.cluster import DeviceId
from rmux.ids import NodeId
from rmux.run import host_memory
from rmux.run.host_memory import HostMemory
from rmux.run.messages import DriverReport
from rmux.run.processes import tagged
from rmux.run.workers.cache import CacheFiles

_EVERY_S = 30.0
_SHARE, _SHARE_TIGHT = 0.01, 0.1
"""Of a core, that counting may take."""

Tight = Callable[[HostMemory], bool]


@dataclass(frozen=True, slots=True, kw_only=True)
class Resident:
    """One measurement, bytes."""

    own_bytes: int
    """Of the runner itself."""
    jobs: Mapping[str, int]
    host: HostMemory

    @property
    def resident_bytes(self) -> int:
        return self.own_bytes + sum(self.jobs.values())


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

    def measure(self) -> Resident:
        """Of this runner and of each job's processes and shared segments here."""
        jobs = {name: self._job_bytes(job) for name, job in list(self._jobs.items())}
        own_bytes = host_memory.pss_bytes(os.getpid())
        return Resident(own_bytes=own_bytes, jobs=jobs, host=host_memory.read_host())

    def _job_bytes(self, job: JobProcesses) -> int:
        found = {process.pid for process in tagged(job.tag)}
        pids = found - job.others if job.is_home else found & job.own
        segments = host_memory.segments_bytes(CacheFiles.of(job.tag, self._node).stem)
        return host_memory.job_bytes(pids, segments)


def watch_memory(
    memory: NodeMemory, *, post: Callable[[Resident], None], least_s: float, is_tight: Tight
) -> None:
    """Post what is held, from a thread of its own.

    Counting makes the kernel walk every page of every process, so it may take a hundredth of a
    core, and a tenth where memory is tight, for then it must be known who holds what; at most every
    `least_s` and at least every half minute.
    """

    def loop() -> None:
        pause = threading.Event()
        due_s = soon_s = 0.0
        while not pause.wait(least_s):
            begun_s = time.monotonic()
            if begun_s < soon_s or (begun_s < due_s and not is_tight(host_memory.read_host())):
                continue
            before_s = time.thread_time()
            post(memory.measure())
            took_s = time.thread_time() - before_s
            due_s = begun_s + min(_EVERY_S, took_s / _SHARE)
            soon_s = begun_s + min(_EVERY_S, took_s / _SHARE_TIGHT)

    threading.Thread(target=loop, name="memory", daemon=True).start()
