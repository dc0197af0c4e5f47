from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from rmux.errors import WorkerError
from rmux.run.workers.step_loop import Delta, StepLoop


class Counter:
    """An engine whose only request counts up to `length`."""

    def __init__(self) -> None:
        self.thread = threading.get_ident()
        self.left: dict[str, int] = {}
        self.done: dict[str, int] = {}
        self.step_threads: set[int] = set()
        self.fails = False
        self.batches: list[list[str]] = []

    def has_work(self) -> bool:
        return bool(self.left)

    def step(self) -> Iterator[Delta]:
        if self.fails:
            raise RuntimeError("kernel went wrong")
        self.step_threads.add(threading.get_ident())
        self.batches.append(sorted(self.left))
        for name in list(self.left):
            at = self.done.get(name, 0)
            self.done[name] = at + 1
            self.left[name] -= 1
            last = self.left[name] == 0
            if last:
                del self.left[name]
            yield Delta(
                request_id=name,
                offset=at,
                tokens=(at,),
                logprobs=(-1.0,),
                finish_reason="length" if last else "",
            )


def start(*, flush_s: float = 0.0) -> tuple[StepLoop, Counter]:
    loop = StepLoop(name="test", flush_s=flush_s)
    made: list[Counter] = []

    def make() -> Counter:
        made.append(Counter())
        return made[0]

    loop.own(make)
    return loop, made[0]


def collect(loop: StepLoop, count: int) -> list[Delta]:
    cursor, found = 0, []
    while sum(len(delta.tokens) for delta in found) < count:
        cursor, deltas = loop.poll(cursor, timeout_s=5.0)
        assert deltas
        found += deltas
    return found


def test_the_engine_is_made_and_driven_on_one_thread_that_is_not_the_callers() -> None:
    loop, engine = start()
    loop.call(lambda: engine.left.update(a=5))
    loop.set_stepping(stepping=True)
    collect(loop, 5)
    assert engine.step_threads == {engine.thread}
    assert engine.thread != threading.get_ident()


def test_a_batch_handed_over_in_one_call_is_complete_at_its_first_step() -> None:
    loop, engine = start()
    loop.set_stepping(stepping=True)
    loop.call(lambda: engine.left.update({f"r{at}": 3 for at in range(50)}))
    collect(loop, 150)
    assert [len(batch) for batch in engine.batches] == [50, 50, 50]


def test_nothing_is_stepped_while_parked() -> None:
    loop, engine = start()
    loop.call(lambda: engine.left.update(a=3))
    assert loop.poll(0, timeout_s=0.005) == (0, ())
    assert engine.batches == []
    loop.set_stepping(stepping=True)
    assert [t for delta in collect(loop, 3) for t in delta.tokens] == [0, 1, 2]


def test_a_flush_is_repeated_until_a_cursor_acknowledges_it() -> None:
    loop, engine = start(flush_s=3600.0)
    loop.call(lambda: engine.left.update(a=4))
    loop.set_stepping(stepping=True)
    found = collect(loop, 4)
    cursor, again = loop.poll(0, timeout_s=0.0)
    assert [delta.tokens for delta in again] == [delta.tokens for delta in found]
    assert loop.poll(cursor, timeout_s=0.0) == (cursor, ())
    assert loop.poll(0, timeout_s=0.0) == (0, ())


def test_tokens_of_a_request_leave_together_within_the_flush_interval() -> None:
    loop, engine = start(flush_s=3600.0)
    loop.call(lambda: engine.left.update(a=4, b=2))
    loop.set_stepping(stepping=True)
    # The first step is flushed at once.
    assert [(d.request_id, d.tokens, d.finish_reason) for d in collect(loop, 6)] == [
        ("a", (0,), ""),
        ("b", (0,), ""),
        ("a", (1, 2, 3), "length"),
        ("b", (1,), "length"),
    ]


def test_an_error_of_a_command_is_its_callers_and_the_loop_goes_on() -> None:
    loop, _ = start()
    with pytest.raises(ZeroDivisionError):
        loop.call(lambda: 1 / 0)
    assert loop.call(lambda: 5) == 5


def test_an_engine_that_fails_is_told_to_pollers_and_callers() -> None:
    loop, engine = start()

    def fail() -> None:
        engine.fails = True
        engine.left["a"] = 1

    loop.set_stepping(stepping=True)
    loop.call(fail)
    with pytest.raises(WorkerError, match="kernel went wrong") as caught:
        loop.poll(0, timeout_s=5.0)
    assert caught.value.code == "engine.failed"
    assert "Traceback" in caught.value.details["stderr"]
    with pytest.raises(WorkerError):
        loop.call(lambda: None)
