"""Profiles on the store: the one that is known, else measured if there is a probe, else estimated.

A profile belongs to what changes phase times (the spec hash) and to the hardware of both pools.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime

from rmux.cluster import Cluster, NodePool, PoolKind
from rmux.errors import NotFoundError
from rmux.estimate import JobProfile, ProfileSource
from rmux.ids import IdSource, ProfileId
from rmux.job import Engine, JobSpec
from rmux.profile.analytic import analytic, emulated
from rmux.profile.measure import OnProgress, Probe, Samples, fit
from rmux.spec import spec_hash
from rmux.store import pools as stored_pools
from rmux.store import profiles
from rmux.store.engine import Store

DEFAULT_ITERATIONS = 5


def profile_job(
    store: Store,
    spec: JobSpec,
    cluster: Cluster | None = None,
    *,
    ids: IdSource,
    probe: Probe | None = None,
    refresh: bool = False,
    iterations: int = DEFAULT_ITERATIONS,
    on_progress: OnProgress | None = None,
    save: bool = True,
) -> JobProfile:
    """The profile of the job on the first rollout and the first train pool; kept unless not `save`.

    A measured one wins over an estimate; with a probe an estimate is not good enough, and with
    `refresh` neither is what was measured before. NotFoundError when a kind of pool is missing,
    SpecError or UserError when nothing can be estimated, and what the probe raises.
    """
    if cluster is None:
        with store.read() as conn:
            cluster = stored_pools.load(conn)
    rollout_pool, train_pool = pair_of(cluster)
    key = spec_hash(spec)
    if not refresh:
        with store.read() as conn:
            known = profiles.find(
                conn,
                spec_hash=key,
                rollout_hardware=rollout_pool.hardware,
                train_hardware=train_pool.hardware,
            )
        if known is not None and (probe is None or known.source is ProfileSource.MEASURED):
            return known
    make = _Maker(
        spec=spec,
        cluster=cluster,
        rollout_pool=rollout_pool,
        train_pool=train_pool,
        profile_id=ProfileId(ids("p")),
        spec_hash=key,
        created_at=datetime.now(UTC),
    )
    if probe is not None:
        samples = probe.run(spec, cluster=cluster, iterations=iterations, on_progress=on_progress)
        made = make.measured(samples)
    else:
        made = make.estimated()
    if save:
        with store.write() as conn:
            profiles.save(conn, made)
    return made


@dataclass(frozen=True, slots=True, kw_only=True)
class _Maker:
    """What every new profile of one request has in common."""

    spec: JobSpec
    cluster: Cluster
    rollout_pool: NodePool
    train_pool: NodePool
    profile_id: ProfileId
    spec_hash: str
    created_at: datetime

    def measured(self, samples: Samples) -> JobProfile:
        return fit(
            samples,
            self.spec,
            profile_id=self.profile_id,
            spec_hash=self.spec_hash,
            rollout_hardware=self.rollout_pool.hardware,
            train_hardware=self.train_pool.hardware,
            created_at=self.created_at,
        )

    def estimated(self) -> JobProfile:
        make = emulated if self.spec.engine is Engine.EMULATED else analytic
        return make(
            self.spec,
            cluster=self.cluster,
            rollout_pool=self.rollout_pool,
            train_pool=self.train_pool,
            profile_id=self.profile_id,
            spec_hash=self.spec_hash,
            created_at=self.created_at,
        )


def pair_of(cluster: Cluster) -> tuple[NodePool, NodePool]:
    """The rollout and the train pool that jobs are profiled for. NotFoundError without both."""
    found = []
    for kind in (PoolKind.ROLLOUT, PoolKind.TRAIN):
        pools = cluster.of_kind(kind)
        if not pools:
            raise NotFoundError(
                f"there is no {kind} pool", hint="rmux pool add -f cluster.toml", code="pool.none"
            )
        found.append(pools[0])
    return found[0], found[1]
