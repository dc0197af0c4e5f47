from __future__ import annotations

import dataclasses
import itertools

from rmux.clock import ManualClock
from rmux.events import EventType
from rmux.store import events


def test_an_event_comes_back_as_it_was_with_a_number(store, samples):
    told = samples.event(device="r0/0", wait_s=0.25)
    with store.write() as conn:
        assert events.append(conn, [told]) == 1
        found = events.read(conn)
    assert found == [dataclasses.replace(told, seq=found[0].seq)]
    assert found[0].seq > 0


def test_an_event_told_twice_is_stored_once(store, samples):
    with store.write() as conn:
        assert events.append(conn, [samples.event(n) for n in (1, 2)]) == 2
        assert events.append(conn, [samples.event(n) for n in (1, 2, 3)]) == 1
        assert events.append(conn, []) == 0
        assert events.append(conn, [samples.event(1, source="g-000001@1")]) == 1
        assert events.last_source_n(conn, "j-000001/1") == 3
        assert events.last_source_n(conn, "nobody") == 0


def test_a_number_that_is_not_finite_becomes_null(store, samples):
    with store.write() as conn:
        events.append(conn, [samples.event(reward=float("nan"), gap=[float("inf"), 1.5])])
        assert events.read(conn)[0].data == {"reward": None, "gap": [None, 1.5]}


def test_reading_goes_on_from_a_cursor_and_filters(store, samples):
    told = [
        samples.event(1),
        samples.event(2, EventType.PHASE_END),
        samples.event(3, job="j-000002"),
        samples.event(4, group="g-000002"),
    ]
    with store.write() as conn:
        events.append(conn, told)
        seqs = [event.seq for event in events.read(conn)]

        def numbers(**how):
            return [event.source_n for event in events.read(conn, **how)]

        assert numbers(after_seq=seqs[1]) == [3, 4]
        assert numbers(limit=2) == [1, 2]
        assert numbers(group="g-000001") == [1, 2, 3]
        assert numbers(job="j-000002") == [3]
        assert numbers(types={EventType.PHASE_END}) == [2]
        assert events.last_seq(conn) == seqs[3]
        assert events.last_seq(conn, "g-000001") == seqs[2]
        assert events.last_seq(conn, "g-000009") == 0
        assert [event.source_n for event in events.latest(conn, limit=2)] == [3, 4]


def test_following_tells_each_event_once_and_yields_when_there_is_none(store, samples):
    clock = ManualClock()
    news = events.follow(store, clock=clock, group="g-000001")
    assert next(news).events == ()
    with store.write() as conn:
        events.append(conn, [samples.event(1), samples.event(2)])
    assert [event.source_n for event in next(news).events] == [1, 2]
    assert next(news).events == ()
    assert clock.now_s() > 0


def test_a_store_that_is_away_is_a_gap_and_then_nothing_is_lost(store, samples, monkeypatch):
    from rmux.errors import UnreachableError

    news = events.follow(store, clock=ManualClock())
    with store.write() as conn:
        events.append(conn, [samples.event(1)])
    cursor = next(news).seq

    def away():
        raise UnreachableError("the store is away")

    with monkeypatch.context() as patch:
        patch.setattr(store, "read", away)
        lost = next(news)
    assert (lost.gap, lost.seq, lost.events) == ("the store is away", cursor, ())
    with store.write() as conn:
        events.append(conn, [samples.event(2)])
    assert [event.source_n for event in next(news).events] == [2]


def test_a_batch_larger_than_one_look_arrives_whole(store, samples):
    with store.write() as conn:
        events.append(conn, [samples.event(n) for n in range(1, 2501)])
    news = events.follow(store, clock=ManualClock())
    found = itertools.chain.from_iterable(look.events for look in itertools.islice(news, 3))
    assert [event.source_n for event in found] == list(range(1, 2501))
