"""Which devices a measurement takes, and what it reads from the events of its run."""

from datetime import UTC, datetime

import pytest

from rmux.cluster import Cluster, DeviceId, Link, Node, NodePool, PoolKind
from rmux.errors import InfeasibleError, UnavailableError
from rmux.events import EventType, PhaseEvent
from rmux.group import Placement
from rmux.ids import GroupId, NodeId, PoolName
from rmux.job import JobSpec, Phase, RolloutSpec
from rmux.run.probe import choose, samples_of
from rmux.run.resident import ResidentWatch


def node(name, host="here", drained=""):
    return Node(
        id=NodeId(name),
        pool=PoolName("r"),
        host=host,
        device_kind="cpu",
        num_devices=2,
        host_memory_bytes=2**30,
        drained=drained,
    )


def pool(name, kind, *nodes):
    return NodePool(
        name=PoolName(name), kind=kind, hardware="cpu", usd_per_device_h=1.0, nodes=nodes
    )


CLUSTER = Cluster(
    pools=(
        pool(
            "r",
            PoolKind.ROLLOUT,
            node("far", host="there"),
            node("ill", drained="ecc"),
            node("r0"),
            node("r1"),
            node("r2"),
        ),
        pool("other", PoolKind.ROLLOUT, *(node(f"o{i}") for i in range(4))),
        pool("t", PoolKind.TRAIN, node("t0")),
    ),
    links=(
        Link(source="t", target="r", rate_bps=1e9),
        Link(source="t", target="other", rate_bps=1e8),
    ),
)


def wanting(devices):
    return JobSpec(name="job", rollout=RolloutSpec(devices=devices))


def test_a_measurement_takes_idle_devices_of_its_host_and_cuts_the_cluster_down_to_them():
    busy = {NodeId("r0"): GroupId("g-1")}
    placement, cut = choose(wanting(3), CLUSTER, host="here", busy=busy)
    assert [str(d) for d in placement.rollout] == ["r1/0", "r1/1", "r2/0"]
    assert [str(d) for d in placement.train] == ["t0/0"]
    assert [[node.id for node in pool.nodes] for pool in cut.pools] == [["r1", "r2"], ["t0"]]
    assert [link.target for link in cut.links] == ["r"]


def test_a_measurement_of_devices_that_a_group_runs_on_names_the_group():
    busy = {NodeId("r0"): GroupId("g-1"), NodeId("r2"): GroupId("g-2")}
    with pytest.raises(UnavailableError, match=r"group g-1, g-2 .* 2 of 3 devices") as raised:
        choose(wanting(3), CLUSTER, host="here", busy=busy)
    assert raised.value.hint == "wait, or rmux group down g-1"


def test_a_measurement_that_no_host_can_do_is_infeasible():
    with pytest.raises(InfeasibleError, match="needs 7 devices of pool r on one host, here has 6"):
        choose(wanting(7), CLUSTER, host="here", busy={})


def event(kind, iteration, phase=None, at_s=0.0, **data):
    return PhaseEvent(
        type=kind,
        at=datetime.fromtimestamp(0, UTC),
        at_s=at_s,
        source="j/1",
        source_n=1,
        iteration=iteration,
        phase=phase,
        data=data,
    )


def iteration(n, scale):
    start, end = EventType.PHASE_START, EventType.PHASE_END
    return [
        event(start, n, Phase.ROLLOUT, at_s=50.0, wait_s=1.0, switch_s=0.1),
        event(
            end,
            n,
            Phase.ROLLOUT,
            run_s=2.0 * scale,
            park_s=0.2,
            response_length_max=64,
            tokens=900,
            prompt_tokens=100,
        ),
        event(start, n, Phase.TRAIN, at_s=60.0, wait_s=0.0, switch_s=0.3),
        event(end, n, Phase.TRAIN, run_s=3.0 * scale, park_s=0.4),
        event(end, n, Phase.SYNC, run_s=0.5, sent_bytes=1000),
        event(EventType.CHECKPOINT, n, seconds=0.05),
    ]


@pytest.fixture
def watch():
    placement = Placement(rollout=(DeviceId.parse("r0/0"),), train=(DeviceId.parse("t0/0"),))
    watch = ResidentWatch(tag="t", job_id="j", placement=placement, channel_url="")
    watch.parked_bytes = {NodeId("r0"): 100}
    watch.peak_bytes = {NodeId("r0"): 130, NodeId("t0"): 70}
    return placement, watch


def test_samples_leave_the_warm_up_out(watch):
    found = [
        event(EventType.PROCESS, None, at_s=10.0, role="driver", change="started"),
        event(EventType.PHASE_START, 0, Phase.INIT, at_s=20.0, wait_s=2.0),
        event(EventType.PHASE_END, 0, Phase.INIT, pool="rollout", run_s=4.0, versions={"e": "1"}),
        event(EventType.PHASE_END, 0, Phase.INIT, pool="train", run_s=6.0, versions={"e": "1"}),
        *iteration(0, scale=9.0),
        *iteration(1, scale=1.0),
        *iteration(2, scale=1.5),
    ]
    samples = samples_of(found, *watch)
    assert samples.rollout_s == (2.0, 3.0)
    assert samples.train_s == (3.0, 4.5)
    assert samples.rollout_switch_s == pytest.approx((0.3, 0.3))
    assert samples.train_switch_s == pytest.approx((0.7, 0.7))
    assert samples.sync_s == (0.5, 0.5)
    assert samples.checkpoint_s == (0.05, 0.05)
    assert samples.longest_tokens == (64, 64)
    assert samples.total_tokens == (1000, 1000)
    assert (samples.init_s, samples.rollout_cold_s, samples.train_cold_s) == (6.0, 12.0, 14.0)
    assert samples.sync_bytes == 1000
    assert samples.engines == (("e", "1"),)


def test_resident_is_what_was_seen_parked_else_the_peak_and_the_rest_is_the_switch(watch):
    samples = samples_of(iteration(1, scale=1.0), *watch)
    assert samples.rollout_resident_bytes == 100
    assert samples.train_resident_bytes == 70
    assert samples.switch_peak_bytes == 30
