from __future__ import annotations

import dataclasses

import pytest

from rmux.errors import ConflictError, NotFoundError
from rmux.ids import GroupId, NodeId
from rmux.job import JobState
from rmux.store import groups, jobs, pools, profiles, state


@pytest.fixture
def filled(store, samples):
    """Two rollout and two train nodes, three pending jobs with a profile."""
    with store.write() as conn:
        pools.save(conn, samples.cluster())
        profiles.save(conn, samples.profile())
        for n in (1, 2, 3):
            job = samples.job(f"j-00000{n}", name=f"n{n}", profile="p-1", age_s=10 - n)
            jobs.insert(conn, job)
    return store


def put(conn, assignment, *, group="g-000001", expected=None):
    expected = groups.revision(conn) if expected is None else expected
    return groups.apply(conn, assignment, expected_revision=expected, group_id=GroupId(group))


def test_a_decision_places_its_job_and_moves_the_revision(filled, samples):
    with filled.write() as conn:
        before = groups.revision(conn)
        assert put(conn, samples.assignment()) == "g-000001"
        assert groups.revision(conn) == before + 1
        group = groups.get(conn, "g-000001")
        job = jobs.get(conn, "j-000001")
    assert (job.state, job.group_id) == (JobState.PLACED, "g-000001")
    assert group.nodes == ("r0", "t0")
    assert group.members[0].placement == samples.assignment().placement
    assert group.members[0].profile == samples.profile()
    assert group.members[0].slo == 1.3
    assert group.usd_per_h(samples.cluster()) == pytest.approx(1.85 + 5.28)


def test_a_decision_from_an_older_revision_is_stale_and_changes_nothing(filled, samples):
    with pytest.raises(ConflictError) as caught, filled.write() as conn:
        put(conn, samples.assignment(), expected=groups.revision(conn) - 1)
    assert caught.value.code == "store.stale"
    with filled.read() as conn:
        assert groups.ls(conn, all=True) == []
        assert jobs.get(conn, "j-000001").state is JobState.PENDING


def test_a_node_that_another_group_holds_is_refused(filled, samples):
    with filled.write() as conn:
        put(conn, samples.assignment())
    with pytest.raises(ConflictError, match="node r0 cannot join") as caught:  # noqa: SIM117
        with filled.write() as conn:
            put(conn, samples.assignment("j-000002"), group="g-000002")
    assert caught.value.code == "group.held"


def test_a_placement_outside_the_groups_nodes_is_refused(filled, samples):
    with filled.write() as conn:
        put(conn, samples.assignment())
    outside = samples.assignment("j-000002", group="g-000001", rollout=("r1",))
    with pytest.raises(ConflictError, match="r1/0 is not on a node of group"):  # noqa: SIM117
        with filled.write() as conn:
            put(conn, outside)


def test_members_stand_in_the_order_they_joined_and_raise_the_rotation(filled, samples):
    with filled.write() as conn:
        put(conn, samples.assignment("j-000002"))
        put(conn, samples.assignment("j-000001", group="g-000001", rollout=("r1",), added=("r1",)))
        group = groups.get(conn, "g-000001")
    assert [member.name for member in group.members] == ["n2", "n1"]
    assert group.nodes == ("r0", "t0", "r1")
    assert group.rotation_version == 2


def test_leaving_frees_the_nodes_nobody_else_is_on(filled, samples):
    with filled.write() as conn:
        put(conn, samples.assignment("j-000001"))
        put(conn, samples.assignment("j-000002", group="g-000001", rollout=("r1",), added=("r1",)))
        before = groups.revision(conn)
        assert groups.remove_member(conn, "j-000002") == "g-000001"
        assert groups.revision(conn) == before + 1
        assert groups.get(conn, "g-000001").nodes == ("r0", "t0")
        assert groups.remove_member(conn, "j-000002") is None
        assert groups.revision(conn) == before + 1


def test_an_emptied_group_holds_nothing_but_stays_on_record(filled, samples):
    with filled.write() as conn:
        put(conn, samples.assignment())
        groups.remove_member(conn, "j-000001")
        assert groups.ls(conn) == []
        assert [group.id for group in groups.ls(conn, all=True)] == ["g-000001"]
        assert pools.holders(conn) == {}
        assert jobs.get(conn, "j-000001").group_id == "g-000001"


def test_an_ended_job_is_no_member_but_its_nodes_stay_until_it_is_removed(filled, samples):
    with filled.write() as conn:
        put(conn, samples.assignment())
        jobs.set_state(conn, "j-000001", JobState.SUCCEEDED)
        assert groups.get(conn, "g-000001").members == ()
        assert groups.get(conn, "g-000001").nodes == ("r0", "t0")
        groups.remove_member(conn, "j-000001")
        assert groups.get(conn, "g-000001").nodes == ()


def test_a_placed_job_that_goes_back_to_pending_can_be_placed_elsewhere(filled, samples):
    with filled.write() as conn:
        put(conn, samples.assignment())
        groups.remove_member(conn, "j-000001")
        assert jobs.set_state(conn, "j-000001", JobState.PENDING).group_id is None
        put(conn, samples.assignment(), group="g-000002")
        assert [group.id for group in groups.ls(conn)] == ["g-000002"]


