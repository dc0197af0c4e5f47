"""JSON documents of replays."""

from __future__ import annotations

from typing import Literal

from rmux.cli.documents import Document, Part, Record, named


class SpreadPart(Part):
    mean: float
    p50: float
    p95: float


class FairnessPart(Part):
    """Completion time over the time the job takes alone: the largest, and Jain's index."""

    max: float
    jain: float


class RangePart(Part):
    """Over seeds."""

    mean: float
    min: float
    max: float


class PerPoolPart(Part):
    rollout: float
    train: float


class PeakPart(Part):
    rollout: int
    train: int


class PoolSizesPart(Part):
    """Nodes of 8 GPUs; null grows as placements need."""

    rollout: int | None
    train: int | None


class SettingsPart(Part):
    """What the replay depends on beside its policy and seed."""

    workload: str
    slo_low: float
    slo_high: float
    durations: str
    """'hold': a job keeps its place for the trace's duration; 'work': sharing stretches it."""
    gpus: str
    pools: PoolSizesPart
    max_members: int
    margin: float
    payback_s: float
    rollout_usd_per_gpu_h: float
    train_usd_per_gpu_h: float
    host_memory_bytes: int | None
    """Null where memory is not looked at."""
    source: str
    window: str


class PhasesPart(Part):
    """Iterations simulated phase by phase. Late: longer than SLO x worst-case solo time, or, for
    the relative one, than SLO x what the phases of that iteration take alone."""

    dispatch: str
    iterations: int
    failures: int
    within_slo: float
    """Share of iterations."""
    within_slo_relative: float
    slowest: float
    """Longest iteration ÷ worst-case solo time."""
    measured_to_planned: float


class SimDocument(Document):
    """One replay of a trace under one policy."""

    schema_: Literal["rmux.sim/v1"] = named("rmux.sim/v1")
    trace: str
    policy: str
    seed: int
    settings: SettingsPart
    jobs: int
    cost_usd_per_h: float
    """Mean from the first arrival to the last departure."""
    cost_usd: float
    opt_usd_per_h: float | None
    """The cheapest groups of the same jobs, re-packed at every event for nothing; null where it was
    not asked for or not found in time."""
    opt_proven: bool | None
    lp_bound_usd_per_h: float | None
    """No packing is cheaper than this."""
    slo_attainment: float
    """The absolute one."""
    slo_attainment_absolute: float
    slo_attainment_relative: float
    moves: int
    move_usd: float
    lost_s: float
    jct_s: SpreadPart
    wait_s: SpreadPart
    finish_time_fairness: FairnessPart
    cost_by_tenant: dict[str, float]
    """USD; adds up to `cost_usd`."""
    peak_gpus: PeakPart
    bubbles: PerPoolPart
    """Share of the GPU time held in which no phase runs."""
    placements: dict[str, int]
    nodes_per_job: dict[str, int]
    """Jobs by 'rollout+train' nodes."""
    span_s: float
    elapsed_s: float
    """What the replay took to compute, without the bounds."""
    bounds_elapsed_s: float | None
    phases: PhasesPart | None
    """Null under --mode placement."""


class SimPoint(Record):
    """One line of the time line: what holds from `at_s` on."""

    schema_: Literal["rmux.sim_point/v1"] = named("rmux.sim_point/v1")
    at_s: float
    usd_per_h: float
    rollout_gpus: int
    train_gpus: int
    running: int
    waiting: int


class ComparedPolicy(Record):
    """One policy over several seeds."""

    schema_: Literal["rmux.sim_compared/v1"] = named("rmux.sim_compared/v1")
    policy: str
    cost_usd_per_h: RangePart
    ratio_opt: RangePart | None
    """Cost ÷ the best packing at every event; null where that is not known for every seed."""
    ratio_lp_bound: RangePart | None
    slo_attainment: RangePart
    slo_attainment_relative: RangePart
    moves: RangePart
    jct_mean_s: RangePart
    wait_mean_s: RangePart
    peak_gpus: PeakPart
    """The largest of all seeds."""
    bubbles: PerPoolPart
    """Means over seeds."""
    elapsed_s: RangePart


class SimCompare(Document):
    """The same jobs under several policies."""

    schema_: Literal["rmux.sim_compare/v1"] = named("rmux.sim_compare/v1")
    trace: str
    seeds: tuple[int, ...]
    settings: SettingsPart
    jobs: int
    opt_usd_per_h: RangePart | None
    lp_bound_usd_per_h: RangePart | None
    items: tuple[ComparedPolicy, ...]


class SimPolicy(Record):
    """One policy that a replay can run."""

    schema_: Literal["rmux.sim_policy/v1"] = named("rmux.sim_policy/v1")
    name: str
    summary: str


class SimPolicyList(Document):
    """Every policy."""

    schema_: Literal["rmux.sim_policy_list/v1"] = named("rmux.sim_policy_list/v1")
    items: tuple[SimPolicy, ...]
