"""Placement on a real SQLite store."""

from __future__ import annotations

import threading
from dataclasses import replace
from datetime import UTC, datetime

import pytest

from rmux.cluster import Cluster, Node, NodePool, PoolKind
from rmux.errors import ConflictError, InfeasibleError
from rmux.estimate import JobProfile, PhaseEstimate, ProfileSource
from rmux.ids import JobId, NodeId, PoolName, ProfileId, fresh_id, numbered_ids
from rmux.job import Job, JobSpec, JobState, RolloutSpec
from rmux.place import service
from rmux.store import groups, jobs, pools, profiles
from rmux.store.engine import Store

EPOCH = datetime(2026, 1, 1, tzinfo=UTC)


def cluster(rollout: int = 2, train: int = 2) -> Cluster:
    made = []
    for kind, count in ((PoolKind.ROLLOUT, rollout), (PoolKind.TRAIN, train)):
        nodes = tuple(
            Node(
                id=NodeId(f"{kind[0]}{index}"),
                pool=PoolName(str(kind)),
                host="here",
                device_kind="cpu",
                num_devices=1,
                host_memory_bytes=1000,
            )
            for index in range(count)
        )
        made.append(
            NodePool(
                name=PoolName(str(kind)),
                kind=kind,
                hardware="cpu",
                usd_per_device_h=1.0,
                nodes=nodes,
            )
        )
    return Cluster(pools=tuple(made))


def profile(rollout_s: float, train_s: float, *, name: str = "p-1", held: int = 10) -> JobProfile:
    return JobProfile(
        id=ProfileId(name),
        spec_hash="x3:0",
        source=ProfileSource.ANALYTIC,
        rollout_hardware="cpu",
        train_hardware="cpu",
        rollout=PhaseEstimate(worst_s=rollout_s, expected_s=rollout_s),
        train=PhaseEstimate(worst_s=train_s, expected_s=train_s),
        sync_s=0.0,
        sync_bytes=0,
        rollout_resident_bytes=held,
        train_resident_bytes=held,
        created_at=EPOCH,
    )


def job(name: str, *, slo: float = 2.0, spec_hash: str = "x3:0", rollout: int = 1) -> Job:
    return Job(
        id=JobId(f"j-{name}"),
        spec=JobSpec(name=name, slo=slo, rollout=RolloutSpec(devices=rollout)),
        spec_hash=spec_hash,
        state=JobState.PENDING,
        created_at=datetime.now(UTC),
    )


@pytest.fixture
def store(tmp_path):
    opened = Store.create(f"sqlite:///{tmp_path}/rmux.db")
    with opened.write() as conn:
        pools.save(conn, cluster())
        profiles.save(conn, profile(10, 10))
    yield opened
    opened.close()


def stored(store, one: Job) -> Job:
    with store.write() as conn:
        jobs.insert(conn, replace(one, profile_id=ProfileId("p-1")))
        return jobs.get(conn, one.id)


def now(store, name: str) -> Job:
    with store.read() as conn:
        return jobs.get(conn, f"j-{name}")


def test_a_plan_writes_nothing(store):
    with store.read() as conn:
        before = groups.revision(conn)
    decision = service.plan(store, job("a").spec, profile(10, 10))
    assert decision.admitted
    with store.read() as conn:
        assert groups.revision(conn) == before
        assert groups.ls(conn) == []


def test_a_pending_job_is_placed_and_its_group_holds_the_nodes(store):
    stored(store, job("a"))
    decision = service.place_job(store, JobId("j-a"), ids=numbered_ids())
    assert decision.admitted
    placed = now(store, "a")
    assert (placed.state, placed.group_id) == (JobState.PLACED, "g-0001")
    with store.read() as conn:
        assert groups.get(conn, "g-0001").nodes == ("r0", "t0")
    with pytest.raises(ConflictError, match="is placed, not pending"):
        service.place_job(store, JobId("j-a"), ids=numbered_ids())


def test_a_job_that_has_to_wait_keeps_its_reason(store):
    with store.write() as conn:
        pools.save(conn, cluster(1, 1), replace=True)
    stored(store, job("a", slo=1.0))
    stored(store, job("b", slo=1.0))
    with store.write() as conn:
        profiles.save(conn, profile(10, 5))
    service.place_job(store, JobId("j-a"), ids=fresh_id)
    decision = service.place_job(store, JobId("j-b"), ids=fresh_id)
    assert not decision.admitted
    waiting = now(store, "b")
    assert waiting.state is JobState.PENDING
    assert waiting.reason.code == "slo"
    assert "is allowed" in waiting.reason.message


