"""Jobs of a phase-level trace divided anew: the cheapest way, in groups that keep every promise."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from rmux.cluster import Cluster, Policy
from rmux.group import ClusterState, Member
from rmux.place.index import Index
from rmux.place.period import CLOSE, period
from rmux.place.sim.regroup import divided
from rmux.place.sim.world import World

WORLD = World()
HARDWARE = {"rollout_hardware": "H20", "train_hardware": "H800"}


def members(lab, count: int, seed: int) -> list[Member]:
    rng = random.Random(seed)
    return [
        lab.member(
            f"m{number}",
            rng.uniform(50, 500),
            rng.uniform(50, 500),
            (f"x{number}",),
            (f"y{number}",),
            slo=rng.uniform(1, 2),
            **HARDWARE,
        )
        for number in range(count)
    ]


def shared(*, max_members: int = 5) -> Cluster:
    return replace(WORLD.cluster, policy=Policy(max_members=max_members))


def admitted(lab, jobs: list[Member]) -> Index:
    index = Index.of(ClusterState(revision=0, cluster=shared(), groups=()))
    for member in jobs:
        spec = lab.spec(member.name, slo=member.slo)
        decision = index.decide(spec=spec, profile=member.profile, job_id=member.job_id)
        index.apply(decision.assignment, spec=spec, profile=member.profile)
    return index


@pytest.mark.parametrize("seed", range(4))
def test_the_division_is_no_dearer_than_admitting_one_by_one_and_keeps_every_promise(lab, seed):
    jobs = members(lab, 14, seed)
    index = divided(shared(), jobs, world=WORLD)
    assert index is not None
    assert index.usd_per_h() <= admitted(lab, jobs).usd_per_h() + 1e-6
    placed = [member for group in index.groups() for member in group.members]
    assert sorted(m.job_id for m in placed) == sorted(m.job_id for m in jobs)
    for group in index.groups():
        planned = period(group.members, order=group.round)
        for member in group.members:
            assert planned.iteration_s(member.job_id) <= member.slo * member.solo_s * CLOSE
    nodes = [node for group in index.groups() for node in group.nodes]
    assert len(nodes) == len(set(nodes))


def test_some_jobs_are_divided_cheaper_than_one_by_one(lab):
    gains = []
    for seed in range(4):
        jobs = members(lab, 14, seed)
        index = divided(shared(), jobs, world=WORLD)
        assert index is not None
        gains.append(admitted(lab, jobs).usd_per_h() - index.usd_per_h())
    assert max(gains) > 1.0


def test_jobs_can_be_admitted_into_the_divided_groups(lab):
    index = divided(shared(), members(lab, 6, 1), world=WORLD)
    assert index is not None
    before = index.usd_per_h()
    spec, profile = lab.spec("late"), lab.profile(10, 10, **HARDWARE)
    decision = index.decide(spec=spec, profile=profile, job_id=lab.member("late", 1, 1).job_id)
    assert decision.assignment is not None
    index.apply(decision.assignment, spec=spec, profile=profile)
    assert index.usd_per_h() >= before


def test_groups_stay_within_their_size(lab):
    index = divided(shared(max_members=1), members(lab, 5, 2), world=WORLD)
    assert index is not None
    assert len(index.groups()) == 5


def test_fixed_pools_too_small_for_the_division_give_none(lab):
    small = World(rollout_nodes=1, train_nodes=1)
    cluster = replace(small.cluster, policy=Policy(max_members=1))
    assert divided(cluster, members(lab, 3, 1), world=small) is None
