"""A parked process that kept device memory is not proven parked."""

from __future__ import annotations

from rmux.run.messages import Grant
from rmux.run.runner.gate import Position
from rmux.run.runner.proof import MAX_DEVICE_BYTES, WINDOW_S, Proofs

GRANT = Grant(
    device="n/0",
    epoch=1,
    seq=1,
    job="a",
    attempt=1,
    iteration=0,
    phase="train",
    bound_s=5.0,
)
PARKED = {"n/0": Position(grant=GRANT, state="parked", pids=(10, 11))}


def proven(used_bytes: int | None) -> bool:
    now_s = [0.0]
    proofs = Proofs(
        now_s=lambda: now_s[0], run_ns=lambda pids: 0, device_bytes=lambda pids: used_bytes
    )
    assert proofs.check(PARKED) == {}
    now_s[0] = WINDOW_S
    return proofs.check(PARKED) == {"n/0": GRANT.order}


def test_contexts_may_stay_on_the_device_but_no_weights() -> None:
    assert proven(0)
    assert proven(2 * MAX_DEVICE_BYTES)
    assert not proven(2 * MAX_DEVICE_BYTES + 1)


def test_without_a_driver_that_tells_the_cpu_time_decides() -> None:
    assert proven(None)
