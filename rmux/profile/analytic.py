"""A profile without running anything: from the catalogue, or from what an emulated spec states."""

from __future__ import annotations

from datetime import datetime

from rmux.cluster import Cluster, NodePool
from rmux.errors import UserError
from rmux.estimate import JobProfile, PhaseEstimate, ProfileSource
from rmux.ids import ProfileId
from rmux.job import JobSpec
from rmux.profile.footprint import (
    load_shape,
    rollout_resident_bytes,
    train_resident_bytes,
    train_state_bytes,
)
from rmux.profile.hardware import hardware
from rmux.profile.roofline import estimate


def analytic(
    spec: JobSpec,
    *,
    cluster: Cluster,
    rollout_pool: NodePool,
    train_pool: NodePool,
    profile_id: ProfileId,
    spec_hash: str,
    created_at: datetime,
) -> JobProfile:
    """The roofline estimate. SpecError when the model cannot be read, UserError when there is none
    or the hardware is not in the catalogue. Nothing is known of lengths: expected is worst case.
    """
    if not spec.model_path:
        raise UserError(
            f"{spec.name} names no model, so its phases cannot be estimated",
            hint="rmux profile SPEC --measure",
            code="profile.no-model",
        )
    shape = load_shape(spec.model_path)
    rollout, train = hardware(rollout_pool.hardware), hardware(train_pool.hardware)
    link = cluster.link(train_pool.name, rollout_pool.name)
    state_bytes = train_state_bytes(
        shape, train, ranks=1, data_parallel=spec.train.devices, stage=spec.train.zero_stage
    )
    found = estimate(
        spec,
        shape,
        rollout=rollout,
        train=train,
        train_state_bytes=state_bytes,
        link_bps=None if link is None else link.rate_bps,
    )
    return JobProfile(
        id=profile_id,
        spec_hash=spec_hash,
        source=ProfileSource.ANALYTIC,
        rollout_hardware=rollout_pool.hardware,
        train_hardware=train_pool.hardware,
        rollout=_phase(
            found.rollout_s, switch_s=found.rollout_switch_s, cold_s=found.rollout_cold_s
        ),
        train=_phase(found.train_s, switch_s=found.train_switch_s, cold_s=found.train_cold_s),
        sync_s=found.sync_s,
        sync_bytes=found.sync_bytes,
        checkpoint_s=found.checkpoint_s,
        init_s=found.init_s,
        rollout_resident_bytes=rollout_resident_bytes(
            spec, shape, rollout, devices_per_node=_devices_per_node(rollout_pool)
        ),
        train_resident_bytes=train_resident_bytes(
            spec, shape, train, devices_per_node=_devices_per_node(train_pool)
        ),
        switch_peak_bytes=shape.weight_bytes(spec.rollout.dtype),
        created_at=created_at,
    )


def emulated(
    spec: JobSpec,
    *,
    cluster: Cluster,
    rollout_pool: NodePool,
    train_pool: NodePool,
    profile_id: ProfileId,
    spec_hash: str,
    created_at: datetime,
) -> JobProfile:
    """What the spec states of its emulated phases; the worst case includes the jitter."""
    del cluster
    stated = spec.emulated

    def phase(seconds: float) -> PhaseEstimate:
        return PhaseEstimate(
            worst_s=seconds * (1 + stated.jitter),
            expected_s=seconds,
            switch_s=stated.switch_s,
            cold_s=stated.init_s,
        )

    return JobProfile(
        id=profile_id,
        spec_hash=spec_hash,
        source=ProfileSource.ANALYTIC,
        rollout_hardware=rollout_pool.hardware,
        train_hardware=train_pool.hardware,
        rollout=phase(_emulated_rollout_s(spec)),
        train=phase(stated.train_s),
        sync_s=stated.sync_s * (1 + stated.jitter),
        sync_bytes=0,
        init_s=stated.init_s,
        rollout_resident_bytes=stated.resident_bytes,
        train_resident_bytes=stated.resident_bytes or stated.held_bytes + stated.cache_bytes,
        created_at=created_at,
    )


def _emulated_rollout_s(spec: JobSpec) -> float:
    """With lengths the worst case: every response at the limit, as many at once as there are."""
    stated, rollout = spec.emulated, spec.rollout
    if not stated.lengths:
        return stated.rollout_s
    here = -(-rollout.num_samples // rollout.devices)
    together = min(here, rollout.max_num_seqs)
    waves = -(-here // rollout.max_num_seqs)
    return waves * rollout.max_tokens * (stated.step_s + stated.per_seq_s * together)


def _phase(seconds: float, *, switch_s: float, cold_s: float) -> PhaseEstimate:
    return PhaseEstimate(worst_s=seconds, expected_s=seconds, switch_s=switch_s, cold_s=cold_s)


def _devices_per_node(pool: NodePool) -> int:
    return max((node.num_devices for node in pool.nodes), default=1)
