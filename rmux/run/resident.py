"""Host memory of a running job, node by node, watched from outside by its driver's reports."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable

from rmux.cluster import DeviceId
from rmux.errors import RmuxError
from rmux.group import Placement
from rmux.ids import NodeId
from rmux.run import host_memory, processes
from rmux.run.channel import connect
from rmux.run.messages import DriverReport, streams
from rmux.run.workers.cache import CacheFiles

_EVERY_S = 0.25


class ResidentWatch:
    """PSS, so that shared pages count once. What serves no single device, the driver and its
    helpers, counts for the node of the first train device, where it runs."""

    def __init__(
        self,
        *,
        tag: str,
        job_id: str,
        placement: Placement,
        channel_url: str,
        on_iteration: Callable[[int], None] = lambda finished: None,
    ) -> None:
        self.parked_bytes: dict[NodeId, int] = {}
        """Most seen per node while none of its devices was in use, after an iteration."""
        self.peak_bytes: dict[NodeId, int] = {}
        """Most seen per node at any time."""
        self._tag, self._job_id, self._channel_url = tag, job_id, channel_url
        self._home = placement.train_nodes[0]
        self._gates = tuple(dict.fromkeys(placement.train_nodes + placement.rollout_nodes))
        self._on_iteration = on_iteration
        self._pids: dict[int, NodeId] = {}
        self._in_use: frozenset[NodeId] = frozenset()
        self._finished = 0
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._loop, name="resident", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stopped.set()
        self._thread.join(timeout=10.0)

    def _loop(self) -> None:
        while not self._stopped.wait(_EVERY_S):
            try:
                self._follow()
            except RmuxError:
                continue  # the group's channel is not up yet

    def _follow(self) -> None:
        channel = connect(self._channel_url)
        try:
            channel.subscribe(
                [streams.driver_reports(self._job_id, gate) for gate in self._gates], replay=True
            )
            while not self._stopped.is_set():
                for _, message in channel.receive(_EVERY_S):
                    if isinstance(message, DriverReport):
                        self._learn(message)
                self._note(processes.tagged(self._tag))
        finally:
            channel.close()

    def _learn(self, report: DriverReport) -> None:
        nodes = {use.device: DeviceId.parse(use.device).node for use in report.uses}
        for use in report.uses:
            for pid in use.pids:
                self._pids.setdefault(pid, nodes[use.device])
        self._pids[report.pid] = self._home
        self._in_use = frozenset(nodes[u.device] for u in report.uses if u.state == "running")
        if report.status.iteration > self._finished:
            self._finished = report.status.iteration
            self._on_iteration(self._finished)

    def _note(self, living: Iterable[processes.ProcessId]) -> None:
        before = self._in_use
        pids: dict[NodeId, set[int]] = {}
        for process in living:
            pids.setdefault(self._pids.get(process.pid, self._home), set()).add(process.pid)
        now_bytes = {
            node: host_memory.job_bytes(
                found, host_memory.segments_bytes(CacheFiles.of(self._tag, node).stem)
            )
            for node, found in pids.items()
        }
        for node, count in now_bytes.items():
            self.peak_bytes[node] = max(count, self.peak_bytes.get(node, 0))
            if self._finished and node not in before:
                self.parked_bytes[node] = max(count, self.parked_bytes.get(node, 0))
