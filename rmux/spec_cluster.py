"""A checked cluster file to `Cluster`: names expand, CPU cores are dealt to devices."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterator

from rmux.cluster import Cluster, Link, Node, NodePool, Policy, PoolKind, Tenant
from rmux.errors import SpecError
from rmux.ids import NodeId, PoolName
from rmux.spec_models import (
    MOST_DEVICES,
    ClusterFile,
    NodeSection,
    PolicySection,
    PoolSection,
)
from rmux.toml_lines import Location, nearest

Fail = Callable[[Location, str], SpecError]

_RANGE = re.compile(r"\[(\d+)-(\d+)\]")
_NODE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")
_MOST_NODES = 100_000


def cluster_of(file: ClusterFile, *, host: str, fail: Fail) -> Cluster:
    """SpecError, made by `fail`, for what no single key shows."""
    pools = []
    for name, pool in file.pools.items():
        nodes = tuple(
            node
            for index, section in enumerate(pool.nodes)
            for node in _nodes(
                section,
                pool=PoolName(name),
                hardware=pool.hardware,
                host=host,
                fail=_at(("pools", name, "nodes", index), fail),
            )
        )
        pools.append(
            NodePool(
                name=PoolName(name),
                kind=PoolKind(pool.kind),
                hardware=pool.hardware,
                usd_per_device_h=pool.usd_per_device_h,
                nodes=nodes,
                max_nodes=_max_nodes(pool, len(nodes), _at(("pools", name), fail)),
            )
        )
    _check_names(pools, fail)
    return Cluster(
        pools=tuple(pools),
        links=tuple(_links(file, fail)),
        tenants=tuple(
            Tenant(name=name, quota_usd_per_h=one.quota_usd_per_h, weight=one.weight)
            for name, one in file.tenants.items()
        ),
        policy=_policy(file.policy),
    )


def _max_nodes(pool: PoolSection, listed: int, fail: Fail) -> int:
    if pool.max_nodes and pool.max_nodes < listed:
        raise fail(("max_nodes",), f"max_nodes is {pool.max_nodes}, but {listed} nodes are listed")
    return pool.max_nodes


def _policy(section: PolicySection) -> Policy:
    values = section.model_dump()
    values["ageing_s"], values["payback_s"] = values.pop("ageing"), values.pop("payback")
    return Policy(**values)


def expand(name: str) -> list[str]:
    """'h20-0[1-3]' is h20-01, h20-02, h20-03; leading zeros keep the width."""
    match = _RANGE.search(name)
    if match is None:
        return [name]
    first, last = int(match[1]), int(match[2])
    width = len(match[1]) if match[1].startswith("0") else 0
    if not first <= last or last - first >= _MOST_NODES:
        raise ValueError(f"{match[0]} is not a range of at most {_MOST_NODES} numbers")
    return [
        name[: match.start()] + f"{number:0{width}d}" + rest
        for number in range(first, last + 1)
        for rest in expand(name[match.end() :])
    ]


def _at(prefix: Location, fail: Fail) -> Fail:
    return lambda location, message: fail(prefix + location, message)


def _nodes(
    section: NodeSection, *, pool: PoolName, hardware: str, host: str, fail: Fail
) -> Iterator[Node]:
    try:
        names, hosts = expand(section.name), expand(section.host or host)
    except ValueError as error:
        raise fail(("name",), f"name {section.name!r}: {error}") from None
    if len(hosts) not in (1, len(names)):
        raise fail(
            ("host",),
            f"host {section.host!r} names {len(hosts)} hosts for {len(names)} nodes",
        )
    if section.reserved_memory >= section.host_memory:
        raise fail(("reserved_memory",), "reserved_memory leaves nothing of host_memory")
    cores = _cores(section, fail)
    count = section.devices or len(cores) or len(section.gpu_uuids)
    if not count:
        raise fail(("devices",), f"node {section.name!r} names no devices, cores or gpu_uuids")
    if section.gpu_uuids and len(section.gpu_uuids) != count:
        raise fail(
            ("gpu_uuids",), f"{len(section.gpu_uuids)} gpu_uuids for {count} devices; name each"
        )
    for name, node_host in zip(names, itertools.cycle(hosts), strict=False):
        if not _NODE.fullmatch(name):
            raise fail(("name",), f"name {name!r}: use letters, digits, '.', '_' and '-'")
        yield Node(
            id=NodeId(name),
            pool=pool,
            host=node_host,
            device_kind=section.device or hardware,
            num_devices=count,
            cores=cores,
            gpu_uuids=tuple(section.gpu_uuids),
            host_memory_bytes=section.host_memory,
            reserved_memory_bytes=section.reserved_memory,
        )


def _cores(section: NodeSection, fail: Fail) -> tuple[tuple[int, ...], ...]:
    """`cores = [0, 1]` is dealt evenly to the devices; `[[0, 1], [2]]` is one list per device."""
    given = section.cores
    if given is None:
        return ()
    if not given:
        raise fail(("cores",), "cores is empty; leave it out to let the system choose")
    sets = [tuple(item) for item in given if isinstance(item, list)]
    if not sets:
        flat = tuple(item for item in given if isinstance(item, int))
        sets = _dealt(flat, section, fail)
    if section.devices is not None and len(sets) != section.devices:
        raise fail(("cores",), f"cores has {len(sets)} sets for {section.devices} devices")
    every = [core for cores in sets for core in cores]
    if not all(sets) or any(not 0 <= core < MOST_DEVICES for core in every):
        raise fail(
            ("cores",),
            f"each device needs at least one core, numbered from 0 to {MOST_DEVICES - 1}",
        )
    if len(set(every)) < len(every) and not section.oversubscribe:
        raise fail(("cores",), "devices share a core; write oversubscribe = true to allow it")
    return tuple(sets)


def _dealt(flat: tuple[int, ...], section: NodeSection, fail: Fail) -> list[tuple[int, ...]]:
    devices = section.devices or len(flat)
    if devices > len(flat):
        if not section.oversubscribe:
            raise fail(
                ("devices",),
                f"{devices} devices on {len(flat)} cores; write oversubscribe = true to allow it",
            )
        return [(flat[index % len(flat)],) for index in range(devices)]
    if len(flat) % devices:
        raise fail(("cores",), f"{len(flat)} cores cannot be shared evenly by {devices} devices")
    share = len(flat) // devices
    return [flat[index * share : (index + 1) * share] for index in range(devices)]


def _check_names(pools: list[NodePool], fail: Fail) -> None:
    owner: dict[str, str] = {}
    for pool in pools:
        for node in pool.nodes:
            if node.id in owner:
                raise fail(
                    ("pools", pool.name),
                    f"node {node.id!r} is in pool {owner[node.id]!r} already; a node is named once",
                )
            owner[node.id] = pool.name


def _links(file: ClusterFile, fail: Fail) -> Iterator[Link]:
    for index, link in enumerate(file.links):
        for key, name in (("from", link.source), ("to", link.target)):
            if name not in file.pools:
                meant = nearest(name, file.pools)
                hint = f" (did you mean {meant}?)" if meant else ""
                raise fail(("links", index, key), f"no pool {name!r} in this file{hint}")
        if link.source == link.target:
            raise fail(("links", index), f"the link goes from {link.source!r} to itself")
        yield Link(source=PoolName(link.source), target=PoolName(link.target), rate_bps=link.rate)
