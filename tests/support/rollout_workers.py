"""Rollout workers without an engine, and the session that reaches them: for tests of the fleet.

A token follows from everything before it, the random numbers of its request and the weights, and
its log-probability names all of that: so a response shows whether each of its tokens was sampled
once, in its place, under one version. Workers step, and answers arrive, when `ready` is called, in
an order drawn from a seed; nothing takes time.
"""

from __future__ import annotations

import dataclasses
import pickle
import random
import threading
import zlib
from collections.abc import Callable, Sequence
from typing import Any

from rmux.cluster import DeviceId
from rmux.errors import BackendError
from rmux.run.driver.engines import Response, Sampling
from rmux.run.driver.fleet import RayFleet, RolloutHandle
from rmux.run.workers.step_loop import Delta
from rmux.run.workers.vllm import Stopped
from rmux.run.workers.vllm_engine import Admission, Request

MAX_MODEL_LEN = 200
_END_SHARE = 25
_STREAM_STEPS = 4


def logprob_of(version: int, context: Sequence[int], token: int) -> float:
    """What a worker of that version says of `token` after `context`."""
    return -float(zlib.crc32(repr((version, list(context), token)).encode()) % 10**6)


@dataclasses.dataclass
class _Running:
    request: Request
    numbers: random.Random
    tokens: list[int] = dataclasses.field(default_factory=list)
    logprobs: list[float] = dataclasses.field(default_factory=list)
    handed_out: int = 0


class StandInWorker:
    """Serves its requests in order, `max_num_seqs` at a time, four tokens to a delta."""

    def __init__(self, *, version: int = 0, max_num_seqs: int = 4, carries: bool = True) -> None:
        self.version = version
        self.carries = carries
        self.dead = False
        self.starved: set[str] = set()
        """Requests for which there is no room in the cache."""
        self.submits: list[list[Request]] = []
        self._max_num_seqs = max_num_seqs
        self._running: dict[str, _Running] = {}
        self._outbox: list[tuple[int, Delta]] = []
        self._sequence = 0

    @property
    def serves(self) -> list[str]:
        return list(self._running)

    def forget(self, request_id: str) -> None:
        """As an engine that lost a request."""
        del self._running[request_id]

    def submit(self, requests: Sequence[Request]) -> Admission:
        self.submits.append(list(requests))
        taken = []
        for request in requests:
            assert 1 <= len(request.prompt) <= MAX_MODEL_LEN - request.sampling.max_tokens
            assert 0 <= request.sampling.min_tokens <= request.sampling.max_tokens
            numbers = random.Random(request.seed)
            if self.carries and request.generator_state is not None:
                numbers.setstate(pickle.loads(request.generator_state))
                taken.append(request.id)
            assert request.id not in self._running
            self._running[request.id] = _Running(request, numbers)
        return Admission(version=self.version, states_taken=tuple(taken))

    def stop(self, ids: Sequence[str], cursor: int) -> Stopped:
        states = {}
        for request_id in [each for each in ids if each in self._running]:
            running = self._running[request_id]
            if self.carries:
                self._hand_out(running, "")
                state = pickle.dumps(running.numbers.getstate())
                states[request_id] = (len(running.tokens), state)
        self.abort(ids)
        after, deltas = self.poll(cursor, 0.0)
        return Stopped(cursor=after, deltas=deltas, states=states)

    def queued(self, ids: Sequence[str]) -> tuple[str, ...]:
        waiting = [*self.serves[self._max_num_seqs :], *self.starved]
        return tuple(each for each in ids if each in waiting)

    def abort(self, ids: Sequence[str]) -> None:
        for request_id in ids:
            self._running.pop(request_id, None)

    def poll(self, cursor: int, timeout_s: float) -> tuple[int, tuple[Delta, ...]]:
        self._outbox = [entry for entry in self._outbox if entry[0] > cursor]
        after = self._outbox[-1][0] if self._outbox else cursor
        return after, tuple(delta for _, delta in self._outbox)

    def step(self) -> None:
        for running in list(self._running.values())[: self._max_num_seqs]:
            if running.request.id in self.starved:
                continue
            sampling = running.request.sampling
            context = [*running.request.prompt, *running.tokens]
            number = 0 if sampling.temperature == 0 else running.numbers.getrandbits(30)
            token = zlib.crc32(repr((self.version, context, number)).encode()) % 1000
            may_end = not sampling.ignore_eos and len(running.tokens) + 1 >= sampling.min_tokens
            if token < _END_SHARE and not may_end:
                token += 500
            running.tokens.append(token)
            running.logprobs.append(logprob_of(self.version, context, token))
            reason = "stop" if token < _END_SHARE else ""
            if not reason and len(running.tokens) == sampling.max_tokens:
                reason = "length"
            if reason or len(running.tokens) - running.handed_out == _STREAM_STEPS:
                self._hand_out(running, reason)
            if reason:
                del self._running[running.request.id]

    def _hand_out(self, running: _Running, reason: str) -> None:
        at, running.handed_out = running.handed_out, len(running.tokens)
        delta = Delta(
            request_id=running.request.id,
            offset=at,
            tokens=tuple(running.tokens[at:]),
            logprobs=tuple(running.logprobs[at:]),
            finish_reason=reason,
        )
        if delta.tokens:
            self._sequence += 1
            self._outbox.append((self._sequence, delta))


