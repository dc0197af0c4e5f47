"""The slow link as a resource: syncs planned with the worst overlap, and who that keeps out."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from rmux.ids import JobId
from rmux.place.index import Index
from rmux.place.index_needs import Needs
from rmux.place.link import FEW, worst_syncs_s
from rmux.place.link_columns import worst_of_many_s
from rmux.place.period import period


def sending(lab, bits, *, sync_s=0.0, loop_s=1e6, slo=1e6):
    profile = lab.profile(loop_s / 2, loop_s / 2, sync_bytes=bits / 8, sync_s=sync_s)
    return Needs(profile, slo=slo, max_staleness=0, max_repeats=1)


def longest_sync_s(bits, alone_bps, others, rate_bps):
    """By moving the link in small steps: others send whenever they slow this one down."""
    best = 0.0
    for share in range(1001):
        contested = bits * share / 1000
        moved = contested + sum(min(contested, other) for other in others)
        best = max(best, (bits - contested) / alone_bps + moved / rate_bps)
    return best


def fair_share_s(starts, bits, rates, rate_bps):
    """End of the first transfer on a link shared max-min fairly, with these starts, seconds."""
    left, now = list(bits), 0.0
    while left[0] > 1e-9:
        here = [i for i, start in enumerate(starts) if start <= now + 1e-12 and left[i] > 1e-9]
        speed = dict.fromkeys(here, 0.0)
        spare, open_ = rate_bps, sorted(here, key=lambda i: rates[i])
        for number, index in enumerate(open_):
            speed[index] = min(rates[index], spare / (len(open_) - number))
            spare -= speed[index]
        steps = [left[i] / speed[i] for i in here if speed[i] > 0]
        steps += [start - now for start in starts if start > now + 1e-12]
        step = min(steps)
        for index in here:
            left[index] -= speed[index] * step
        now += step
    return now - starts[0]


def test_two_that_can_fill_the_link_take_turns_at_half_its_rate(lab):
    first, second = sending(lab, 800, sync_s=8.0), sending(lab, 400, sync_s=4.0)
    # 400 bits of each at half of 100 bit/s, the other 400 alone.
    assert worst_syncs_s([first, second], 100.0) == pytest.approx([12.0, 8.0])


def test_syncs_that_fit_side_by_side_do_not_wait(lab):
    slow = sending(lab, 400, sync_s=8.0)
    assert worst_syncs_s([slow, slow], 100.0) == [8.0, 8.0]
    assert worst_syncs_s([slow] * 3, 100.0) == pytest.approx([12.0] * 3)


def test_a_job_alone_on_the_link_takes_no_less_than_its_bits(lab):
    assert worst_syncs_s([sending(lab, 400)], 100.0) == [4.0]
    assert worst_syncs_s([sending(lab, 400, sync_s=9.0)], 100.0) == [9.0]


def test_a_short_loop_syncs_more_than_once_meanwhile(lab):
    long_, short = sending(lab, 1000, sync_s=10.0), sending(lab, 100, sync_s=1.0, loop_s=4.0)
    # In 10 s the short one comes 3 times, which makes 13 s, in which it comes 4 times.
    assert worst_syncs_s([long_, short], 100.0)[0] == pytest.approx(14.0)


def test_the_worst_sync_is_the_maximum_over_every_split_of_its_bits(lab):
    rng = random.Random(5)
    for _ in range(200):
        rate = 100.0
        jobs = [
            sending(lab, rng.choice((80, 400, 1000, 2400)), sync_s=rng.choice((0.0, 5.0, 40.0)))
            for _ in range(rng.randint(2, 6))
        ]
        found = worst_syncs_s(jobs, rate)
        for index, job in enumerate(jobs):
            others = [other.bits for at, other in enumerate(jobs) if at != index]
            alone_bps = min(rate, job.bits / job.sync_s) if job.sync_s else rate
            expected = longest_sync_s(job.bits, alone_bps, others, rate)
            assert found[index] == pytest.approx(expected, rel=2e-3)


def test_no_overlap_on_a_fairly_shared_link_takes_longer_than_planned(lab):
    rng = random.Random(6)
    for _ in range(150):
        rate = 100.0
        bits = [rng.choice((80.0, 400.0, 1000.0)) for _ in range(4)]
        sync_s = [rng.choice((0.0, 8.0, 20.0)) for _ in bits]
        jobs = [sending(lab, b, sync_s=s) for b, s in zip(bits, sync_s, strict=True)]
        rates = [min(rate, b / s) if s else rate for b, s in zip(bits, sync_s, strict=True)]
        starts = [10.0, *[rng.uniform(0, 20) for _ in bits[1:]]]
        planned = worst_syncs_s(jobs, rate)[0]
        assert fair_share_s(starts, bits, rates, rate) <= planned * (1 + 1e-9)


def test_many_jobs_are_planned_together_as_one_by_one(lab):
    rng = random.Random(7)
    jobs = [
        sending(lab, rng.choice((0, 80, 400, 1000)), sync_s=rng.choice((0.0, 5.0, 400.0)))
        for _ in range(FEW)
    ]
    together = worst_of_many_s(jobs, 1000.0, rounds=50)
    assert together == pytest.approx(worst_syncs_s(jobs, 1000.0))
    jobs[3] = sending(lab, 400, loop_s=2.0)
    together, apart = worst_of_many_s(jobs, 1000.0, rounds=50), worst_syncs_s(jobs, 1000.0)
    assert all(one >= other - 1e-9 for one, other in zip(together, apart, strict=True))


def on_the_link(lab, *, slo):
    """One group of one job that syncs 800 bits over a link of 100 bit/s in 8 s."""
    member = lab.member("a", 50, 42, slo=slo, sync_bytes=100, sync_s=8.0)
    cluster = lab.cluster(rollout=2, train=2, link_bps=100.0)
    return lab.state(lab.group(member), cluster=cluster)


def test_a_sync_that_breaks_a_promise_of_another_group_keeps_the_job_out(lab):
    new = lab.profile(900, 42, sync_bytes=100, sync_s=8.0)
    tight, loose = on_the_link(lab, slo=1.05), on_the_link(lab, slo=1.09)
    refused = lab.admit(tight, (0, 0), profile=new, spec=lab.spec("new", slo=1.05))
    # 8 s become 16 s when both sync at once: 108 s where 105 s are allowed.
    alone = refused.candidates[-1]
    assert alone.reason.code == "link"
    assert "a sync of a in group g-1 would take up to 16" in alone.reason.message
    assert lab.admit(loose, (0, 0), profile=new, spec=lab.spec("new", slo=1.05)).admitted


def test_the_newcomers_own_sync_is_planned_with_the_overlap(lab):
    new = lab.profile(50, 42, sync_bytes=100, sync_s=8.0)
    decision = lab.admit(
        on_the_link(lab, slo=2.0), (0, 0), profile=new, spec=lab.spec("new", slo=1.05)
    )
    alone = decision.candidates[-1]
    assert alone.link.sync_s == pytest.approx(16.0)
    assert alone.period.period_s == pytest.approx(108.0)
    assert alone.reason.code == "slo"
    assert not decision.never_fits


def test_the_index_tells_every_jobs_planned_sync(lab):
    index = Index.of(on_the_link(lab, slo=2.0))
    assert index.planned_sync_s("j-a") == 8.0
    spec, profile = lab.spec("new"), lab.profile(900, 42, sync_bytes=50, sync_s=4.0)
    decision = index.decide(spec=spec, profile=profile, job_id=JobId("j-new"))
    index.apply(decision.assignment, spec=spec, profile=profile)
    assert index.planned_sync_s("j-a") == pytest.approx(12.0)
    assert index.planned_sync_s("j-new") == pytest.approx(8.0)
    index.remove(JobId("j-new"))
    assert index.planned_sync_s("j-a") == 8.0
    assert Index.of(lab.state(lab.group(lab.member("b", 1, 1, sync_s=3.0)))).planned_sync_s(
        "j-b"
    ) == pytest.approx(3.0)


def test_the_paper_does_not_look_at_the_link(lab):
    new = lab.profile(900, 42, sync_bytes=10**6, sync_s=8.0)
    assert lab.admit(on_the_link(lab, slo=1.05), (0, 0), profile=new, rule="paper").admitted


def test_every_promise_stands_the_worst_overlap_after_any_arrivals(lab):
    rng = random.Random(8)
    admitted = 0
    for _ in range(30):
        index = Index.of(lab.state(cluster=lab.cluster(rollout=4, train=4, link_bps=100.0)))
        for number in range(8):
            profile = lab.profile(
                rng.choice((20, 50, 200)),
                rng.choice((20, 50, 200)),
                sync_bytes=rng.choice((0, 25, 100)),
                sync_s=8.0,
            )
            spec = lab.spec(f"n{number}", slo=rng.choice((1.1, 1.5, 3.0)))
            decision = index.decide(spec=spec, profile=profile, job_id=JobId(f"j-{number}"))
            if decision.assignment is None:
                continue
            admitted += 1
            index.apply(decision.assignment, spec=spec, profile=profile)
        for group in index.groups():
            slow = [
                replace(
                    member,
                    profile=replace(member.profile, sync_s=index.planned_sync_s(member.job_id)),
                )
                for member in group.members
            ]
            planned = period(slow, order=group.round)
            for member in group.members:
                limit_s = member.slo * member.solo_s
                assert planned.iteration_s(member.job_id) <= limit_s * (1 + 1e-9)
    assert admitted > 100
