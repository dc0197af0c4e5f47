"""Where a job could go: into a group as it is, into a group with more rollout nodes, or alone.

Train pools are never scaled: a joining job trains on exactly the devices of the group, with as many
ranks, when its batches can be dealt to them.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from enum import StrEnum

from rmux.cluster import DeviceId, Node, PoolKind
from rmux.estimate import JobProfile
from rmux.group import Placement, fitted_profile, nodes_of
from rmux.ids import JobId, NodeId
from rmux.job import JobSpec, Reason
from rmux.place.index_needs import Needs
from rmux.place.index_row import Pack, Row, Seat
from rmux.place.inventory import Inventory, Stock


class Kind(StrEnum):
    PACK = "direct packing"
    """On devices the group has already."""
    SCALE = "rollout scaling"
    """With just enough further rollout nodes."""
    NEW = "isolated group"


class Proposal:
    """A place to be judged."""

    __slots__ = ("added", "apart", "kind", "needs", "nodes", "rollout", "row", "seat", "train")

    def __init__(
        self,
        kind: Kind,
        row: Row | None,
        *,
        rollout: tuple[DeviceId, ...],
        nodes: tuple[NodeId, ...],
        train: tuple[DeviceId, ...],
        needs: Needs,
        seat: Seat | None = None,
        apart: bool = True,
        added: tuple[Node, ...] = (),
    ) -> None:
        self.kind, self.row = kind, row
        self.rollout, self.train = rollout, train
        self.nodes = nodes
        """Of the rollout devices."""
        self.needs = needs
        """What the job needs on that many train devices."""
        self.seat, self.apart = seat, apart
        self.added = added

    @property
    def placement(self) -> Placement:
        return Placement(rollout=self.rollout, train=self.train)


class Newcomer:
    """A job that wants a place, with what was found out about it in one state."""

    def __init__(self, spec: JobSpec, profile: JobProfile, job_id: JobId) -> None:
        self.spec, self.profile, self.job_id = spec, profile, job_id
        self.count, self.degree = spec.rollout.devices, spec.train.devices
        self.needs = self._needs(profile)
        self.rollout_bytes = profile.rollout_resident_bytes + profile.switch_peak_bytes
        self.train_bytes = profile.train_resident_bytes + profile.switch_peak_bytes
        self._fits: dict[tuple[int, int], Needs] = {}
        self._picked: dict[tuple[str, int, int], tuple[Node, ...] | None] = {}

    def deals(self, degree: int) -> bool:
        """Whether its batches can be dealt to that many ranks."""
        train = self.spec.train
        return degree == self.degree or train.mini_batch % (train.micro_batch * degree) == 0

    def needs_on(self, train: tuple[DeviceId, ...]) -> Needs:
        """What it needs when it trains on these devices."""
        if len(train) == self.degree:
            return self.needs
        key = (len(train), max(Counter(device.node for device in train).values()))
        if key not in self._fits:
            fitted = fitted_profile(self.profile, asked=self.degree, train=train)
            self._fits[key] = self._needs(fitted, asked_solo_s=self.needs.solo_s)
        return self._fits[key]

    def pick(
        self, known: Inventory, stock: Stock, count: int, *, need_bytes: int
    ) -> tuple[Node, ...] | None:
        key = (stock.name, count, need_bytes)
        if key not in self._picked:
            self._picked[key] = known.pick(stock, count, need_bytes=need_bytes)
        return self._picked[key]

    def _needs(self, profile: JobProfile, *, asked_solo_s: float = 0.0) -> Needs:
        spec = self.spec
        return Needs(
            profile,
            slo=spec.slo,
            max_staleness=spec.max_staleness,
            max_repeats=spec.max_repeats,
            asked_solo_s=asked_solo_s,
        )


def refusal_of(row: Row, job: Newcomer) -> Reason | None:
    """Why no place in the group would do, whatever its numbers."""
    for stock, hardware in (
        (row.stock, job.profile.rollout_hardware),
        (row.train_stock, job.profile.train_hardware),
    ):
        if stock.hardware != hardware:
            return Reason(
                code="hardware",
                message=f"pool {stock.name} is {stock.hardware}, the profile is of {hardware}",
            )
    if not job.deals(len(row.train)):
        train = job.spec.train
        return Reason(
            code="data_parallel",
            message=f"the group trains on {len(row.train)} devices, the job asks for "
            f"{job.degree}; mini_batch {train.mini_batch} is no multiple of micro_batch "
            f"{train.micro_batch} x {len(row.train)}, and train pools are not scaled",
        )
    return row.refusal


def members_refusal(row: Row, max_members: int) -> Reason | None:
    """That the cluster's policy lets no more jobs into the group; 0 is no limit."""
    if not 0 < max_members <= len(row.members):
        return None
    return Reason(
        code="members", message=f"the group has {len(row.members)} jobs of at most {max_members}"
    )