@dataclasses.dataclass(eq=False)
class _Ref:
    call: Callable[[], Any]
    worker: StandInWorker
    value: Any = None
    done: bool = False


class _Method:
    def __init__(self, actor: StandInActor, name: str) -> None:
        self._actor, self._name = actor, name

    def remote(self, *args: Any) -> _Ref:
        worker = self._actor.worker
        ref = _Ref(lambda: getattr(worker, self._name)(*args), worker)
        if self._name != "poll":
            self._actor.session.evaluate(ref)
        return ref


class StandInActor:
    def __init__(self, worker: StandInWorker, session: StandInSession) -> None:
        self.worker, self.session = worker, session

    def __getattr__(self, name: str) -> _Method:
        return _Method(self, name)


class StandInSession:
    """Like RaySession, of workers that live in this very thread."""

    def __init__(self, seed: int = 0) -> None:
        self.workers: list[StandInWorker] = []
        self._random = random.Random(seed)
        self._lock = threading.RLock()

    def evaluate(self, ref: _Ref) -> None:
        with self._lock:
            if not ref.done and not ref.worker.dead:
                ref.value, ref.done = ref.call(), True

    def get(self, ref: _Ref, *, timeout_s: float | None = None, what: str = "") -> Any:
        self.evaluate(ref)
        if not ref.done:
            raise BackendError("the stand-in died", code="backend.died")
        return ref.value

    def ready(self, refs: list[_Ref], *, timeout_s: float) -> list[_Ref]:
        """Everybody steps a little; some of the answers, also older ones, arrive."""
        with self._lock:
            for worker in self.workers:
                for _ in range(self._random.randrange(4)):
                    worker.step()
            for ref in refs:
                if self._random.random() < 0.7:
                    self.evaluate(ref)
            arrived = [ref for ref in refs if (ref.done or ref.worker.dead)]
            return [ref for ref in arrived if self._random.random() < 0.7]


def make_fleet(
    count: int = 3, *, seed: int = 0, versions: Sequence[int] = (), **options: Any
) -> tuple[RayFleet, StandInSession, list[RolloutHandle]]:
    """A fleet of `count` awake stand-ins, r/0 and on."""
    session = StandInSession(seed)
    handles = []
    for index in range(count):
        version = versions[index] if versions else 0
        worker = StandInWorker(version=version)
        session.workers.append(worker)
        actor = StandInActor(worker, session)
        handles.append(RolloutHandle(device=f"r/{index}", actor=actor, awake=True, version=version))
    fleet = RayFleet(
        session,  # type: ignore[arg-type]
        handles,
        **{
            "max_model_len": MAX_MODEL_LEN,
            "max_num_seqs": 4,
            "max_staleness": 1,
            "seed": 0,
            "trainer_version": lambda: 0,
            **options,
        },
    )
    return fleet, session, handles


def device(index: int) -> DeviceId:
    return DeviceId.parse(f"r/{index}")


def alone(prompt: Sequence[int], *, sampling: Sampling, seed: int, version: int = 0) -> list[int]:
    """The tokens of a request that nothing interrupts."""
    worker = StandInWorker(version=version)
    worker.submit([Request(id="alone", prompt=tuple(prompt), seed=seed, sampling=sampling)])
    tokens: list[int] = []
    while worker.serves:
        worker.step()
    for delta in worker.poll(0, 0.0)[1]:
        tokens += delta.tokens
    return tokens


def check_response(response: Response, *, prompt: Sequence[int], sampling: Sampling) -> None:
    """Every token was sampled once, after those before it, under the version of the response."""
    assert list(response.prompt_tokens) == list(prompt)
    assert sampling.min_tokens <= len(response.tokens) <= sampling.max_tokens
    for at, (token, logprob) in enumerate(zip(response.tokens, response.logprobs, strict=True)):
        context = [*prompt, *response.tokens[:at]]
        assert logprob == logprob_of(response.weight_version, context, token)
        assert token >= _END_SHARE or at == len(response.tokens) - 1
    ended = response.tokens[-1] < _END_SHARE
    assert response.finish_reason == ("stop" if ended else "length")
    assert ended or len(response.tokens) == sampling.max_tokens
