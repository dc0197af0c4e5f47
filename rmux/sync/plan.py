"""Who sends which bytes of the weights to whom. Pure: no byte moves here.

`hier`: every byte crosses the slow link once (scatter: source rank i and target rank j exchange
where their shards meet), then each target forwards what it got to its pool (broadcast). `flat`:
every target gets a full copy over the slow link; the baseline.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum

from rmux.errors import UserError
from rmux.sync.shards import ALIGNMENT_BYTES, Shard, shards


class Topology(StrEnum):
    FLAT = "flat"
    HIER = "hier"


class Side(StrEnum):
    SOURCE = "source"
    TARGET = "target"


@dataclass(frozen=True, slots=True, order=True)
class Rank:
    """One process that holds weights; printed 's0' or 't3'."""

    side: Side
    index: int

    def __str__(self) -> str:
        return f"{self.side[0]}{self.index}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One shard from one rank to another; may start when `after` has begun to arrive."""

    id: str
    sender: Rank
    receiver: Rank
    shard: Shard
    after: str | None = None

    @property
    def crosses_link(self) -> bool:
        return self.sender.side is not self.receiver.side


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    topology: Topology
    size_bytes: int
    num_sources: int
    num_targets: int
    steps: tuple[Step, ...]

    @property
    def sources(self) -> tuple[Rank, ...]:
        return tuple(Rank(Side.SOURCE, index) for index in range(self.num_sources))

    @property
    def targets(self) -> tuple[Rank, ...]:
        return tuple(Rank(Side.TARGET, index) for index in range(self.num_targets))

    @property
    def link_bytes(self) -> int:
        """Over the slow link."""
        return _bytes(step for step in self.steps if step.crosses_link)

    @property
    def local_bytes(self) -> int:
        """Inside the target pool."""
        return _bytes(step for step in self.steps if not step.crosses_link)

    def sent_by(self, rank: Rank) -> tuple[Step, ...]:
        return tuple(step for step in self.steps if step.sender == rank)

    def received_by(self, rank: Rank) -> tuple[Step, ...]:
        return tuple(step for step in self.steps if step.receiver == rank)


@dataclass(frozen=True, slots=True, kw_only=True)
class Prediction:
    """Seconds from link rates alone: no latency, no CPU. `binding` says what takes longest."""

    link_s: float
    local_s: float
    total_s: float
    binding: str


def plan(
    topology: Topology,
    *,
    size_bytes: int,
    num_sources: int,
    num_targets: int,
    alignment_bytes: int = ALIGNMENT_BYTES,
) -> Plan:
    """The steps that bring one blob to every target; UserError when there is nothing to plan."""
    if size_bytes < 1 or num_sources < 1 or num_targets < 1:
        raise UserError(
            f"cannot sync {size_bytes} bytes from {num_sources} to {num_targets} ranks",
            hint="at least one byte, one source and one target",
        )
    if topology is Topology.FLAT:
        steps = _flat(size_bytes, num_sources, num_targets)
    else:
        scattered = _scatter(size_bytes, num_sources, num_targets, alignment_bytes)
        steps = scattered + _broadcast(scattered, num_targets)
    return Plan(
        topology=topology,
        size_bytes=size_bytes,
        num_sources=num_sources,
        num_targets=num_targets,
        steps=steps,
    )


def predict(plan: Plan, *, link_bps: float, local_bps: float | None = None) -> Prediction:
    """`link_bps` is what all ranks share; `local_bps` is each target's own link, None = no limit.

    The two overlap: a target forwards a chunk while the next arrives.
    """
    if link_bps <= 0 or (local_bps is not None and local_bps <= 0):
        raise UserError("a link rate is more than 0")
    link_s = plan.link_bytes * 8 / link_bps
    local_s = 0.0
    if local_bps is not None:
        local_s = max(_local_bytes(plan, target) for target in plan.targets) * 8 / local_bps
    return Prediction(
        link_s=link_s,
        local_s=local_s,
        total_s=max(link_s, local_s),
        binding="local" if local_s > link_s else "link",
    )


def _local_bytes(plan: Plan, target: Rank) -> int:
    """The busier direction of a target inside its pool."""
    sent = _bytes(plan.sent_by(target))
    received = _bytes(step for step in plan.received_by(target) if not step.crosses_link)
    return max(sent, received)


def _flat(size_bytes: int, num_sources: int, num_targets: int) -> tuple[Step, ...]:
    return tuple(
        Step(
            id=f"copy-{index}",
            sender=Rank(Side.SOURCE, index % num_sources),
            receiver=Rank(Side.TARGET, index),
            shard=Shard(begin=0, end=size_bytes),
        )
        for index in range(num_targets)
    )


def _scatter(
    size_bytes: int, num_sources: int, num_targets: int, alignment_bytes: int
) -> tuple[Step, ...]:
    """Walks both cuts of the blob at once: at most sources + targets - 1 pieces."""
    held = shards(size_bytes, count=num_sources, alignment_bytes=alignment_bytes)
    wanted = shards(size_bytes, count=num_targets, alignment_bytes=alignment_bytes)
    steps = []
    source = target = 0
    while source < num_sources and target < num_targets:
        begin = max(held[source].begin, wanted[target].begin)
        end = min(held[source].end, wanted[target].end)
        if begin < end:
            steps.append(
                Step(
                    id=f"scatter-{source}-{target}",
                    sender=Rank(Side.SOURCE, source),
                    receiver=Rank(Side.TARGET, target),
                    shard=Shard(begin=begin, end=end),
                )
            )
        if held[source].end <= wanted[target].end:
            source += 1
        else:
            target += 1
    return tuple(steps)


def _broadcast(scattered: tuple[Step, ...], num_targets: int) -> tuple[Step, ...]:
    """Each target starts with its right neighbour, so that no peer is everybody's first."""
    return tuple(
        Step(
            id=f"{step.id}-to-{peer}",
            sender=step.receiver,
            receiver=Rank(Side.TARGET, peer),
            shard=step.shard,
            after=step.id,
        )
        for step in scattered
        for peer in (
            (step.receiver.index + distance) % num_targets for distance in range(1, num_targets)
        )
    )


def _bytes(steps: Iterable[Step]) -> int:
    return sum(step.shard.num_bytes for step in steps)
