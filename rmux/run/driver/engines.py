"""The seam between a driver and its engines: real ones under Ray, emulated ones in threads."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any, Protocol

from rmux.cluster import DeviceId, Node, PoolKind
from rmux.group import Placement
from rmux.ids import NodeId
from rmux.job import JobSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class DriverConfig:
    """Everything a driver is started with; its runner writes it as JSON and passes the path."""

    job_id: str
    group_id: str
    attempt: int
    spec: JobSpec
    placement: Placement
    nodes: tuple[Node, ...]
    """The nodes the placement names."""
    run_dir: Path
    """The job's folder: attempts, logs, checkpoints."""
    temp_dir: Path
    """A short path: sockets and Ray's own folder live below it."""
    run_tag: str
    """In the environment of every process of the run, and in the names of its shared memory."""
    channel_url: str
    heartbeat_s: float
    gates: tuple[str, ...]
    """Nodes whose runners speak with this driver."""
    tail_trigger: str = "gain"
    """When the last responses of a rollout move together: by predicted 'gain', 'off', or once a
    fixed share such as '0.8' is done."""


SPILL_FOLDER = "spill"
"""Below a job's folder: parked state that is on disk for now."""


class Exactness(StrEnum):
    """What a response that ran in several parts, on one worker after another, is worth."""

    EXACT = "exact"
    """Token for token what one worker would have sampled."""
    SAME_DISTRIBUTION = "same-distribution"
    """Drawn from the same distribution, with other random numbers after a seam."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampling:
    temperature: float = 1.0
    top_p: float = 1.0
    max_tokens: int = 256
    min_tokens: int = 0
    """No end of sequence before so many."""
    ignore_eos: bool = False
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    stop: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Response:
    """One sampled response: `logprobs[i]` is the log-probability of `tokens[i]` when sampled.

    One of several turns holds what its environment said between them: such tokens were not sampled,
    their log-probability is 0 and `mask` is False there.
    """

    prompt_tokens: tuple[int, ...]
    tokens: tuple[int, ...]
    logprobs: tuple[float, ...]
    weight_version: int
    finish_reason: str
    exactness: Exactness = Exactness.EXACT
    mask: tuple[bool, ...] = ()
    """Which tokens were sampled; empty for all."""

    @property
    def num_sampled(self) -> int:
        return sum(self.mask) if self.mask else len(self.tokens)


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """One training sequence: a response and its reward's advantage, the same at each token.

    With a value head the ranks work out an advantage for each token, from `reward`.
    """

    response: Response
    advantage: float = 0.0
    reward: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainReport:
    """Result of one train phase; `metrics` are means over its optimizer steps."""

    steps: int
    max_logprob_gap: float
    """max |trainer - sampled| log-probability over the first micro-batch, before any step."""
    metrics: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class SyncReport:
    version: int
    sent_bytes: int
    seconds: float
    checksum: str


@dataclass(frozen=True, slots=True, kw_only=True)
class InFlight:
    """A response that is not finished."""

    key: int
    device: DeviceId
    """Whose worker samples it, or has it waiting."""
    prompt_tokens: int
    tokens: int
    """Booked so far."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FinishedLength:
    """A response that ended."""

    tokens: int
    at_limit: bool
    """It ran to its `max_tokens`: it might have been longer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MoveReport:
    """What it took to take requests away from workers."""

    requests: int = 0
    """Unfinished ones that go on elsewhere."""
    tokens_carried: int = 0
    """Of their responses so far; no token is sampled twice."""
    tokens_recomputed: int = 0
    """Of their prompts and responses so far: no cache moves, so the new workers prefill them."""
    exact: int = 0
    """Requests that go on token for token as they would have."""
    seconds: float = 0.0


class ShedKind(StrEnum):
    """What a parked job can give up of its host memory."""

    CACHES = "caches"
    """What is made again when it is needed: older weight versions, prefix caches, free heap."""
    SPILL = "spill"
    """The parked state, written to local disk first; the next wake reads it back."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ShedReport:
    what: ShedKind
    freed_bytes: int
    """Host memory of the node that was given back."""


Progress = Callable[[Mapping[str, Any]], None]
"""Called during generation with {'responses_done', 'responses', 'tokens'}."""