def test_a_move_to_another_group_frees_the_old_ones_nodes(filled, samples):
    with filled.write() as conn:
        put(conn, samples.assignment("j-000001"))
        put(conn, samples.assignment("j-000002", rollout=("r1",), train=("t1",)), group="g-000002")
        put(conn, samples.assignment("j-000002", group="g-000001"))
        assert groups.get(conn, "g-000002").nodes == ()
        assert [member.name for member in groups.get(conn, "g-000001").members] == ["n1", "n2"]


def test_nodes_that_a_decision_drops_must_not_be_in_use(filled, samples):
    with filled.write() as conn:
        put(conn, samples.assignment("j-000001"))
    dropping = dataclasses.replace(
        samples.assignment("j-000002", group="g-000001", rollout=("r1",), added=("r1",)),
        removed_nodes=(NodeId("r0"),),
    )
    with pytest.raises(ConflictError, match="r0/0 is not on a node of group"):  # noqa: SIM117
        with filled.write() as conn:
            put(conn, dropping)


def test_a_group_is_meant_by_id_prefix_or_member(filled, samples):
    with filled.write() as conn:
        put(conn, samples.assignment(), group="g-01kb3v7r")
        for text in ("g-01kb3v7r", "g-01kb3v", "01kb3v", "n1", "j-000001"):
            assert groups.resolve(conn, text) == "g-01kb3v7r"
        for text in ("g-01kb", "n2", "nothing"):
            with pytest.raises(NotFoundError):
                groups.resolve(conn, text)


def test_desired_of_a_group_tells_whether_it_changed(filled, samples):
    with filled.write() as conn:
        put(conn, samples.assignment())
        assert groups.set_desired(conn, "g-000001", "down") is True
        assert groups.set_desired(conn, "g-000001", "down") is False
        assert groups.get(conn, "g-000001").desired == "down"
        with pytest.raises(NotFoundError):
            groups.set_desired(conn, "g-000009", "down")


def test_the_state_shows_groups_that_hold_something_and_pending_jobs_with_a_profile(
    filled, samples
):
    with filled.write() as conn:
        jobs.insert(conn, samples.job("j-000004", name="n4"))
        put(conn, samples.assignment("j-000001"))
        put(conn, samples.assignment("j-000002", rollout=("r1",), train=("t1",)), group="g-000002")
        groups.remove_member(conn, "j-000002")
        jobs.set_state(conn, "j-000002", JobState.CANCELLED)
    with filled.read() as conn:
        seen = state.load(conn)
        assert seen.revision == groups.revision(conn)
    assert [group.id for group in seen.groups] == ["g-000001"]
    assert [pending.job.id for pending in seen.pending] == ["j-000003"]
    assert seen.pending[0].profile == samples.profile()
    assert [node.id for node in seen.free_nodes("rollout")] == ["r1"]


def elastic(samples, *, most):
    cluster = samples.cluster()
    rollout, train = cluster.pools
    return dataclasses.replace(cluster, pools=(dataclasses.replace(rollout, max_nodes=most), train))


def test_an_elastic_pool_gains_the_nodes_of_a_decision_and_keeps_them_when_freed(filled, samples):
    new = dataclasses.replace(samples.node("rollout-3", "rollout"), host="rollout-3")
    assigned = samples.assignment(rollout=("rollout-3",))
    with filled.write() as conn:
        pools.save(conn, elastic(samples, most=3))
        put(conn, dataclasses.replace(assigned, new_nodes=(new,)))
        assert pools.load(conn).pool("rollout").nodes[-1] == new
        assert groups.get(conn, "g-000001").nodes == ("rollout-3", "t0")
        groups.remove_member(conn, "j-000001")
        now = state.load(conn)
    assert [node.id for node in now.free_nodes("rollout")] == ["r0", "r1", "rollout-3"]


def test_a_pool_does_not_grow_beyond_its_limit(filled, samples):
    new = samples.node("rollout-3", "rollout")
    assigned = samples.assignment(rollout=("rollout-3",))
    with filled.write() as conn:
        pools.save(conn, elastic(samples, most=2))
    with pytest.raises(ConflictError, match="has 2 nodes and may grow to 2") as caught:  # noqa: SIM117
        with filled.write() as conn:
            put(conn, dataclasses.replace(assigned, new_nodes=(new,)))
    assert caught.value.code == "pool.full"
    with filled.read() as conn:
        assert groups.ls(conn, all=True) == []


def test_a_member_on_fewer_train_devices_than_it_asked_for_is_planned_slower(filled, samples):
    job = samples.job("j-000009", name="wide", profile="p-1")
    spec = dataclasses.replace(job.spec, train=dataclasses.replace(job.spec.train, devices=2))
    with filled.write() as conn:
        jobs.insert(conn, dataclasses.replace(job, spec=spec))
        put(conn, samples.assignment("j-000009"))
        member = groups.get(conn, "g-000001").members[0]
    asked = samples.profile()
    assert member.profile.train.worst_s == 2 * asked.train.worst_s
    assert member.solo_s == asked.solo_s
