"""The shape of a job spec and of a cluster file, as pydantic checks it.

Messages are written to follow the key's name: 'slo' + ' is 0.9; …'.
"""

from __future__ import annotations

import re
from typing import Annotated, Literal

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field

from rmux import units
from rmux.errors import QuantityError

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")
_MOST_ITERATIONS = 10**9
MOST_DEVICES = 2**16
"""Of one node."""
_MOST_USD_PER_H = 1_000_000
_MOST = 2**53
"""Of any other count: still exact as a float."""
_FUNCTION = re.compile(r".+\.py:[A-Za-z_]\w*")


def _duration(value: object) -> float:
    return _quantity(value, units.parse_duration_s, "2s, 5m")


def _size(value: object) -> int:
    return round(_quantity(value, units.parse_size_bytes, "64MiB, 8GiB"))


def _rate(value: object) -> float:
    return _quantity(value, units.parse_rate_bps, "200Mbps, 20Gbps")


def _quantity(value: object, parse: object, examples: str) -> float:
    if not isinstance(value, str) or not callable(parse):
        raise ValueError(f"is {value!r}; write a number and a unit in quotes, such as {examples}")
    try:
        return float(parse(value))
    except QuantityError as error:
        raise ValueError(f"cannot be read: {error.message}; {error.hint}") from error


def _name(value: str) -> str:
    if not _NAME.fullmatch(value):
        raise ValueError(
            f"is {value!r}; use letters, digits, '.', '_' and '-', at most 63, first a letter "
            "or a digit"
        )
    return value


def _function(value: str) -> str:
    if not _FUNCTION.fullmatch(value):
        raise ValueError(f"is {value!r}; write 'file.py:name'")
    return value


def _staleness(value: int) -> int:
    if value not in (0, 1):
        raise ValueError(
            f"is {value}; fully asynchronous jobs leave no bubble to fill, so only 0 "
            "(on-policy) and 1 (one step off-policy) are run"
        )
    return value


def _top_p(value: float) -> float:
    if value != 1:
        raise ValueError(
            f"is {value:g}; log-probabilities over a truncated vocabulary are not those the "
            "trainer computes, so only 1 is run"
        )
    return value


def _min_tokens(value: int) -> int:
    if value != 0:
        raise ValueError(
            f"is {value}; where a response may not end yet the sampled log-probabilities leave "
            "out the end token, which those of the trainer have, so only 0 is run"
        )
    return value


def _repetition_penalty(value: float) -> float:
    if value != 1:
        raise ValueError(
            f"is {value:g}; it samples from another distribution than the one the trainer "
            "computes, so only 1 is run"
        )
    return value


def _count_penalty(value: float) -> float:
    if value != 0:
        raise ValueError(
            f"is {value:g}; it counts the response so far, which a worker that continues it would "
            "take for its prompt, and the trainer does not compute it, so only 0 is run"
        )
    return value


def _stop(value: list[str]) -> list[str]:
    if value:
        raise ValueError(
            f"is {value}; a text may lie across the seam of a response that is continued on "
            "another device, so only [] is run; cut the response in the reward, or end it by the "
            "model's end token"
        )
    return value


def _slo(value: float) -> float:
    if not 1 <= value < float("inf"):
        raise ValueError(f"is {value:g}; the smallest slowdown a job can accept is 1")
    return value


Duration = Annotated[float, BeforeValidator(_duration)]
Size = Annotated[int, BeforeValidator(_size)]
Rate = Annotated[float, BeforeValidator(_rate), Field(gt=0)]
Name = Annotated[str, AfterValidator(_name)]
Function = Annotated[str, AfterValidator(_function)]
Count = Annotated[int, Field(ge=1, le=_MOST)]
Fraction = Annotated[float, Field(gt=0, le=1)]
Share = Annotated[float, Field(ge=0, le=1)]


class Section(BaseModel):
    """Exact types, no unknown keys."""

    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)


class ModelSection(Section):
    path: str = ""


class TaskSection(Section):
    prompts: Function | None = None


class RolloutSection(Section):
    devices: Count = 1
    prompts: Count = 16
    samples_per_prompt: Count = 8
    refills: Annotated[int, Field(ge=0, le=16)] | None = None
    max_prompt_tokens: Count = 64
    max_tokens: Count = 256
    max_num_seqs: Count = 128
    temperature: Annotated[float, Field(ge=0)] = 1.0
    top_p: Annotated[Fraction, AfterValidator(_top_p)] = 1.0
    min_tokens: Annotated[int, AfterValidator(_min_tokens)] = 0
    presence_penalty: Annotated[float, AfterValidator(_count_penalty)] = 0.0
    frequency_penalty: Annotated[float, AfterValidator(_count_penalty)] = 0.0
    repetition_penalty: Annotated[float, AfterValidator(_repetition_penalty)] = 1.0
    stop: Annotated[list[str], AfterValidator(_stop)] = Field(default_factory=list)
    dtype: Literal["float32", "bfloat16", "float16"] = "float32"
    kv_cache: Annotated[Size, Field(gt=0)] = 2**30
    migrate: bool | None = None


