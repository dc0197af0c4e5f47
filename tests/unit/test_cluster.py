import pytest

from rmux.cluster import Cluster, DeviceId, Link, Node, NodePool, PoolKind
from rmux.errors import NotFoundError
from rmux.ids import NodeId, PoolName

NODE = Node(
    id=NodeId("r0"),
    pool=PoolName("rollout"),
    host="here",
    device_kind="cpu",
    num_devices=2,
    host_memory_bytes=8,
    reserved_memory_bytes=3,
)
POOL = NodePool(
    name=PoolName("rollout"),
    kind=PoolKind.ROLLOUT,
    hardware="cpu",
    usd_per_device_h=1.5,
    nodes=(NODE,),
)
LINK = Link(source=PoolName("train"), target=PoolName("rollout"), rate_bps=1e9)
CLUSTER = Cluster(pools=(POOL,), links=(LINK,))


def test_a_device_is_printed_and_read_as_node_and_index():
    assert str(DeviceId(NodeId("a/b"), 1)) == "a/b/1"
    assert DeviceId.parse("a/b/1") == DeviceId(NodeId("a/b"), 1)
    assert NODE.devices == (DeviceId(NodeId("r0"), 0), DeviceId(NodeId("r0"), 1))


def test_a_whole_node_is_paid_for():
    assert POOL.usd_per_node_h(NODE) == 3.0
    assert NODE.usable_memory_bytes == 5


def test_a_link_counts_in_both_directions():
    assert CLUSTER.link(PoolName("rollout"), PoolName("train")) is LINK
    assert CLUSTER.link(PoolName("rollout"), PoolName("other")) is None


def test_an_unknown_name_is_not_found():
    assert CLUSTER.node("r0") is NODE
    for look in (CLUSTER.pool, CLUSTER.node):
        with pytest.raises(NotFoundError, match="'nope'"):
            look("nope")
