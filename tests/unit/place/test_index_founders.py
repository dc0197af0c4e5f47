"""A job that founds a second group leaves the first to those who are still in it."""

from __future__ import annotations

from rmux.ids import JobId
from rmux.place.index import Index


def test_a_job_that_left_the_group_it_founded_can_found_another(lab):
    index = Index.of(lab.state(cluster=lab.cluster(rollout=3, train=3)))
    spec, profile = lab.spec("x"), lab.profile(10, 10)
    a, b = JobId("j-a"), JobId("j-b")
    for job_id in (a, b):
        decision = index.decide(spec=spec, profile=profile, job_id=job_id)
        index.apply(decision.assignment, spec=spec, profile=profile)
    assert index.group_of(a).id == index.group_of(b).id
    index.remove(a)
    long = lab.profile(100, 100)
    decision = index.decide(spec=lab.spec("x", slo=1.0), profile=long, job_id=a)
    index.apply(decision.assignment, spec=lab.spec("x", slo=1.0), profile=long)
    assert len(index.groups()) == 2
    assert [m.job_id for m in index.group_of(b).members] == [b]
    assert [m.job_id for m in index.group_of(a).members] == [a]