def packings(row: Row, job: Newcomer) -> Iterator[Proposal]:
    """Equal or unused rollout devices first, then sets that overlap in part."""
    needs = job.needs_on(row.train)
    for pack in row.packs(job.count):
        yield packing(row, pack, needs)


def packing(row: Row, pack: Pack, needs: Needs) -> Proposal:
    return Proposal(
        Kind.PACK,
        row,
        rollout=pack.devices,
        nodes=pack.nodes,
        train=row.train,
        needs=needs,
        seat=pack.seat,
        apart=pack.apart,
    )


def scalings(known: Inventory, row: Row, job: Newcomer) -> Iterator[Proposal]:
    """The group with just enough further rollout nodes, with and without its unused devices."""
    needs = job.needs_on(row.train)
    unused = row.unused_devices() if 0 < row.unused < job.count else ()
    for reused in (unused, ()) if unused else ((),):
        missing = job.count - len(reused)
        nodes = job.pick(known, row.stock, missing, need_bytes=job.rollout_bytes)
        if nodes is not None:
            fresh = _devices_of(nodes)[:missing]
            rollout = (*reused, *fresh)
            yield Proposal(
                Kind.SCALE,
                row,
                rollout=rollout,
                nodes=nodes_of(rollout),
                train=row.train,
                needs=needs,
                apart=not row.overlapping,
                added=nodes,
            )


def isolated(known: Inventory, job: Newcomer) -> Iterator[Proposal]:
    """New groups, one per pair of pools of the hardware that was profiled."""
    profile = job.profile
    for rollout_stock, train_stock in itertools.product(
        _of_hardware(known, PoolKind.ROLLOUT, profile.rollout_hardware),
        _of_hardware(known, PoolKind.TRAIN, profile.train_hardware),
    ):
        rollout = job.pick(known, rollout_stock, job.count, need_bytes=job.rollout_bytes)
        train = job.pick(known, train_stock, job.degree, need_bytes=job.train_bytes)
        if rollout is None or train is None:
            continue
        yield Proposal(
            Kind.NEW,
            None,
            rollout=_devices_of(rollout)[: job.count],
            nodes=tuple([node.id for node in rollout]),
            train=_devices_of(train)[: job.degree],
            needs=job.needs,
            added=(*rollout, *train),
        )


def none_isolated(known: Inventory, job: Newcomer) -> Reason:
    """Why there is no room for a new group."""
    for kind, hardware, count in (
        (PoolKind.ROLLOUT, job.profile.rollout_hardware, job.count),
        (PoolKind.TRAIN, job.profile.train_hardware, job.degree),
    ):
        stocks = _of_hardware(known, kind, hardware)
        if not stocks:
            have = sorted({stock.hardware for stock in known.of_kind(kind)})
            return Reason(
                code="hardware",
                message=f"no {kind} pool of {hardware}; there is {', '.join(have) or 'none'}",
            )
        if all(job.pick(known, stock, count, need_bytes=0) is None for stock in stocks):
            return shortage(stocks, count)
    return Reason(code="capacity", message="no pair of pools has room on both sides")


def shortage(stocks: Sequence[Stock], count: int) -> Reason:
    """Why none of the pools has `count` free devices."""
    names = " and ".join(f"{stock.kind} pool {stock.name}" for stock in stocks)
    total = sum(stock.total_devices for stock in stocks)
    devices = "1 device" if count == 1 else f"{count} devices"
    most = max(stock.free_devices for stock in stocks)
    message = f"needs {devices}; {names} has {most} of {total} free"
    if limit := sum(stock.pool.max_nodes for stock in stocks):
        message += f" and may grow to {limit} nodes"
    if max(stock.free_devices + stock.drained_devices for stock in stocks) >= count:
        drained = sum(stock.drained_devices for stock in stocks)
        return Reason(code="drained", message=f"{message}, {drained} on drained nodes")
    return Reason(code="capacity", message=message)


def _of_hardware(known: Inventory, kind: PoolKind, hardware: str) -> tuple[Stock, ...]:
    return tuple([stock for stock in known.of_kind(kind) if stock.hardware == hardware])


def _devices_of(nodes: Iterable[Node]) -> tuple[DeviceId, ...]:
    return tuple([device for node in nodes for device in node.devices])
