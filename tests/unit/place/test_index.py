"""The index decides what `admit` and the plain scans decide, after whatever changes."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import replace

import pytest

from rmux.cluster import Cluster, Link, Node, NodePool, Policy, PoolKind
from rmux.errors import NotFoundError
from rmux.estimate import JobProfile, PhaseEstimate
from rmux.group import ClusterState
from rmux.ids import JobId, NodeId, PoolName
from rmux.job import JobSpec, RolloutSpec, TrainSpec
from rmux.place import index as index_module
from rmux.place import index_columns
from rmux.place.admit import admit
from rmux.place.candidates import Kind
from rmux.place.decision import Decision
from rmux.place.index import Index
from rmux.place.settle import applied
from tests.support import plain_scan
from tests.support.plain_scan import Choice


def random_cluster(rng: random.Random, *, link_bps: float | None = None) -> Cluster:
    """One or two rollout pools, one or two train pools, mixed node sizes, some drained."""
    pools = []
    for kind, most in ((PoolKind.ROLLOUT, 5), (PoolKind.TRAIN, 4)):
        for number in range(rng.choice((1, 1, 2))):
            name = f"{kind}{number}"
            size = rng.choice((1, 2, 4))
            nodes = tuple(
                Node(
                    id=NodeId(f"{name}-n{index}"),
                    pool=PoolName(name),
                    host="h",
                    device_kind="cpu",
                    num_devices=size if rng.random() < 0.8 else rng.choice((1, 2, 4)),
                    host_memory_bytes=rng.choice((300, 500, 1000)),
                    drained="ecc" if rng.random() < 0.1 else "",
                )
                for index in range(rng.randint(1, most))
            )
            pools.append(
                NodePool(
                    name=PoolName(name),
                    kind=kind,
                    hardware=rng.choice(("cpu", "cpu", "big")),
                    usd_per_device_h=rng.choice((0.0, 1.0, 1.85, 5.28)),
                    nodes=nodes,
                    max_nodes=rng.choice((0, 0, len(nodes) + 3)),
                )
            )
    links = ()
    if link_bps is not None:
        links = tuple(
            Link(source=train.name, target=rollout.name, rate_bps=link_bps)
            for train in pools
            if train.kind is PoolKind.TRAIN
            for rollout in pools
            if rollout.kind is PoolKind.ROLLOUT
        )
    policy = Policy(max_members=rng.choice((0, 0, 0, 2)))
    return Cluster(pools=tuple(pools), links=links, policy=policy)


def random_job(lab, rng: random.Random, number: int, *, plain: bool) -> tuple[JobSpec, JobProfile]:
    spec = JobSpec(
        name=f"n{number}",
        slo=rng.choice((1.0, 1.2, 1.5, 2.0, 3.0)),
        rollout=RolloutSpec(devices=rng.choice((1, 1, 2, 3, 4))),
        train=TrainSpec(devices=rng.choice((1, 2)), micro_batch=8, mini_batch=rng.choice((8, 16))),
        max_repeats=1 if plain else rng.choice((1, 1, 2)),
        max_staleness=0 if plain else rng.choice((0, 0, 1)),
    )
    rollout_s, train_s = (float(rng.choice((5, 10, 20, 25, 40, 60))) for _ in range(2))
    profile = lab.profile(
        rollout_s,
        train_s,
        rollout=PhaseEstimate(worst_s=rollout_s, expected_s=rollout_s / 2, switch_s=1.0),
        sync_s=float(rng.choice((0, 0, 5, 30))),
        sync_bytes=rng.choice((0, 100, 400)),
        rollout_resident_bytes=rng.choice((50, 100, 200)),
        train_resident_bytes=rng.choice((50, 100, 200)),
        switch_peak_bytes=rng.choice((0, 0, 20, 90)),
        rollout_hardware=rng.choice(("cpu", "cpu", "cpu", "big")),
    )
    return spec, profile


def told(decision: Decision) -> tuple[object, ...] | None:
    """What was chosen, with all that is applied of it."""
    if decision.assignment is None or decision.best is None:
        return None
    return (decision.assignment, round(decision.best.marginal_usd_per_h, 6), decision.best.period)


def agrees(decision: Decision, choice: Choice | None) -> bool:
    if choice is None or decision.assignment is None or decision.best is None:
        return choice is None and decision.assignment is None
    assignment = decision.assignment
    return (
        assignment.group_id == choice.group_id
        and assignment.placement == choice.placement
        and abs(decision.best.marginal_usd_per_h - choice.usd_per_h) < 1e-6
    )


def a_history(lab, seed: int, *, plain: bool, link_bps: float | None = None):
    """Arrivals and departures on a random cluster: (index, job, how it is asked) before each."""
    rng = random.Random(seed)
    index = Index.of(
        ClusterState(revision=3, cluster=random_cluster(rng, link_bps=link_bps), groups=())
    )
    here: list[JobId] = []
    for number in range(14):
        while here and rng.random() < 0.25:
            index.remove(here.pop(rng.randrange(len(here))))
        spec, profile = random_job(lab, rng, number, plain=plain)
        job_id = JobId(f"j-{number}")
        rule, margin = rng.choice((("interval", 0.0), ("interval", 0.1), ("paper", 0.0)))
        asked = {"spec": spec, "profile": profile, "job_id": job_id}
        yield index, asked, rule, margin
        decision = index.decide(**asked, rule=rule, margin=margin)
        if decision.assignment is not None:
            index.apply(decision.assignment, spec=spec, profile=profile)
            here.append(job_id)


@pytest.mark.parametrize("many", [0, index_module.MANY], ids=["columns", "row by row"])
@pytest.mark.parametrize("block", range(3))
def test_index_admit_and_plain_scan_choose_the_same_place(lab, block, many, monkeypatch):
    monkeypatch.setattr(index_module, "MANY", many)
    compared = 0
    for seed in range(25 * block, 25 * block + 25):
        for index, asked, rule, margin in a_history(lab, seed, plain=seed % 2 == 0):
            state = index.state()
            decision = index.decide(**asked, rule=rule, margin=margin)
            full = admit(state, **asked, rule=rule, margin=margin)
            where = f"seed {seed}, {asked['job_id']}, {rule}, margin {margin}"
            assert told(decision) == told(full), where
            assert decision.never_fits == full.never_fits, where
            choice = (
                plain_scan.paper(state, **asked)
                if rule == "paper"
                else plain_scan.interval(state, **asked, margin=margin)
            )
            assert agrees(decision, choice), (where, choice)
            compared += decision.admitted
    assert compared > 50


def crowded(lab, rng: random.Random) -> Index:
    """Groups of unequal nodes and sets that overlap in part, some short of memory."""
    pools = [
        NodePool(
            name=PoolName(str(kind)),
            kind=kind,
            hardware="cpu",
            usd_per_device_h=usd,
            nodes=tuple(
                Node(
                    id=NodeId(f"{kind[0]}{index}"),
                    pool=PoolName(str(kind)),
                    host="h",
                    device_kind="cpu",
                    num_devices=devices,
                    host_memory_bytes=rng.choice((220, 300, 420, 900)),
                )
                for index in range(40)
            ),
        )
        for kind, usd, devices in ((PoolKind.ROLLOUT, 1.0, 2), (PoolKind.TRAIN, 4.0, 1))
    ]
    index = Index.of(ClusterState(revision=1, cluster=Cluster(pools=tuple(pools)), groups=()))
    for number in range(26):
        spec, profile = random_job(lab, rng, number, plain=rng.random() < 0.8)
        profile = replace(profile, rollout_hardware="cpu", rollout_resident_bytes=100)
        spec = replace(spec, slo=rng.choice((1.05, 1.2, 1.5)), train=TrainSpec(devices=1))
        job_id = JobId(f"j-{number}")
        decision = index.decide(spec=spec, profile=profile, job_id=job_id)
        if decision.assignment is not None:
            index.apply(decision.assignment, spec=spec, profile=profile)
    return index


@pytest.mark.parametrize("many", [0, index_module.MANY], ids=["columns", "row by row"])
def test_among_many_groups_the_bounds_miss_nothing_that_is_better(lab, many, monkeypatch):
    monkeypatch.setattr(index_module, "MANY", many)
    monkeypatch.setattr(index_columns, "_FIRST", 1)
    kinds = Counter()
    for seed in range(30):
        rng = random.Random(seed)
        index = crowded(lab, rng)
        state = index.state()
        for number in range(6):
            spec, profile = random_job(lab, rng, number, plain=rng.random() < 0.7)
            spec = replace(spec, slo=rng.choice((1.1, 1.4, 3.0)), train=TrainSpec(devices=1))
            memory = rng.choice((20, 90, 150, 310))
            profile = replace(
                profile, rollout_hardware="cpu", rollout_resident_bytes=memory, sync_s=0.0
            )
            asked = {"spec": spec, "profile": profile, "job_id": JobId("j-new")}
            for rule, scan in (("interval", plain_scan.interval), ("paper", plain_scan.paper)):
                decision = index.decide(**asked, rule=rule)
                where = f"seed {seed}, job {number}, {rule}"
                assert agrees(decision, scan(state, **asked)), where
                assert told(decision) == told(admit(state, **asked, rule=rule)), where
                kinds[decision.best.kind if decision.best else None, rule] += 1
    assert min(kinds[kind, rule] for kind in Kind for rule in ("interval", "paper")) > 5, kinds


@pytest.mark.parametrize("many", [0, index_module.MANY], ids=["columns", "row by row"])
def test_after_any_changes_the_index_equals_one_made_of_its_state(lab, many, monkeypatch):
    monkeypatch.setattr(index_module, "MANY", many)
    for seed in range(40):
        for index, asked, rule, margin in a_history(lab, seed, plain=False, link_bps=200.0):
            again = Index.of(index.state())
            assert again.state() == index.state()
            assert again.usd_per_h() == pytest.approx(index.usd_per_h())
            mine, theirs = (one.decide(**asked, rule=rule, margin=margin) for one in (index, again))
            where = f"seed {seed}, {asked['job_id']}"
            assert mine == theirs, where
            full = admit(index.state(), **asked, rule=rule, margin=margin)
            assert told(mine) == told(full), where


def test_an_assignment_changes_the_index_as_it_changes_the_state(lab):
    for seed in range(20):
        for index, asked, rule, margin in a_history(lab, seed, plain=True):
            assignment = index.decide(**asked, rule=rule, margin=margin).assignment
            if assignment is None or assignment.new_nodes:
                continue
            state = applied(index.state(), assignment, asked["spec"], asked["profile"])
            other = Index.of(index.state())
            other.apply(assignment, spec=asked["spec"], profile=asked["profile"])
            assert [replace(group, rotation_version=1) for group in other.groups()] == [
                replace(group, rotation_version=1) for group in state.groups
            ]


def test_removing_a_job_frees_the_nodes_that_nobody_else_is_on(lab):
    first, second = lab.member("a", 100, 100, ("r0",)), lab.member("b", 50, 50, ("r1",))
    index = Index.of(lab.state(lab.group(first, second)))
    assert index.usd_per_h() == 6.0
    assert index.remove(JobId("j-b")) == ("r1",)
    assert index.usd_per_h() == 5.0
    assert index.group("g-1").nodes == ("r0", "t0")
    assert index.remove(JobId("j-a")) == ("r0", "t0")
    assert index.groups() == ()
    with pytest.raises(NotFoundError, match="job j-a is in no group"):
        index.group_of("j-a")


def test_a_job_that_is_assigned_again_moves(lab):
    groups = (
        lab.group(lab.member("a", 100, 100, ("r0",), ("t0",)), name="g-1"),
        lab.group(lab.member("b", 50, 50, ("r1",), ("t1",)), name="g-2"),
    )
    index = Index.of(lab.state(*groups))
    spec, profile = lab.spec("b"), lab.profile(50, 50)
    index.remove(JobId("j-b"))
    decision = index.decide(spec=spec, profile=profile, job_id=JobId("j-b"))
    index = Index.of(lab.state(*groups))
    index.apply(decision.assignment, spec=spec, profile=profile)
    assert [member.job_id for member in index.group("g-1").members] == ["j-a", "j-b"]
    assert len(index.groups()) == 1
    assert index.usd_per_h() == 5.0
