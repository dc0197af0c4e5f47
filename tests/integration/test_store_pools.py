from __future__ import annotations

import dataclasses

import pytest

from rmux.cluster import Cluster, PoolKind
from rmux.errors import ConflictError, NotFoundError
from rmux.ids import GroupId
from rmux.store import groups, jobs, pools, profiles


def test_what_was_saved_is_what_is_loaded(store, samples):
    with store.write() as conn:
        assert pools.save(conn, samples.cluster()) is True
    with store.read() as conn:
        assert pools.load(conn) == samples.cluster()


def test_saving_the_same_again_changes_nothing_and_keeps_the_revision(store, samples):
    with store.write() as conn:
        pools.save(conn, samples.cluster())
        before = groups.revision(conn)
        assert pools.save(conn, samples.cluster()) is False
        assert groups.revision(conn) == before == 1


def test_a_second_file_adds_its_pools_and_leaves_the_others(store, samples):
    extra = samples.pool("rollout-b", PoolKind.ROLLOUT, "b", 1, usd_per_device_h=2.0)
    with store.write() as conn:
        pools.save(conn, samples.cluster())
        pools.save(conn, Cluster(pools=(extra,)))
        loaded = pools.load(conn)
    assert [pool.name for pool in loaded.pools] == ["rollout", "train", "rollout-b"]
    assert loaded.links == samples.cluster().links


def test_replace_drops_the_pools_that_the_file_leaves_out(store, samples):
    extra = samples.pool("rollout-b", PoolKind.ROLLOUT, "b", 1, usd_per_device_h=2.0)
    with store.write() as conn:
        pools.save(conn, samples.cluster())
        pools.save(conn, Cluster(pools=(extra,)), replace=True)
        assert pools.load(conn) == Cluster(pools=(extra,))


def test_a_node_stays_drained_when_its_pool_is_saved_again(store, samples):
    with store.write() as conn:
        pools.save(conn, samples.cluster())
        assert pools.set_drained(conn, "r1", "ecc") is True
        assert pools.set_drained(conn, "r1", "ecc") is False
        pools.save(conn, samples.cluster(rollout=3))
        assert pools.load(conn).node("r1").drained == "ecc"
        assert pools.set_drained(conn, "r1", "") is True


def test_one_node_in_two_pools_is_refused(store, samples):
    twice = samples.pool("rollout-b", PoolKind.ROLLOUT, "r", 1, usd_per_device_h=2.0)
    with store.write() as conn:
        pools.save(conn, samples.cluster())
        with pytest.raises(ConflictError, match="r0 is in pool rollout and in pool rollout-b"):
            pools.save(conn, Cluster(pools=(twice,)))


@pytest.fixture
def held(store, samples):
    """A group on r0 and t0."""
    with store.write() as conn:
        pools.save(conn, samples.cluster())
        profiles.save(conn, samples.profile())
        jobs.insert(conn, samples.job(profile="p-1"))
        groups.apply(
            conn,
            samples.assignment(),
            expected_revision=groups.revision(conn),
            group_id=GroupId("g-000001"),
        )


def test_a_held_node_can_neither_change_nor_go(store, samples, held):
    bigger = samples.cluster()
    rollout = bigger.pools[0]
    node = dataclasses.replace(rollout.nodes[0], num_devices=2)
    bigger = Cluster(
        pools=(dataclasses.replace(rollout, nodes=(node, *rollout.nodes[1:])), bigger.pools[1])
    )
    with store.write() as conn:
        with pytest.raises(
            ConflictError, match="r0 would change, but group g-000001 holds it"
        ) as caught:
            pools.save(conn, bigger)
        with pytest.raises(ConflictError, match="t0 would go"):
            pools.remove(conn, "train")
        assert pools.load(conn) == samples.cluster()
    assert str(caught.value.hint).endswith(f"or rmux job cancel {samples.job().id}")


def test_a_free_node_of_the_same_pool_can_go(store, samples, held):
    with store.write() as conn:
        pools.save(conn, samples.cluster(rollout=1))
        assert [node.id for node in pools.load(conn).pool("rollout").nodes] == ["r0"]
        assert pools.holders(conn) == {"r0": "g-000001", "t0": "g-000001"}


def test_removing_a_pool_takes_its_links_along(store, samples):
    with store.write() as conn:
        pools.save(conn, samples.cluster())
        pools.remove(conn, "train")
        loaded = pools.load(conn)
        assert [pool.name for pool in loaded.pools] == ["rollout"]
        assert loaded.links == ()
        with pytest.raises(NotFoundError):
            pools.remove(conn, "train")


def test_draining_an_unknown_node_is_an_error(store):
    with store.write() as conn, pytest.raises(NotFoundError, match="no node 'x9'"):
        pools.set_drained(conn, "x9", "ecc")
