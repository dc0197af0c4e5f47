"""JSON documents about pools and the store."""

from __future__ import annotations

from typing import Literal

from rmux.cli.documents import Document, Part, Record, named


class NodePart(Part):
    id: str
    host: str
    device_kind: str
    num_devices: int
    cores: tuple[tuple[int, ...], ...]
    gpu_uuids: tuple[str, ...]
    host_memory_bytes: int
    reserved_memory_bytes: int
    planned_bytes: int | None
    """Of the jobs that are placed on it, parked; `pool show` tells it."""
    drained: str
    group: str | None


class LinkPart(Part):
    source: str
    target: str
    rate_bps: float


class PolicyPart(Part):
    """How the cluster is shared, as `[policy]` of the cluster file says."""

    rule: str
    margin: float
    max_members: int
    """0 for no limit."""
    ageing_s: float
    rebalance: bool
    payback_s: float
    drift_quantile: float


class PoolDocument(Document):
    """One pool: its nodes, who holds them, its links; the policy is the whole cluster's."""

    schema_: Literal["rmux.pool/v1"] = named("rmux.pool/v1")
    name: str
    kind: str
    hardware: str
    usd_per_device_h: float
    num_nodes: int
    max_nodes: int
    """That it may grow to; 0 when it has what is listed."""
    num_devices: int
    free_nodes: int
    drained_nodes: int
    nodes: tuple[NodePart, ...]
    links: tuple[LinkPart, ...]
    policy: PolicyPart


class PoolList(Document):
    schema_: Literal["rmux.pool_list/v1"] = named("rmux.pool_list/v1")
    items: tuple[PoolDocument, ...]
    policy: PolicyPart
    revision: int


class TenantRecord(Record):
    """One tenant: what it may cost, what it costs, its jobs.

    `name` is empty for jobs of nobody's tenant and '(unassigned)' for groups without members.
    """

    schema_: Literal["rmux.tenant/v1"] = named("rmux.tenant/v1")
    name: str
    declared: bool
    """In the cluster file."""
    quota_usd_per_h: float
    """0 for no limit."""
    weight: float
    placed_jobs: int
    waiting_jobs: int
    usd_per_h: float
    """What its jobs are charged now: by device-seconds held lately, else by plan."""
    planned_usd_per_h: float
    """By plan alone: this is held against the quota."""
    share: float
    """Of the bill, 0..1."""


class TenantList(Document):
    """Who is charged how much; the tenants' `usd_per_h` add up to the bill."""

    schema_: Literal["rmux.tenant_list/v1"] = named("rmux.tenant_list/v1")
    items: tuple[TenantRecord, ...]
    bill_usd_per_h: float
    """Price of all nodes that groups hold."""
    policy: PolicyPart


class PoolChange(Document):
    """What adding, removing, draining or undraining came to."""

    schema_: Literal["rmux.pool_change/v1"] = named("rmux.pool_change/v1")
    changed: bool
    dry_run: bool
    names: tuple[str, ...]
    revision: int


class LeasePart(Part):
    name: str
    owner: str
    epoch: int
    live: bool


class StoreStatus(Document):
    """The store: where, which schema, how large, who holds leases."""

    schema_: Literal["rmux.store_status/v1"] = named("rmux.store_status/v1")
    url: str
    backend: str
    schema_revision: str
    written_by: str
    revision: int
    size_bytes: int
    wal_bytes: int | None
    jobs: int
    active_jobs: int
    groups: int
    events: int
    leases: tuple[LeasePart, ...]


class StoreChange(Document):
    """What `init` or `migrate` did; `before` is null for a new store."""

    schema_: Literal["rmux.store_change/v1"] = named("rmux.store_change/v1")
    url: str
    before: str | None
    now: str
    changed: bool
