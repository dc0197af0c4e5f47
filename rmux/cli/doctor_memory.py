"""What `rmux doctor` finds about host memory, and about who can read what jobs keep in it."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Literal, NamedTuple

from rmux import units
from rmux.errors import RmuxError

if TYPE_CHECKING:
    from rmux.cli.options import Session
    from rmux.cluster import Cluster, Node

Status = Literal["ok", "warn", "fail", "skip"]

_SHM = Path("/dev/shm")
_SHM_BYTES = 2**30
_WEIGHT_VERSIONS = 2
"""In a host weight cache during a sync."""


class Seen(NamedTuple):
    status: Status
    message: str
    fix: str | None = None


def limits(found: Session) -> Seen:
    """What the pools declare of this host against what it and its cgroup have."""
    from rmux.run import host_memory

    host = host_memory.read_host()
    facts = f"host {units.format_bytes(host.total_bytes)}"
    has_bytes = host.total_bytes
    if host.cgroup_limit_bytes is None:
        facts += ", no cgroup limit"
    else:
        has_bytes = min(has_bytes, host.cgroup_limit_bytes)
        facts += f", cgroup limit {units.format_bytes(host.cgroup_limit_bytes)}"
    facts += f", {units.format_bytes(host.available_bytes)} available"
    nodes = _nodes_here(found)
    declared_bytes = sum(node.host_memory_bytes for node in nodes)
    if not nodes:
        return Seen("ok", facts)
    facts += f"; pools declare {units.format_bytes(declared_bytes)} on {len(nodes)} nodes here"
    if declared_bytes > has_bytes:
        return Seen("warn", f"{facts}: more than there is", "lower host_memory in the pools")
    return Seen("ok", facts)


def shared_memory(found: Session) -> Seen:
    """Room in /dev/shm, and whether the weight caches of the jobs placed here have enough."""
    if not _SHM.is_dir():
        return Seen("fail", f"no {_SHM}", f"mount a tmpfs on {_SHM}")
    usage = shutil.disk_usage(_SHM)
    facts = f"{units.format_bytes(usage.free)} free of {units.format_bytes(usage.total)} in {_SHM}"
    needed_bytes = _weights_bytes(found)
    if needed_bytes:
        facts += f"; weight caches of the jobs placed here take {units.format_bytes(needed_bytes)}"
    if usage.total < needed_bytes or usage.free < _SHM_BYTES:
        size = max(8, -(-2 * needed_bytes // 2**30))
        return Seen("warn", facts, f"mount -o remount,size={size}G {_SHM}")
    return Seen("ok", facts)


def isolation(found: Session) -> Seen:
    """Who can read what a job keeps: its files, its shared memory, its processes."""
    del found
    user = f"user {os.getuid()}"
    facts = (
        f"files and shared memory of jobs are closed to others than {user}; jobs of one user run "
        "under one uid and can read each other's, and so can any process on loopback reach Ray's "
        "and Gloo's ports, which ask for no secret"
    )
    if os.getuid() == 0:
        return Seen("warn", f"jobs run as root: {facts}", "run rmux as a user of its own")
    return Seen("ok", facts)


def oom(found: Session) -> Seen:
    """Whether a job can be offered to the kernel's OOM killer before rmux's own processes."""
    del found
    path = Path("/proc/self/oom_score_adj")
    try:
        score = int(path.read_text())
    except (OSError, ValueError):
        return Seen("warn", f"{path} cannot be read: out of memory, the kernel picks anybody")
    if score >= 1000:
        return Seen("warn", f"this shell's score is {score}: rmux goes as early as its jobs")
    return Seen("ok", f"jobs score {min(1000, score + 500)}, rmux {score}")


def device_memory(found: Session) -> Seen:
    """Where what a job leaves in device memory is not overwritten before the next one gets it."""
    kinds = sorted({node.device_kind for node in _nodes_here(found)} - {"cpu"})
    if not kinds:
        return Seen("ok", "no device of this host has memory of its own")
    return Seen(
        "warn",
        f"{', '.join(kinds)}: the driver zeroes memory given to another process; no engine "
        "overwrites what it frees, so a process of the same user may see it until then",
    )


def _nodes_here(found: Session) -> list[Node]:
    host, cluster = found.settings.host, _cluster(found)
    if cluster is None:
        return []
    return [node for pool in cluster.pools for node in pool.nodes if node.host == host]


def _cluster(found: Session) -> Cluster | None:
    from rmux.cli.wiring import open_store
    from rmux.store import pools

    try:
        with open_store(found) as store, store.read() as conn:
            return pools.load(conn)
    except RmuxError:
        return None


def _weights_bytes(found: Session) -> int:
    """Both versions of the weights of every job, for each of its rollout nodes on this host."""
    from rmux.cli.wiring import open_store
    from rmux.store import groups

    here = {node.id for node in _nodes_here(found)}
    if not here:
        return 0
    try:
        with open_store(found) as store, store.read() as conn:
            members = [member for group in groups.ls(conn) for member in group.members]
    except RmuxError:
        return 0
    return sum(
        _WEIGHT_VERSIONS * member.profile.sync_bytes
        for member in members
        for node in member.placement.rollout_nodes
        if node in here
    )
