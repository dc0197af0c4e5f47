"""What must hold before a group comes up, looked at first: where it does not, nothing is left."""

from __future__ import annotations

import tempfile
from pathlib import Path

from rmux.cluster import Cluster
from rmux.errors import UserError
from rmux.group import CoExecGroup
from rmux.run import valkey
from rmux.run.channel import connect
from rmux.run.installed import check_engines
from rmux.store.engine import Store


def check_ready(
    store: Store, group_id: str, *, host: str, tag: str, run_dir: Path, redis_url: str | None
) -> None:
    """Whether the group can run here.

    NotFoundError without such a group. UserError when it is not on this host or spans hosts without
    a `redis_url`, when the run folder cannot be written or the socket path is too long.
    BackendError without the engines of a member or without a channel server, UnreachableError when
    nothing answers at `redis_url`.
    """
    from rmux.store import groups, jobs, pools

    with store.read() as conn:
        group = groups.get(conn, group_id)
        cluster = pools.load(conn)
        specs = {member.job_id: jobs.get(conn, member.job_id).spec for member in group.members}
    _check_hosts(group, cluster, host=host, redis_url=redis_url)
    for member in group.members:
        check_engines(specs[member.job_id], hardware=member.profile.rollout_hardware)
    check_host(run_dir=run_dir, redis_url=redis_url)
    if redis_url is None:
        valkey.socket_path(tag)


def check_host(*, run_dir: Path, redis_url: str | None) -> None:
    """Whether any group can run here: the part of `check_ready` that is the same for all."""
    _check_writable(run_dir)
    if redis_url is None:
        valkey.binary_path()
    else:
        connect(redis_url, timeout_s=0.0).close()


def _check_hosts(group: CoExecGroup, cluster: Cluster, *, host: str, redis_url: str | None) -> None:
    hosts = {cluster.node(node).host for node in group.nodes}
    named = ", ".join(sorted(hosts))
    if hosts and host not in hosts:
        raise UserError(
            f"group {group.id} has no node on {host}, only on {named}",
            code="group.elsewhere",
            hint="run it there; --host gives this host the name that the pools call it by",
        )
    if redis_url is None and len(hosts) > 1:
        raise UserError(
            f"group {group.id} spans the hosts {named}",
            code="channel.needed",
            hint="configure a redis_url that all of them reach",
        )


def _check_writable(run_dir: Path) -> None:
    try:
        run_dir.mkdir(parents=True, exist_ok=True, mode=0o700)
        # Permissions do not tell of a read-only file system, or of one that is full.
        with tempfile.TemporaryFile(dir=run_dir) as file:
            file.write(b"rmux")
    except OSError as error:
        raise UserError(
            f"the run folder {run_dir} cannot be written: {error.strerror or error}",
            code="run-dir.unusable",
            hint="name another with RMUX_RUN_DIR",
        ) from error