class Stream(Protocol):
    """Requests one by one, in any order, until the stream is closed (it is a context manager).

    One thread submits and takes; `Fleet.leave`, `join` and `in_flight` may come from others.
    """

    def __enter__(self) -> Stream: ...

    def __exit__(self, *error: object) -> None:
        """Stops what is unfinished."""

    def submit(self, key: int, prompt: Sequence[int], *, sampling: Sampling, seed: int) -> None:
        """Ask for one response; it is sent off with the next call of `next`, so that what is
        submitted together meets the same batches each time. A key may be used again once its
        response was taken. UserError for what no engine takes, naming the key."""

    def next(self, timeout_s: float) -> tuple[int, Response] | None:
        """The next response that is complete and its key; None after `timeout_s`, or at once when
        nothing is in flight. BackendError when the last worker died."""


class Fleet(Protocol):
    """The job's rollout workers that are awake."""

    def generate(
        self,
        prompts: Sequence[Sequence[int]],
        *,
        sampling: Sampling,
        seeds: Sequence[int] | None = None,
        on_progress: Progress | None = None,
    ) -> list[Response]:
        """One response per prompt, in order. StaleWeightsError past `max_staleness`."""

    def stream(self, *, on_progress: Progress | None = None) -> Stream:
        """Requests one by one; `generate` is this with all of them submitted at once. One stream
        is open at a time."""

    def in_flight(self) -> tuple[InFlight, ...]:
        """Every unfinished response that a worker has. From any thread."""

    def finished_lengths(self) -> tuple[FinishedLength, ...]:
        """Of the responses of the newest stream that ended, in that order. From any thread."""

    def leave(
        self, devices: Sequence[DeviceId], *, homes: Mapping[int, DeviceId] | None = None
    ) -> MoveReport:
        """Stop what runs on these devices and go on with it elsewhere: at its home (key to device),
        else where there is least to do. Nothing is sent there until they join again or are woken
        for another stream. From any thread; ConflictError, with nothing changed, when a request
        could go on nowhere."""

    def join(self, devices: Sequence[DeviceId]) -> int:
        """Workers that were woken take requests from now on: waiting ones first, running ones only
        where that evens the load. Returns how many they took over. From any thread."""


class Trainer(Protocol):
    """The job's data-parallel training ranks."""

    def step(self, samples: Sequence[Sample]) -> TrainReport:
        """One train phase over the samples; refuses them when they are not on-policy."""

    def publish(self, fleet: Fleet) -> SyncReport:
        """Send the new weights to the host weight cache of every rollout node: the sync phase."""


class Engines(Protocol):
    """Every engine of one job. Calls block; each raises BackendError with the worker's stderr."""

    def prepare(self) -> None:
        """The device-free part of init: processes and imports, at low priority."""

    def init(self, kind: PoolKind) -> float:
        """The device part on all devices of one pool; returns seconds. Leaves them parked."""

    def wake(self, kind: PoolKind, devices: Sequence[DeviceId] | None = None) -> float:
        """Host to device, newest weights included; returns seconds.

        With `devices` on these alone, rollout only: others of the pool may run meanwhile.
        """

    def park(self, kind: PoolKind, devices: Sequence[DeviceId] | None = None) -> float:
        """Device to host; afterwards the processes of `pids` use no CPU and no device memory.

        With `devices` on these alone, as in `wake`; nothing may run there any more (`Fleet.leave`).
        """

    def pids(self, device: DeviceId) -> tuple[int, ...]:
        """Processes that run on the device."""

    def fleet(self) -> Fleet: ...

    def trainer(self) -> Trainer: ...

    def save(self, folder: Path) -> int:
        """Write weights and optimizer state below `folder`; returns bytes. Holds no device."""

    def restore(self, folder: Path) -> None:
        """Load what `save` wrote; before the first wake after `init`."""

    def shed(self, what: ShedKind, *, node: NodeId) -> ShedReport | None:
        """Give up host memory of what is parked on the node; None while it is in use there.

        Called from a thread of its own at any time. Whatever needs the state next brings it back:
        bit-equal, at the cost of a cold wake. OSError when the disk refuses; nothing is lost then.
        """

    def spilled(self) -> tuple[NodeId, ...]:
        """Nodes whose state lies on disk now."""

    def versions(self) -> dict[str, str]:
        """Engine name to version."""

    def close(self) -> None:
        """Stop every process the engines started; safe to call twice and half-way through."""