class TrainSection(Section):
    devices: Count = 1
    micro_batch: Count = 32
    mini_batch: Count = 32
    learning_rate: Annotated[float, Field(ge=0)] = 1e-3
    clip_low: Fraction = 0.2
    clip_high: Annotated[float, Field(gt=0)] | None = None
    mean: Literal["token", "sequence"] = "token"
    kl: Annotated[float, Field(ge=0)] = 0.0
    gamma: Fraction = 1.0
    gae_lambda: Annotated[float, Field(ge=0, le=1)] = 1.0
    value_clip: Annotated[float, Field(gt=0)] = 0.2
    value_weight: Annotated[float, Field(ge=0)] = 0.5
    max_grad_norm: Annotated[float, Field(gt=0)] = 1.0
    zero_stage: Annotated[int, Field(ge=0, le=3)] = 1


class RewardSection(Section):
    function: Function | None = None
    timeout: Annotated[Duration, Field(gt=0)] = 10.0
    time_per_sample: Duration = 0.0
    max_failed: Share = 0.5


class EnvironmentSection(Section):
    function: Function | None = None
    max_turns: Annotated[int, Field(ge=1, le=10_000)] = 8
    turn_tokens: Count | None = None
    timeout: Annotated[Duration, Field(gt=0)] = 10.0
    processes: Annotated[int, Field(ge=1, le=1024)] = 2
    time_per_step: Duration = 0.01
    max_failed: Share = 0.5


class CheckpointSection(Section):
    every: Count = 1
    keep: Count = 2


class EmulatedSection(Section):
    init: Duration = 0.1
    rollout: Duration = 1.0
    train: Duration = 1.0
    sync: Duration = 0.01
    switch: Duration = 0.0
    jitter: Annotated[float, Field(ge=0, lt=1)] = 0.0
    resident: Size = 0
    held: Size = 0
    cache: Size = 0
    leak: Size = 0
    lengths: str = ""
    step: Annotated[Duration, Field(gt=0)] = 0.001
    per_sequence: Duration = 0.0


class SpecFile(Section):
    name: Name
    recipe: Literal["grpo", "dapo", "ppo"] | None = None
    script: str | None = None
    python: str | None = None
    engine: Literal["real", "emulated"] = "real"
    iterations: Annotated[int, Field(ge=1, le=_MOST_ITERATIONS)] = 10
    seed: Annotated[int, Field(ge=0, le=_MOST)] = 0
    max_staleness: Annotated[int, AfterValidator(_staleness)] = 0
    slo: Annotated[float, AfterValidator(_slo)] = 2.0
    restart_limit: Annotated[int, Field(ge=0, le=_MOST)] = 3
    restart_hold: Duration = 120.0
    tenant: Name | Literal[""] = ""
    priority: Annotated[int, Field(ge=-1000, le=1000)] = 0
    deadline: Duration = 0.0
    max_repeats: Annotated[int, Field(ge=1, le=16)] = 1
    movable: bool = True
    labels: dict[str, str] = Field(default_factory=dict)
    model: ModelSection = Field(default_factory=ModelSection)
    task: TaskSection = Field(default_factory=TaskSection)
    rollout: RolloutSection = Field(default_factory=RolloutSection)
    train: TrainSection = Field(default_factory=TrainSection)
    reward: RewardSection = Field(default_factory=RewardSection)
    environment: EnvironmentSection = Field(default_factory=EnvironmentSection)
    checkpoint: CheckpointSection = Field(default_factory=CheckpointSection)
    emulated: EmulatedSection = Field(default_factory=EmulatedSection)


class NodeSection(Section):
    name: str
    host: str | None = None
    device: str | None = None
    cores: list[int] | list[list[int]] | None = None
    devices: Annotated[int, Field(ge=1, le=MOST_DEVICES)] | None = None
    oversubscribe: bool = False
    gpu_uuids: list[str] = Field(default_factory=list)
    host_memory: Annotated[Size, Field(gt=0)]
    reserved_memory: Size = 0


class PoolSection(Section):
    kind: Literal["rollout", "train"]
    hardware: str
    usd_per_device_h: Annotated[float, Field(ge=0, le=_MOST_USD_PER_H)]
    nodes: Annotated[list[NodeSection], Field(min_length=1)]
    max_nodes: Annotated[int, Field(ge=0, le=_MOST)] = 0


class LinkSection(Section):
    source: str = Field(alias="from")
    target: str = Field(alias="to")
    rate: Rate


class TenantSection(Section):
    quota_usd_per_h: Annotated[float, Field(ge=0, le=_MOST_USD_PER_H)] = 0.0
    weight: Annotated[float, Field(gt=0, le=_MOST_USD_PER_H)] = 1.0


class PolicySection(Section):
    rule: Literal["interval", "paper"] = "interval"
    margin: Annotated[float, Field(ge=0, le=10)] = 0.0
    max_members: Annotated[int, Field(ge=0, le=_MOST)] = 0
    ageing: Duration = 0.0
    rebalance: bool = False
    payback: Annotated[Duration, Field(gt=0)] = 3600.0
    drift_quantile: Annotated[float, Field(ge=0, lt=1)] = 0.0


class ClusterFile(Section):
    pools: Annotated[dict[Name, PoolSection], Field(min_length=1)]
    links: list[LinkSection] = Field(default_factory=list)
    tenants: dict[Name, TenantSection] = Field(default_factory=dict)
    policy: PolicySection = Field(default_factory=PolicySection)
