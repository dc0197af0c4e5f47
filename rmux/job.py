"""What a user asks for: a job's spec, its states and its record."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum

from rmux.errors import ConflictError
from rmux.ids import GroupId, JobId, ProfileId


class Phase(StrEnum):
    INIT = "init"
    ROLLOUT = "rollout"
    TRAIN = "train"
    SYNC = "sync"


class Engine(StrEnum):
    REAL = "real"
    EMULATED = "emulated"


class JobState(StrEnum):
    PENDING = "pending"
    PLACED = "placed"
    STARTING = "starting"
    RUNNING = "running"
    PAUSED = "paused"
    STOPPING = "stopping"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"
    LOST = "lost"

    @property
    def is_terminal(self) -> bool:
        return self in _TERMINAL

    def check_next(self, target: JobState) -> None:
        """ConflictError when a job in this state cannot go to `target`."""
        if target not in _NEXT[self]:
            raise ConflictError(
                f"a job that is {self} cannot become {target}",
                details={"state": str(self), "wanted": str(target)},
            )


_TERMINAL = frozenset({JobState.SUCCEEDED, JobState.FAILED, JobState.CANCELLED})
_ACTIVE = {JobState.STARTING, JobState.RUNNING, JobState.PAUSED, JobState.STOPPING, JobState.LOST}
_NEXT: dict[JobState, frozenset[JobState]] = {
    JobState.PENDING: frozenset({JobState.PLACED, JobState.FAILED, JobState.CANCELLED}),
    JobState.PLACED: frozenset({JobState.PENDING, *_ACTIVE, *_TERMINAL}),
    JobState.STARTING: frozenset({JobState.PLACED, *_ACTIVE, *_TERMINAL}),
    JobState.RUNNING: frozenset({JobState.PLACED, *_ACTIVE, *_TERMINAL}),
    JobState.PAUSED: frozenset({JobState.PLACED, *_ACTIVE, *_TERMINAL}),
    JobState.STOPPING: frozenset({JobState.PLACED, *_ACTIVE, *_TERMINAL}),
    JobState.LOST: frozenset({JobState.PENDING, JobState.PLACED, *_ACTIVE, *_TERMINAL}),
    JobState.SUCCEEDED: frozenset(),
    JobState.FAILED: frozenset(),
    JobState.CANCELLED: frozenset(),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutSpec:
    devices: int = 1
    prompts: int = 16
    """Prompts per iteration."""
    samples_per_prompt: int = 8
    refills: int = 0
    """Times per iteration that prompts whose responses all earned the same are replaced."""
    max_prompt_tokens: int = 64
    max_tokens: int = 256
    """Token limit of one response; the worst case of the rollout."""
    max_num_seqs: int = 128
    """Sequences that decode together on one device."""
    temperature: float = 1.0
    top_p: float = 1.0
    dtype: str = "float32"
    kv_cache_bytes: int = 2**30
    """Per device."""
    migrate: bool | None = None
    """Whether it takes its devices one by one and gives single ones back early; None: as fits."""

    @property
    def num_samples(self) -> int:
        """Responses that are trained on in an iteration."""
        return self.prompts * self.samples_per_prompt


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainSpec:
    devices: int = 1
    """Data-parallel degree."""
    micro_batch: int = 32
    """Sequences per forward and backward pass on one device."""
    mini_batch: int = 32
    """Sequences per optimizer step."""
    learning_rate: float = 1e-3
    clip_low: float = 0.2
    clip_high: float = 0.2
    mean: str = "token"
    """Over what the loss is averaged: 'token', or 'sequence' of means over its own tokens."""
    kl: float = 0.0
    """Weight of the divergence from the model at `model_path`; 0 keeps no copy of it."""
    gamma: float = 1.0
    """Discount per token; with a value head."""
    gae_lambda: float = 1.0
    value_clip: float = 0.2
    """How far a value may move in one train phase before its loss stops pulling."""
    value_weight: float = 0.5
    """Of the value loss."""
    max_grad_norm: float = 1.0
    zero_stage: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class RewardSpec:
    function: str = ""
    """'file.py:name'; called as name(prompt: str, response: str) -> float in a sandbox."""
    timeout_s: float = 10.0
    """Deadline of one call; a call that is late fails its sample, not the phase."""
    seconds_per_sample: float = 0.0
    """Worst-case time of one call, for the plan."""
    max_failed: float = 0.5
    """Fraction of an iteration's calls that may fail; beyond it the job fails."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EnvironmentSpec:
    """Rollouts of several turns; without a function there is one turn and no environment."""

    function: str = ""
    """'file.py:name' of a class or factory of environments with reset and step."""
    max_turns: int = 8
    turn_tokens: int = 0
    """Most tokens sampled in one turn; 0 for what is left of `rollout.max_tokens`."""
    timeout_s: float = 10.0
    """Deadline of one call; a call that is late fails its episode, not the phase."""
    processes: int = 2
    """Sandboxes among which the episodes are shared out."""
    seconds_per_step: float = 0.01
    """Worst-case time of one call, for the plan."""
    max_failed: float = 0.5
    """Fraction of an iteration's episodes that may fail; beyond it the job fails."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointSpec:
    every: int = 1
    """Iterations between checkpoints."""
    keep: int = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class EmulatedSpec:
    """Phase durations of emulated engines, seconds."""

    init_s: float = 0.1
    rollout_s: float = 1.0
    train_s: float = 1.0
    sync_s: float = 0.01
    switch_s: float = 0.0
    jitter: float = 0.0
    """Uniform +- fraction of each duration, from the job's seed."""
    resident_bytes: int = 0
    """Host memory held per node, for the plan."""
    held_bytes: int = 0
    """Really held as parked state on the job's first train node."""
    cache_bytes: int = 0
    """Really held there on top from each wake to the next shedding of caches."""
    leak_bytes: int = 0
    """By which the state grows with every train phase."""
    lengths: str = ""
    """'file' or 'file:set' of response lengths, tokens: rollouts decode them one by one, in batches
    of up to `max_num_seqs` per device, instead of taking `rollout_s`."""
    step_s: float = 0.001
    """Of a decoding step, besides `per_seq_s` for each of its responses."""
    per_seq_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class JobSpec:
    """One job as the user wrote it; paths are absolute. Exactly one of recipe and script is set."""

    name: str
    recipe: str | None = "grpo"
    script: str | None = None
    python: str | None = None
    engine: Engine = Engine.REAL
    iterations: int = 10
    seed: int = 0
    max_staleness: int = 0
    slo: float = 2.0
    """Largest slowdown accepted: co-executed ÷ solo period, at least 1."""
    restart_limit: int = 3
    """Attempts after the first before a failing job is given up."""
    restart_hold_s: float = 120.0
    """How long a failed job keeps its place."""
    tenant: str = ""
    """Whose quota and weight it counts against; empty for nobody's."""
    priority: int = 0
    """Among waiting jobs the higher goes first."""
    deadline_s: float = 0.0
    """Wanted end, counted from submission; 0 for none."""
    max_repeats: int = 1
    """Iterations that a plan may fit into one round of the group; 1 is strict round-robin."""
    movable: bool = True
    """Whether a rebalance may move it to another group."""
    model_path: str = ""
    task_module: str = ""
    """'file.py:name' of the prompt source; called as name(rng, count) -> list[str]."""
    rollout: RolloutSpec = field(default_factory=RolloutSpec)
    train: TrainSpec = field(default_factory=TrainSpec)
    reward: RewardSpec = field(default_factory=RewardSpec)
    environment: EnvironmentSpec = field(default_factory=EnvironmentSpec)
    checkpoint: CheckpointSpec = field(default_factory=CheckpointSpec)
    emulated: EmulatedSpec = field(default_factory=EmulatedSpec)
    labels: tuple[tuple[str, str], ...] = ()

    @property
    def migrates(self) -> bool:
        """Whether its rollout takes its devices one by one as they come, and gives back those that
        its last responses do not need. A script has to ask for it."""
        if self.rollout.devices < 2 or not self.engine_moves:
            return False
        asked = self.rollout.migrate
        return self.script is None if asked is None else asked

    @property
    def engine_moves(self) -> bool:
        """Whether single responses can move: emulated ones only where they have lengths."""
        return self.engine is Engine.REAL or bool(self.emulated.lengths)


@dataclass(frozen=True, slots=True, kw_only=True)
class Reason:
    """Why a job is where it is: a stable code, a sentence with numbers."""

    code: str = "none"
    message: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """A stored job. `iteration` counts finished ones; `desired` is what the user asked for."""

    id: JobId
    spec: JobSpec
    spec_hash: str
    state: JobState
    created_at: datetime
    user: str = ""
    reason: Reason = field(default_factory=Reason)
    group_id: GroupId | None = None
    profile_id: ProfileId | None = None
    iteration: int = 0
    attempt: int = 1
    desired: str = "run"
    """'run', 'cancel' (at the next iteration boundary), 'cancel-now', 'pause'."""
    phase: Phase | None = None
    phase_state: str = ""
    """'waiting' or 'running'."""
    reward_first: float | None = None
    reward_last: float | None = None
    error: str = ""
    """Last lines of stderr of the attempt that failed."""
    run_dir: str = ""
    started_at: datetime | None = None
    ended_at: datetime | None = None
