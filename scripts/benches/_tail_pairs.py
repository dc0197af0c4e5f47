"""Two jobs on one set of rollout devices for the tail bench: the pairs, and what is foreseen."""

from __future__ import annotations

import csv
import random
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cache
from pathlib import Path

from rmux.cluster import Cluster, DeviceId, Node, NodePool, PoolKind
from rmux.estimate import JobProfile, PhaseEstimate, ProfileSource
from rmux.group import CoExecGroup, Member, Placement
from rmux.ids import GroupId, JobId, NodeId, PoolName, ProfileId
from rmux.job import EmulatedSpec, Engine, JobSpec, Phase, RolloutSpec
from rmux.place.sim.durations import Fixed, HeavyTailed, PerJob
from rmux.place.sim.engine import Options, run
from rmux.place.sim.tails import Migration

HOST = "bench"
GROUP = GroupId("g-tail")
LENGTHS = Path("tests/data/lengths/skythought.csv")
LIMITS = {"math-7b-math500": 5407, "27b-math500": 4096}
"""Tokens; the others ran to 32 k."""
_FULL_LIMIT = 32_768
DEVICES = 4
_SEQS = 16
"""Responses per device, all at once."""
MAX_TOKENS = 1000
"""To which the real lengths are scaled."""
STEP_S, PER_SEQ_S = 0.0017, 0.00005
"""16 together take half as long again as one alone: what reading their caches comes to."""
ROLLOUT_S = MAX_TOKENS * (STEP_S + _SEQS * PER_SEQ_S)
TRAIN_S, SYNC_S = 0.5, 0.02
_MOVE_S = 0.05
"""Of a move in the simulation: what the live one takes to stop and to continue."""


@dataclass(frozen=True, slots=True)
class Pair:
    name: str
    sets: tuple[str, str]


PAIRS = tuple(
    Pair(f"{name} x 2", (name, name))
    for name in (
        "14b-math500",
        "32b-short-cot-aime24",
        "math-7b-math500",
        "32b-long-cot-aime24",
        "27b-math500",
    )
)
QUICK = ("32b-short-cot-aime24 x 2", "math-7b-math500 x 2")


@cache
def scaled(name: str) -> tuple[int, ...]:
    """The lengths of a set, its limit at `MAX_TOKENS`."""
    limit = LIMITS.get(name, _FULL_LIMIT)
    with LENGTHS.open(newline="") as file:
        found = [int(row["approx_tokens"]) for row in csv.DictReader(file) if row["set"] == name]
    return tuple(max(1, round(MAX_TOKENS * min(length, limit) / limit)) for length in found)


def job_id(place: int) -> JobId:
    return JobId(f"j-{'ab'[place]}")


def spec_of(place: int, lengths: Path, *, iterations: int, seed: int) -> JobSpec:
    return JobSpec(
        name="ab"[place],
        engine=Engine.EMULATED,
        iterations=iterations,
        seed=2 * seed + place,
        slo=3.0,
        restart_limit=0,
        rollout=RolloutSpec(
            devices=DEVICES,
            prompts=DEVICES * _SEQS,
            samples_per_prompt=1,
            max_tokens=MAX_TOKENS,
            max_num_seqs=_SEQS,
        ),
        emulated=EmulatedSpec(
            init_s=0.0,
            train_s=TRAIN_S,
            sync_s=SYNC_S,
            lengths=str(lengths.resolve()),
            step_s=STEP_S,
            per_seq_s=PER_SEQ_S,
        ),
    )


def group_of(pair: Pair) -> CoExecGroup:
    placement = Placement(
        rollout=tuple(DeviceId(NodeId("r0"), index) for index in range(DEVICES)),
        train=(DeviceId(NodeId("t0"), 0),),
    )
    profile = JobProfile(
        id=ProfileId("p-tail"),
        spec_hash="x3:tail",
        source=ProfileSource.ANALYTIC,
        rollout_hardware="cpu",
        train_hardware="cpu",
        rollout=PhaseEstimate(worst_s=ROLLOUT_S, expected_s=ROLLOUT_S),
        train=PhaseEstimate(worst_s=TRAIN_S, expected_s=TRAIN_S),
        sync_s=SYNC_S,
        sync_bytes=0,
        rollout_resident_bytes=0,
        train_resident_bytes=0,
        created_at=datetime.now(UTC),
    )
    members = tuple(
        Member(
            job_id=job_id(place), name="ab"[place], slo=3.0, profile=profile, placement=placement
        )
        for place in range(len(pair.sets))
    )
    return CoExecGroup(id=GROUP, members=members, nodes=(NodeId("r0"), NodeId("t0")))


def cluster() -> Cluster:
    def pool(name: str, kind: PoolKind, node: str, devices: int) -> NodePool:
        one = Node(
            id=NodeId(node),
            pool=PoolName(name),
            host=HOST,
            device_kind="cpu",
            num_devices=devices,
            host_memory_bytes=2**34,
        )
        return NodePool(
            name=PoolName(name), kind=kind, hardware="cpu", usd_per_device_h=1.0, nodes=(one,)
        )

    return Cluster(
        pools=(
            pool("roll", PoolKind.ROLLOUT, "r0", DEVICES),
            pool("train", PoolKind.TRAIN, "t0", 1),
        )
    )


@dataclass(frozen=True, slots=True)
class _RolloutsOf:
    """Rollouts by their lengths; a train takes what it takes."""

    batch: HeavyTailed

    def of(self, job: Member, phase: Phase, iteration: int, rng: random.Random) -> float:
        source = self.batch if phase is Phase.ROLLOUT else self.batch.base
        return source.of(job, phase, iteration, rng)


def simulated_rates(
    pair: Pair, triggers: Mapping[str, float | None], *, iterations: int, seed: int
) -> dict[str, float]:
    """Iterations per second of both jobs, by trigger; 'off' is without moves."""
    group, rates = group_of(pair), {}
    sources = {
        job_id(place): HeavyTailed(
            Fixed(),
            scaled(name),
            MAX_TOKENS,
            DEVICES * _SEQS,
            2 * seed + place,
            _SEQS * PER_SEQ_S / (STEP_S + _SEQS * PER_SEQ_S),
        )
        for place, name in enumerate(pair.sets)
    }
    durations = PerJob(Fixed(), {job: _RolloutsOf(batch) for job, batch in sources.items()})
    for name in ("off", *triggers):
        moving = None
        if name != "off":
            moving = Migration(batches=sources, trigger=triggers[name], move_s=_MOVE_S)
        options = Options(
            iterations=iterations, leave=False, durations=durations, seed=seed, migration=moving
        )
        found = run([group], options)
        rates[name] = sum(1 / times.iteration_s(skip=2) for times in found.jobs.values())
    return rates
