"""The hardware of a replay: one rollout pool of H20, one train pool of H800.

Jobs of a replay take whole nodes of 8 GPUs, so a node is modelled as one device of eight times the
price: placements are the same, and a replay has an eighth of the devices to look at. Elastic pools
(the default) grow as placements need it, as the paper assumes; fixed ones make jobs wait.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from rmux.cluster import Cluster, Node, NodePool, PoolKind
from rmux.errors import InfeasibleError
from rmux.ids import NodeId, PoolName
from rmux.place.sim.jobs import SimJob
from rmux.units import format_bytes

GPUS_PER_NODE = 8
ROLLOUT_HARDWARE, TRAIN_HARDWARE = "H20", "H800"
ROLLOUT_USD_PER_GPU_H, TRAIN_USD_PER_GPU_H = 1.85, 5.28
"""Table 1 of RollMux."""
ELASTIC_NODES = 1_000_000
"""What an elastic pool may grow to: more than any replay holds."""
ROOMY_BYTES = 2**50
"""Host memory of a node where memory is not looked at."""


@dataclass(frozen=True, slots=True, kw_only=True)
class World:
    """Prices are USD per GPU and hour; None nodes make a pool elastic."""

    rollout_nodes: int | None = None
    train_nodes: int | None = None
    rollout_usd_per_gpu_h: float = ROLLOUT_USD_PER_GPU_H
    train_usd_per_gpu_h: float = TRAIN_USD_PER_GPU_H
    host_memory_bytes: int = ROOMY_BYTES

    @property
    def rollout_usd_per_node_h(self) -> float:
        return self.rollout_usd_per_gpu_h * GPUS_PER_NODE

    @property
    def train_usd_per_node_h(self) -> float:
        return self.train_usd_per_gpu_h * GPUS_PER_NODE

    @property
    def is_elastic(self) -> bool:
        return self.rollout_nodes is None and self.train_nodes is None

    @property
    def cluster(self) -> Cluster:
        """One device per node; an elastic pool lists one node and may grow."""
        return Cluster(
            pools=(
                self._pool(PoolKind.ROLLOUT, ROLLOUT_HARDWARE, self.rollout_nodes),
                self._pool(PoolKind.TRAIN, TRAIN_HARDWARE, self.train_nodes),
            )
        )

    def solo_usd_per_h(self, job: SimJob) -> float:
        """What nodes of its own cost, USD/h."""
        return (
            job.spec.rollout.devices * self.rollout_usd_per_node_h
            + job.spec.train.devices * self.train_usd_per_node_h
        )

    def check_fits(self, jobs: Iterable[SimJob]) -> None:
        """InfeasibleError names the first job that no pool, or no node's memory, can hold."""
        for job in jobs:
            for kind, wanted, have in (
                ("rollout", job.spec.rollout.devices, self.rollout_nodes),
                ("train", job.spec.train.devices, self.train_nodes),
            ):
                if have is not None and wanted > have:
                    raise InfeasibleError(
                        f"job {job.spec.name} needs {wanted} {kind} nodes; the pool has {have}",
                        hint="give --pools more nodes, or leave it out for pools that grow",
                    )
            needed = max(job.profile.rollout_resident_bytes, job.profile.train_resident_bytes)
            if needed > self.host_memory_bytes:
                raise InfeasibleError(
                    f"job {job.spec.name} keeps {format_bytes(needed)} in host memory; a node has "
                    f"{format_bytes(self.host_memory_bytes)}",
                    hint="give --host-memory more",
                )

    def _pool(self, kind: PoolKind, hardware: str, count: int | None) -> NodePool:
        price = (
            self.rollout_usd_per_node_h if kind is PoolKind.ROLLOUT else self.train_usd_per_node_h
        )
        nodes = tuple(
            Node(
                id=NodeId(f"{kind[0]}{index}"),
                pool=PoolName(str(kind)),
                host=f"{kind[0]}{index}",
                device_kind=hardware,
                num_devices=1,
                host_memory_bytes=self.host_memory_bytes,
            )
            for index in range(1 if count is None else count)
        )
        return NodePool(
            name=PoolName(str(kind)),
            kind=kind,
            hardware=hardware,
            usd_per_device_h=price,
            nodes=nodes,
            max_nodes=ELASTIC_NODES if count is None else 0,
        )
