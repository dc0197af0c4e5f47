"""JSON documents about pools and the store."""

from __future__ import annotations

from typing import Literal

from rmux.cli.documents import Document, Part, named


class NodePart(Part):
    id: str
    host: str
    device_kind: str
    num_devices: int
    cores: tuple[tuple[int, ...], ...]
    gpu_uuids: tuple[str, ...]
    host_memory_bytes: int
    reserved_memory_bytes: int
    drained: str
    group: str | None


class LinkPart(Part):
    source: str
    target: str
    rate_bps: float


class PoolDocument(Document):
    """One pool: its nodes, who holds them, its links."""

    schema_: Literal["rmux.pool/v1"] = named("rmux.pool/v1")
    name: str
    kind: str
    hardware: str
    usd_per_device_h: float
    num_nodes: int
    num_devices: int
    free_nodes: int
    drained_nodes: int
    nodes: tuple[NodePart, ...]
    links: tuple[LinkPart, ...]


class PoolList(Document):
    schema_: Literal["rmux.pool_list/v1"] = named("rmux.pool_list/v1")
    items: tuple[PoolDocument, ...]
    revision: int


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
