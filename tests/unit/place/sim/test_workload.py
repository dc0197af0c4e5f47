"""Jobs of a replay: the trace's times, Table 6's phases, what a row brings itself."""

from __future__ import annotations

import io

import pytest

from rmux.errors import InfeasibleError, UserError
from rmux.place.sim.trace import read
from rmux.place.sim.workload import TABLE_6, Drawing, Mix, Workload
from rmux.place.sim.world import World


def trace(rows=400, head="job,arrival_s,duration_s,num_gpu", row="{n},{n},{d},4"):
    lines = [head, *(row.format(n=n, d=1000 + n) for n in range(rows))]
    return read(io.BytesIO("\n".join(lines).encode()), name="t")


@pytest.mark.parametrize("mix", list(Mix))
def test_phase_times_are_of_the_kind_drawn_and_every_kind_of_the_mix_is_drawn(mix):
    jobs = list(Workload(trace(), Drawing(mix=mix, seed=3)))
    seen = set()
    for job in jobs:
        kind, size = job.kind.split("/")
        seen.add((kind, size))
        (least_r, most_r), (least_t, most_t) = TABLE_6[Mix(kind), size]
        assert least_r <= job.profile.rollout.worst_s <= most_r
        assert least_t <= job.profile.train.worst_s <= most_t
        assert 1 <= job.spec.slo <= 2
        assert job.solo_s == job.profile.rollout.worst_s + job.profile.train.worst_s
    wanted = {(str(k), size) for k, size in TABLE_6 if mix in (Mix.MIXED, k)}
    assert seen == wanted
    assert len({job.profile.rollout.worst_s for job in jobs}) == len(jobs)


def test_the_same_seed_draws_the_same_jobs_and_another_draws_others():
    first, again, other = (list(Workload(trace(), Drawing(seed=s))) for s in (5, 5, 6))
    assert first == again
    assert all(a.solo_s != b.solo_s for a, b in zip(first, other, strict=True))


def test_a_job_is_the_same_however_it_is_asked_for():
    jobs = Workload(trace(20), Drawing())
    assert jobs[3:5] == [jobs[3], jobs[4]] == list(jobs)[3:5]
    assert jobs[-1] == list(jobs)[-1]
    with pytest.raises(IndexError):
        jobs[20]


def test_a_row_keeps_the_phases_and_the_slo_that_it_brings():
    head = "job,arrival_s,duration_s,slo,rollout_s,train_s,sync_s,tenant,priority,iterations"
    job = Workload(trace(1, head, "a,0,600,1.25,40,20,3,blue,7,9"), Drawing())[0]
    assert (job.profile.rollout.worst_s, job.profile.train.worst_s, job.profile.sync_s) == (
        *(40, 20),
        3,
    )
    assert (job.spec.slo, job.spec.tenant, job.spec.priority) == (1.25, "blue", 7)
    assert (job.spec.iterations, job.kind) == (9, "trace")


def test_iterations_are_those_that_fit_the_duration_where_the_row_has_none():
    head = "job,arrival_s,duration_s,rollout_s,train_s"
    assert Workload(trace(1, head, "a,0,600,40,20"), Drawing())[0].spec.iterations == 10


def test_a_job_takes_one_node_of_each_pool_unless_the_trace_counts():
    rows = trace(1, row="a,0,10,17")
    assert Workload(rows, Drawing())[0].spec.rollout.devices == 1
    spec = Workload(rows, Drawing(gpus_of_trace=True))[0].spec
    assert (spec.rollout.devices, spec.train.devices) == (3, 3)


def test_memory_is_held_only_when_it_is_looked_at():
    plain, held = (Workload(trace(50), Drawing(with_memory=m)) for m in (False, True))
    assert {job.profile.rollout_resident_bytes for job in plain} == {0}
    sizes = {"S": (275.7, 240.0), "M": (445.4, 456.1), "L": (490.3, 520.4)}
    for job in held:
        rollout_gb, train_gb = sizes[job.kind[-1]]
        assert job.profile.rollout_resident_bytes == pytest.approx(rollout_gb * 1e9)
        assert job.profile.train_resident_bytes == pytest.approx(train_gb * 1e9)


@pytest.mark.parametrize("slo", [(0.5, 2.0), (2.0, 1.0), (1.0, float("inf"))])
def test_slos_below_one_or_out_of_order_are_refused(slo):
    with pytest.raises(UserError, match="SLOs from"):
        Drawing(slo=slo)


def test_a_node_costs_eight_gpus_and_an_elastic_pool_may_grow():
    world = World()
    job = Workload(trace(1), Drawing())[0]
    assert world.solo_usd_per_h(job) == pytest.approx(57.04)
    assert world.is_elastic
    assert [pool.max_nodes for pool in world.cluster.pools] == [1_000_000] * 2
    fixed = World(rollout_nodes=3, train_nodes=2)
    assert [(len(pool.nodes), pool.max_nodes) for pool in fixed.cluster.pools] == [(3, 0), (2, 0)]


def test_a_job_larger_than_a_pool_or_a_node_is_named():
    big = Workload(trace(1, row="a,0,10,32"), Drawing(gpus_of_trace=True, with_memory=True))
    with pytest.raises(InfeasibleError, match="job a needs 4 train nodes; the pool has 3"):
        World(rollout_nodes=9, train_nodes=3).check_fits(big)
    with pytest.raises(InfeasibleError, match=r"job a keeps .* in host memory; a node has 100 GiB"):
        World(host_memory_bytes=100 * 2**30).check_fits(big)
    World().check_fits(big)