def test_settling_places_jobs_in_one_go_and_later_ones_join_the_new_groups(store):
    for name in ("a", "b", "c"):
        stored(store, job(name, slo=2.0))
    decisions = service.settle_pending(store, ids=numbered_ids())
    assert [one.admitted for one in decisions] == [True, True, True]
    found = {now(store, name).group_id for name in ("a", "b", "c")}
    assert len(found) < 3
    with store.read() as conn:
        assert sum(len(group.members) for group in groups.ls(conn)) == 3


def test_settling_again_with_no_news_leaves_the_store_alone(store):
    with store.write() as conn:
        pools.save(conn, cluster(1, 1), replace=True)
    stored(store, job("wide", rollout=4))
    (first,) = service.settle_pending(store, ids=fresh_id)
    assert first.never_fits
    assert now(store, "wide").reason.code == "capacity"
    with store.read() as conn:
        before = groups.revision(conn)
    service.settle_pending(store, ids=fresh_id)
    with store.read() as conn:
        assert groups.revision(conn) == before


def test_capacity_that_comes_back_serves_the_oldest_pending_job(store):
    with store.write() as conn:
        pools.set_drained(conn, "r0", "ecc")
        pools.set_drained(conn, "r1", "ecc")
    stored(store, job("a"))
    service.settle_pending(store, ids=fresh_id)
    assert now(store, "a").reason.code == "drained"
    with store.write() as conn:
        pools.set_drained(conn, "r1", "")
    service.settle_pending(store, ids=fresh_id)
    assert now(store, "a").state is JobState.PLACED
    assert now(store, "a").reason.code == "none"


def test_submitting_stores_and_places_at_once(store):
    done = service.submit(store, job("a"), profile(10, 10), ids=fresh_id)
    assert done.created
    assert done.job.state is JobState.PLACED
    assert done.decision.admitted


def test_a_job_that_can_never_fit_leaves_no_trace(store):
    with pytest.raises(InfeasibleError, match="needs 5 devices") as caught:
        service.submit(store, job("a", rollout=5), profile(10, 10), ids=fresh_id)
    assert caught.value.details["never_fits"]
    with store.read() as conn:
        assert jobs.ls(conn) == []


def test_submitting_the_same_again_returns_the_first_job(store):
    first = service.submit(store, job("a"), profile(10, 10), ids=fresh_id)
    same_id = service.submit(store, job("a"), profile(10, 10), ids=fresh_id)
    assert (same_id.created, same_id.job.id) == (False, first.job.id)
    renamed = replace(job("a"), id=JobId("j-other"))
    by_name = service.submit(store, renamed, profile(10, 10), ids=fresh_id, by_name=True)
    assert (by_name.created, by_name.job.id) == (False, first.job.id)
    assert service.submit(store, renamed, profile(10, 10), ids=fresh_id).created


def test_the_same_name_with_another_spec_is_a_conflict_that_says_what_differs(store):
    service.submit(store, job("a"), profile(10, 10), ids=fresh_id)
    other = replace(job("a", spec_hash="x3:1", rollout=2), id=JobId("j-other"))
    with pytest.raises(ConflictError, match=r"rollout\.devices: 2 here, 1 there") as caught:
        service.submit(store, other, profile(10, 10), ids=fresh_id, by_name=True)
    assert caught.value.code == "job.exists"


def test_a_name_is_free_again_once_its_job_ended(store):
    service.submit(store, job("a"), profile(10, 10), ids=fresh_id)
    with store.write() as conn:
        jobs.set_state(conn, "j-a", JobState.CANCELLED)
    again = replace(job("a", spec_hash="x3:1"), id=JobId("j-second"))
    assert service.submit(store, again, profile(10, 10), ids=fresh_id, by_name=True).created


def test_many_submitting_at_once_never_share_a_node_between_groups(store):
    with store.write() as conn:
        pools.save(conn, cluster(8, 8))
    errors: list[BaseException] = []

    def run(index: int) -> None:
        try:
            one = job(f"n{index}", slo=1.0)
            service.submit(store, one, profile(10, 5), ids=fresh_id)
        except ConflictError as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=(index,)) for index in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    with store.read() as conn:
        held = [node for group in groups.ls(conn) for node in group.nodes]
        placed = jobs.ls(conn)
    assert len(held) == len(set(held))
    assert len(placed) + len(errors) == 6
    assert all(error.code == "store.stale" for error in errors)
    assert len(placed) >= 4
