"""What a few fixed jobs yield for their money: the micro-benchmarks of RollMux, Figure 10.

Throughput of a set of jobs is the sum of solo time / iteration time over them, so a job counts as
much as any other; `weights` say otherwise, such as its tokens per solo second. The phases of
Figure 10 are read off its bars. `overhead` is the fraction by which iterations of a shared group
are longer than planned; Table 4 measured 0.016, 0.051 and 0.098, and none is assumed here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from rmux.cluster import DeviceId
from rmux.ids import JobId, NodeId
from rmux.job import JobSpec, RolloutSpec, TrainSpec
from rmux.place.period import Loop, best_round
from rmux.place.sim.jobs import SimJob
from rmux.place.sim.mixes import best_mix, wish_of
from rmux.place.sim.resources import Bundle, colocated, disaggregated
from rmux.place.sim.workload import profile_of
from rmux.place.sim.world import World


@dataclass(frozen=True, slots=True, kw_only=True)
class Yield:
    """Of a set of jobs, by name."""

    usd_per_h: float
    iteration_s: Mapping[str, float]

    def per_usd(self, solo: Yield, *, weights: Mapping[str, float] | None = None) -> float:
        """Throughput per hourly dollar, relative to that of `solo`."""
        weigh = dict.fromkeys(self.iteration_s, 1.0) if weights is None else weights
        sped = sum(weigh[name] * solo.iteration_s[name] / s for name, s in self.iteration_s.items())
        return sped / sum(weigh.values()) * solo.usd_per_h / self.usd_per_h


@dataclass(frozen=True, slots=True, kw_only=True)
class Seat:
    """Where a job runs in a shared group, and its phase times there, seconds."""

    rollout_s: float
    train_s: float
    rollout: tuple[int, ...]
    """Numbers of rollout nodes; all jobs train on all train nodes of the group."""
    max_repeats: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Benchmark:
    jobs: tuple[SimJob, ...]
    """As each runs alone."""
    seats: Mapping[str, Seat]
    train_nodes: int


def solo(jobs: Sequence[SimJob], world: World) -> Yield:
    """Each on rollout and train nodes of its own."""
    return _apart(jobs, lambda job: disaggregated(job, world))


def colocate(jobs: Sequence[SimJob], world: World) -> Yield:
    """Each on train nodes alone."""
    return _apart(jobs, lambda job: colocated(job, world))


def gavel(jobs: Sequence[SimJob], world: World) -> Yield:
    """Each on the mix of Gavel+, at the mean price and mean throughput of the mix; cold starts of
    its rounds are not in it."""
    usd_per_h, iteration_s = 0.0, {}
    for job in jobs:
        wish = wish_of(job, world)
        mix = list(zip(wish.bundles, best_mix(wish), strict=True))
        usd_per_h += sum(share * bundle.usd_per_h for bundle, share in mix)
        iteration_s[job.spec.name] = 1 / sum(share / one.iteration_s for one, share in mix)
    return Yield(usd_per_h=usd_per_h, iteration_s=iteration_s)


def rmux(
    benchmark: Benchmark,
    world: World,
    *,
    overhead: float = 0.0,
    sync_s: Mapping[str, float] | None = None,
) -> Yield:
    """All in one group, in the best order of turns that keeps every SLO where one does. `sync_s`
    by job, seconds, are waited for by that job alone; none are assumed."""
    syncs_s = sync_s or {}
    caps_s = {
        job.id: job.spec.slo * disaggregated(job, world).iteration_s for job in benchmark.jobs
    }
    train = frozenset(DeviceId(NodeId("t"), index) for index in range(benchmark.train_nodes))
    loops = [
        Loop(
            job_id=JobId(name),
            rollout_s=seat.rollout_s,
            train_s=seat.train_s,
            off_device_s=syncs_s.get(name, 0.0),
            rollout=frozenset(DeviceId(NodeId("r"), node) for node in seat.rollout),
            train=train,
            max_repeats=seat.max_repeats,
        )
        for name, seat in benchmark.seats.items()
    ]
    found = best_round(loops, caps_s=caps_s)
    rollout_nodes = len({node for seat in benchmark.seats.values() for node in seat.rollout})
    return Yield(
        usd_per_h=rollout_nodes * world.rollout_usd_per_node_h
        + benchmark.train_nodes * world.train_usd_per_node_h,
        iteration_s={
            name: found.iteration_s(JobId(name)) * (1 + overhead) for name in benchmark.seats
        },
    )


def _apart(jobs: Sequence[SimJob], bundle_of: Callable[[SimJob], Bundle]) -> Yield:
    bundles = {job.spec.name: bundle_of(job) for job in jobs}
    return Yield(
        usd_per_h=sum(one.usd_per_h for one in bundles.values()),
        iteration_s={name: one.iteration_s for name, one in bundles.items()},
    )


def _job(
    name: str, rollout_s: float, train_s: float, *, nodes: int = 1, slo: float = 2.0
) -> SimJob:
    return SimJob(
        id=JobId(name),
        arrival_s=0.0,
        duration_s=3600.0,
        spec=JobSpec(
            name=name,
            slo=slo,
            rollout=RolloutSpec(devices=nodes),
            train=TrainSpec(devices=nodes),
        ),
        profile=profile_of(rollout_s, train_s),
    )


def _figure_10() -> dict[str, Benchmark]:
    a1, a2 = _job("A1", 135, 104), _job("A2", 135, 104)
    d1, d2, e = _job("D1", 316, 121), _job("D2", 316, 121), _job("E", 757, 125)
    c = _job("C", 267, 361, nodes=2)
    beside = [_job(name, 280, 116) for name in ("D1", "D2")]
    return {
        "temporal": Benchmark(
            jobs=(a1, a2),
            seats={n: Seat(rollout_s=135, train_s=104, rollout=(0,)) for n in ("A1", "A2")},
            train_nodes=1,
        ),
        # E takes 2.02 x as long as D: in strict turns D would miss an SLO of 2.
        "train": Benchmark(
            jobs=(d1, d2, e),
            seats={
                "D1": Seat(rollout_s=316, train_s=121, rollout=(0,), max_repeats=2),
                "D2": Seat(rollout_s=316, train_s=121, rollout=(1,), max_repeats=2),
                "E": Seat(rollout_s=757, train_s=125, rollout=(2,)),
            },
            train_nodes=1,
        ),
        "spatial": Benchmark(
            jobs=(c, *beside),
            seats={
                "C": Seat(rollout_s=267, train_s=361, rollout=(0, 1)),
                "D1": Seat(rollout_s=280, train_s=116, rollout=(0,)),
                "D2": Seat(rollout_s=280, train_s=116, rollout=(1,)),
            },
            train_nodes=2,
        ),
    }


FIGURE_10: Mapping[str, Benchmark] = _figure_10()
"""(a) A twice; (b) D twice and E on 24 H20 and 8 H800; (c) C on 16 + 16 with D twice beside it."""
