"""The worst case of one iteration in tokens: every response at its limit."""

from __future__ import annotations

from dataclasses import dataclass

from rmux.job import JobSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """What one iteration does at most, on one device of each pool."""

    waves: tuple[int, ...]
    """Sequences that decode together on a rollout device, one entry per wave; refills included."""
    prompt_tokens: int
    response_tokens: int
    """Of each sequence."""
    prefill_tokens: int
    """Of each sequence, over all its turns: without a cache each turn reads again what was."""
    train_sequences: int
    micro_batches: int
    """Forward and backward passes of a train device."""

    @property
    def decode_steps(self) -> int:
        return len(self.waves) * self.response_tokens

    @property
    def sequence_tokens(self) -> int:
        return self.prompt_tokens + self.response_tokens

    @property
    def train_tokens(self) -> int:
        return self.train_sequences * self.sequence_tokens


def workload_of(spec: JobSpec, *, kv_bytes_per_token: int) -> Workload:
    """Fewer sequences than `max_num_seqs` decode together when the KV cache holds no more."""
    rollout, train = spec.rollout, spec.train
    sequence_tokens = rollout.max_prompt_tokens + rollout.max_tokens
    held = rollout.kv_cache_bytes // max(1, kv_bytes_per_token * sequence_tokens)
    together = max(1, min(rollout.max_num_seqs, held))
    here = -(-rollout.num_samples // rollout.devices)
    full, rest = divmod(here, together)
    trained = -(-rollout.num_samples // train.devices)
    further_turns = spec.environment.max_turns - 1 if spec.environment.function else 0
    turn_tokens = rollout.max_prompt_tokens + rollout.max_tokens // 2
    return Workload(
        waves=((together,) * full + ((rest,) if rest else ())) * (1 + rollout.refills),
        prompt_tokens=rollout.max_prompt_tokens,
        response_tokens=rollout.max_tokens,
        prefill_tokens=rollout.max_prompt_tokens + further_turns * turn_tokens,
        train_sequences=trained,
        micro_batches=-(-trained // train.micro_batch),
    )


def reward_s(spec: JobSpec) -> float:
    """Longest time that the rewards of one iteration take, seconds.

    The recipe scores between the phases, when its own rollout is over and its train has not begun.
    A plan adds it to the rollout: holding the devices that long is never shorter than what happens.
    Each call takes the time that the spec states for it, and none is waited for beyond its
    deadline; calls run one after the other at worst. A spec that states no time plans for none.
    Rewards that decide on a refill are waited for in the phase, `held_reward_s` for each.
    """
    return _stated_reward_s(spec) + spec.rollout.refills * held_reward_s(spec)


def environment_s(spec: JobSpec) -> float:
    """Longest time that a rollout phase waits for its environments, seconds.

    One `reset` and at most `max_turns` steps per episode, one after the other in each of the
    `processes`, while no device has anything to sample: that is the worst. None is waited for
    beyond its deadline. 0 without an environment.
    """
    found = spec.environment
    if not found.function:
        return 0.0
    episodes = -(-spec.rollout.num_samples // found.processes)
    rounds = 1 + spec.rollout.refills
    call_s = min(found.seconds_per_step, found.timeout_s)
    return rounds * episodes * (found.max_turns + 1) * call_s


def held_reward_s(spec: JobSpec) -> float:
    """How long a rollout phase waits for the rewards that decide on one refill, seconds.

    What the spec states for them all, or, where it states nothing, the deadline of one call. None
    for an environment's, which come with the episode.
    """
    if spec.environment.function:
        return 0.0
    return _stated_reward_s(spec) or spec.reward.timeout_s


def _stated_reward_s(spec: JobSpec) -> float:
    reward = spec.reward
    return spec.rollout.num_samples * min(reward.seconds_per_sample, reward.timeout_s)
