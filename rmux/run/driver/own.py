"""Engines a script brings along: rmux grants it devices and pins it, nothing more."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Sequence
from pathlib import Path

from rmux.cluster import DeviceId, PoolKind
from rmux.errors import UserError
from rmux.ids import NodeId
from rmux.run import host_memory
from rmux.run.driver.engines import DriverConfig, Fleet, ShedKind, ShedReport, Trainer


class OwnEngines:
    """The driver's own process tree as the engines of a job whose spec names no model."""

    def __init__(self, config: DriverConfig) -> None:
        self._nodes = {node.id: node for node in config.nodes}
        self._placement = config.placement
        self._unpinned = os.sched_getaffinity(0)
        uuids = [uuid for node in config.nodes for uuid in node.gpu_uuids]
        if uuids:
            os.environ.setdefault("CUDA_VISIBLE_DEVICES", ",".join(uuids))

    def prepare(self) -> None:
        pass

    def init(self, kind: PoolKind) -> float:
        return 0.0

    def wake(self, kind: PoolKind, devices: Sequence[DeviceId] | None = None) -> float:
        """Pin every thread of the process tree to the cores of the pool's devices, or of these."""
        if devices is None:
            devices = self._placement.rollout if kind is PoolKind.ROLLOUT else self._placement.train
        cores = {core for device in devices for core in self._cores(device)}
        if cores:
            _pin_tree(cores)
        return 0.0

    def park(self, kind: PoolKind, devices: Sequence[DeviceId] | None = None) -> float:
        _pin_tree(self._unpinned)
        return 0.0

    def pids(self, device: DeviceId) -> tuple[int, ...]:
        return _tree()

    def fleet(self) -> Fleet:
        raise self._no_model("fleet")

    def trainer(self) -> Trainer:
        raise self._no_model("trainer")

    def save(self, folder: Path) -> int:
        return 0

    def restore(self, folder: Path) -> None:
        pass

    def shed(self, what: ShedKind, *, node: NodeId) -> ShedReport | None:
        """What the script holds is its own to keep: only the heap's free pages can go."""
        del node
        host_memory.trim_heap()
        return ShedReport(what=what, freed_bytes=0)

    def spilled(self) -> tuple[NodeId, ...]:
        return ()

    def versions(self) -> dict[str, str]:
        return {}

    def close(self) -> None:
        pass

    def _cores(self, device: DeviceId) -> tuple[int, ...]:
        cores = self._nodes[device.node].cores
        return cores[device.index] if cores else ()

    @staticmethod
    def _no_model(handle: str) -> UserError:
        return UserError(
            f"rmux.{handle}() needs a model, and the spec names none",
            hint="add [model] to the spec, or bring engines with park= and wake=",
        )


def _tree() -> tuple[int, ...]:
    """This process and its descendants; the kernel's own lists, as a scan of /proc takes 10 ms."""
    found = [os.getpid()]
    for pid in found:
        for listed in Path(f"/proc/{pid}/task").glob("*/children"):
            # A process may end between being listed and being asked for its children.
            with contextlib.suppress(OSError):
                found += [int(child) for child in listed.read_text().split()]
    return tuple(found)


def _pin_tree(cores: set[int]) -> None:
    for pid in _tree():
        # A thread or process may end between being listed and being pinned.
        with contextlib.suppress(OSError):
            for thread in os.listdir(f"/proc/{pid}/task"):
                with contextlib.suppress(OSError):
                    os.sched_setaffinity(int(thread), cores)
