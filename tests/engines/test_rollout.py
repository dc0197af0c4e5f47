"""The rollout side with the real vLLM: numbers, weights, parking."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from rmux.errors import ConflictError, StaleWeightsError, UserError, WorkerError
from rmux.run import processes
from rmux.run.driver.engines import Response, Sampling
from rmux.run.workers import vllm_gate

PROMPTS = [[(7 * at + 3 * i) % 64 for i in range(5 + at)] for at in range(12)]
LONG = [[(11 * at + i) % 64 for i in range(150)] for at in range(2)]
SAMPLING = Sampling(max_tokens=24, ignore_eos=True)


@pytest.fixture(scope="module")
def rollout(start_rollout: Callable[..., Any]) -> Iterator[Any]:
    one = start_rollout()
    yield one
    one.session.close()


def gap(responses: list[Response], reference: Any, *, temperature: float = 1.0) -> float:
    worst = 0.0
    for response in responses:
        scored = reference.logprobs(
            [*response.prompt_tokens, *response.tokens], temperature=temperature
        )[len(response.prompt_tokens) - 1 :]
        pairs = zip(scored, response.logprobs, strict=True)
        worst = max(worst, *(abs(one - other) for one, other in pairs))
    return worst


def test_every_prompt_gets_its_tokens_with_the_models_own_logprobs(
    rollout: Any, reference: Any
) -> None:
    rollout.wake()
    seen: list[dict[str, int]] = []
    responses = rollout.fleet.generate(
        PROMPTS, sampling=SAMPLING, on_progress=lambda progress: seen.append(dict(progress))
    )
    assert [list(response.prompt_tokens) for response in responses] == PROMPTS
    assert {len(response.tokens) for response in responses} == {24}
    assert {(r.finish_reason, r.weight_version) for r in responses} == {("length", 0)}
    assert gap(responses, reference) < 1e-5
    assert seen[-1] == {"responses_done": 12, "responses": 12, "tokens": 12 * 24}


def test_logprobs_are_those_of_the_sampling_temperature(rollout: Any, reference: Any) -> None:
    rollout.wake()
    sampling = Sampling(temperature=0.7, max_tokens=16, ignore_eos=True)
    responses = rollout.fleet.generate(PROMPTS, sampling=sampling)
    assert gap(responses, reference, temperature=0.7) < 1e-5
    assert gap(responses, reference, temperature=1.0) > 1e-3


def test_what_a_trainer_could_not_reproduce_is_refused(rollout: Any) -> None:
    rollout.wake()
    with pytest.raises(UserError, match=r"top_p = 0\.9 is not supported"):
        rollout.fleet.generate(PROMPTS, sampling=Sampling(top_p=0.9, max_tokens=4))
    with pytest.raises(UserError, match="must have 1 to 376"):
        rollout.fleet.generate([[1] * 390], sampling=SAMPLING)


def test_same_seeds_give_same_tokens_and_logprobs_also_on_a_busy_core(rollout: Any) -> None:
    seeds = list(range(100, 112))

    def once() -> list[Response]:
        rollout.wake()
        responses = rollout.fleet.generate(PROMPTS, sampling=SAMPLING, seeds=seeds)
        rollout.park()
        return responses

    first = once()
    core = rollout.config.nodes[0].cores[0][0]
    burn = f"import os; os.sched_setaffinity(0, {{{core}}})\nwhile True: pass"
    burner = subprocess.Popen([sys.executable, "-c", burn])
    try:
        busy = once()
    finally:
        burner.kill()
        burner.wait()
    assert busy == first
    rollout.wake()
    other = rollout.fleet.generate(PROMPTS, sampling=SAMPLING, seeds=[s + 1 for s in seeds])
    assert [r.tokens for r in other] != [r.tokens for r in first]


def test_default_seeds_differ_between_calls_and_repeat_in_the_next_attempt(rollout: Any) -> None:
    def attempt() -> list[list[Response]]:
        fleet = rollout.new_fleet()
        found = []
        for _ in range(2):
            rollout.wake()
            found.append(fleet.generate(PROMPTS, sampling=SAMPLING))
        return found

    first, second = attempt()
    assert [r.tokens for r in first] != [r.tokens for r in second]
    assert attempt() == [first, second]


def test_a_wake_takes_the_new_weights_in_also_for_prompts_seen_before(
    rollout: Any, reference: Any
) -> None:
    rollout.wake()
    before = rollout.fleet.generate(LONG, sampling=SAMPLING)
    rollout.park()
    reference.move(1)
    rollout.publish(1, reference.tensors())
    (report,) = rollout.wake()
    assert (report.version, report.reloaded) == (1, True)
    after = rollout.fleet.generate(LONG, sampling=SAMPLING)
    assert {response.weight_version for response in after} == {1}
    assert gap(before, reference) > 1e-2
    assert gap(after, reference) < 1e-5


def test_the_gate_passes_right_weights_and_fails_a_head_that_was_not_sent(
    rollout: Any, reference: Any
) -> None:
    sequences = [[(5 * at + i * i) % 64 for i in range(140)] for at in range(2)]
    vllm_gate.check_sequences(sequences, max_model_len=400)
    worker = rollout.handles[0].actor

    def publish_and_compare(version: int) -> float:
        reference.move(version)
        rollout.publish(version, reference.tensors())
        rollout.wake()
        expected = [reference.logprobs(sequence) for sequence in sequences]
        return vllm_gate.compare(expected, rollout.score(sequences), version=version, where="r0/0")

    assert publish_and_compare(10) < vllm_gate.BOUND_FP32
    rollout.session.get(worker.forget_head.remote(True))
    try:
        with pytest.raises(WorkerError, match="weight version 11 at r0/0") as caught:
            publish_and_compare(11)
    finally:
        rollout.session.get(worker.forget_head.remote(False))
    assert caught.value.code == "sync.gate"
    assert caught.value.details["gap"] > 1e-3
    assert publish_and_compare(12) < vllm_gate.BOUND_FP32


def test_weights_that_do_not_cover_the_model_are_refused_and_the_engine_lives_on(
    rollout: Any, reference: Any
) -> None:
    rollout.wake()
    held = rollout.handles[0].version
    tensors = reference.tensors()
    del tensors["model.layers.1.self_attn.k_proj.weight"]
    rollout.publish(20, tensors)
    with pytest.raises(WorkerError, match=r"1 tensors missing, .*k_proj"):
        rollout.wake()
    rollout.publish(21, reference.tensors())
    (report,) = rollout.wake()
    assert report.version == 21 != held
    assert gap(rollout.fleet.generate(PROMPTS, sampling=SAMPLING), reference) < 1e-5


def test_a_version_that_is_too_old_is_not_sampled_from(rollout: Any, reference: Any) -> None:
    rollout.wake()
    held = rollout.trainer_version[0]
    rollout.trainer_version[0] = held + 1
    try:
        with pytest.raises(StaleWeightsError, match=f"the trainer is at {held + 1}"):
            rollout.fleet.generate(PROMPTS, sampling=SAMPLING)
    finally:
        rollout.trainer_version[0] = held


def test_a_parked_worker_uses_no_cpu_and_takes_no_requests(rollout: Any) -> None:
    rollout.wake()
    rollout.fleet.generate(PROMPTS, sampling=SAMPLING)
    rollout.park()
    pid = rollout.session.meet(rollout.handles[0].actor)
    idle = 0
    for _ in range(20):
        before_ns = processes.run_time_ns([pid])
        time.sleep(0.005)
        idle += processes.run_time_ns([pid]) - before_ns < 1_000_000
    assert idle >= 18
    with pytest.raises(ConflictError, match="no rollout worker is awake"):
        rollout.fleet.generate(PROMPTS, sampling=SAMPLING)


def test_every_thread_runs_on_the_devices_core_at_normal_priority(rollout: Any) -> None:
    worker = rollout.handles[0].actor
    cores = list(rollout.config.nodes[0].cores[0])
    found = rollout.session.get(worker.affinities.remote())
    assert len(found) > 10
    assert all(affinity == cores for affinity in found)
    assert set(rollout.session.get(worker.nicenesses.remote())) == {0}


def test_an_interrupted_call_leaves_nothing_running(rollout: Any) -> None:
    rollout.wake()

    def interrupt(_: Any) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        rollout.fleet.generate(
            PROMPTS, sampling=Sampling(max_tokens=200, ignore_eos=True), on_progress=interrupt
        )
    assert rollout.session.get(rollout.handles[0].actor.park.remote()) == 0


def test_the_end_token_ends_a_response_unless_it_is_ignored(rollout: Any) -> None:
    end = 5
    rollout.wake()
    ended = rollout.fleet.generate(PROMPTS * 2, sampling=Sampling(max_tokens=60))
    stopped = [response for response in ended if response.finish_reason == "stop"]
    assert stopped
    for response in ended:
        assert end not in response.tokens[:-1]
        assert (response.tokens[-1] == end) == (response.finish_reason == "stop")
        assert len(response.logprobs) == len(response.tokens)
    ignored = rollout.fleet.generate(PROMPTS * 2, sampling=Sampling(max_tokens=60, ignore_eos=True))
    assert {len(response.tokens) for response in ignored} == {60}
    assert any(end in response.tokens[:-1] for response in ignored)


def test_nothing_is_left_when_the_session_is_closed(
    rollout: Any, left_over: Callable[[str], list[str]]
) -> None:
    tag = rollout.config.run_tag
    assert left_over(tag) != []
    rollout.session.get(rollout.cache.close.remote())
    rollout.session.close()
    assert left_over(tag) == []
