from __future__ import annotations

from rmux.job import JobState, Phase
from rmux.store import groups, jobs, requests


def states(filled):
    with filled.store.read() as conn:
        return [jobs.get(conn, job).state for job in ("j-000001", "j-000002")]


def down(filled):
    with filled.store.write() as conn:
        group, changed = requests.group_desired(conn, "g-000001", "down")
    return group.desired, changed


def test_down_without_a_controller_puts_the_jobs_back_to_their_places(filled):
    with filled.store.write() as conn:
        jobs.update(conn, "j-000001", phase=Phase.TRAIN, phase_state="running")
        jobs.set_state(conn, "j-000002", JobState.LOST)
        groups.set_desired(conn, "g-000001", "down")
    assert down(filled) == ("down", True)
    assert states(filled) == [JobState.PLACED, JobState.PLACED]
    with filled.store.read() as conn:
        assert jobs.get(conn, "j-000001").phase is None
        assert len(groups.get(conn, "g-000001").members) == 2
    assert down(filled) == ("down", False)


def test_down_with_a_controller_leaves_the_jobs_to_it(filled):
    filled.serve()
    assert down(filled) == ("down", True)
    assert states(filled) == [JobState.RUNNING, JobState.RUNNING]
