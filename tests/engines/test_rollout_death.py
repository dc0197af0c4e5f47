"""Workers that are killed while they sample."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Mapping
from typing import Any

import pytest

from rmux.errors import BackendError
from rmux.run.driver.engines import Sampling

PROMPTS = [[(7 * at + 3 * i) % 64 for i in range(5 + at)] for at in range(16)]
GREEDY = Sampling(temperature=0.0, max_tokens=200, ignore_eos=True)


def test_requests_of_a_killed_worker_go_on_elsewhere_and_the_last_death_is_told(
    start_rollout: Callable[..., Any], left_over: Callable[[str], list[str]]
) -> None:
    rollout = start_rollout(rollout_devices=2)
    try:
        rollout.wake()
        expected = rollout.fleet.generate(PROMPTS, sampling=GREEDY)
        victim, survivor = (rollout.session.meet(handle.actor) for handle in rollout.handles)
        progress: list[int] = []
        killed: dict[int, float] = {}

        def kill(pid: int) -> Callable[[Mapping[str, Any]], None]:
            def strike(seen: Mapping[str, Any]) -> None:
                progress.append(seen["tokens"])
                if seen["tokens"] > 200 and pid not in killed:
                    assert seen["responses_done"] < 8
                    killed[pid] = time.monotonic()
                    os.kill(pid, signal.SIGKILL)

            return strike

        responses = rollout.fleet.generate(PROMPTS, sampling=GREEDY, on_progress=kill(victim))
        assert rollout.handles[0].dead is not None
        assert [response.tokens for response in responses] == [r.tokens for r in expected]
        assert {len(response.logprobs) for response in responses} == {200}
        assert progress[-1] == 16 * 200
        with pytest.raises(BackendError, match=r"rollout worker r0/1 \(pid \d+\) died") as caught:
            rollout.fleet.generate(PROMPTS, sampling=GREEDY, on_progress=kill(survivor))
        assert time.monotonic() - killed[survivor] < 5.0
        assert caught.value.code == "backend.died"
        assert caught.value.details["pid"] == survivor
        with pytest.raises(BackendError, match="died"):
            rollout.fleet.generate(PROMPTS, sampling=GREEDY)
    finally:
        rollout.session.close()
    for path in rollout.files.all:
        path.unlink(missing_ok=True)
    assert left_over(rollout.config.run_tag) == []
