"""The tail of a rollout: whether its stragglers move together now, and which devices that frees.

Most responses of a rollout end early and a few keep every device. Moving those few onto k of the n
devices gives the others to the next job. It pays when the device-seconds that the next job gets
exceed what the tail loses: the moved responses are prefilled again (no cache moves), and more
sequences per device decode more slowly. How long the tail lasts is read from the job's own lengths.

RollMux moves once, when 80 % of the responses are done (`trigger=0.8`). That frees next to nothing
where more than a fifth of them run to the limit, and waits too long where few do.

The next job's planned start holds either way: a device is kept only if the tail's worst case, every
response at the limit, ends there before that start. Responses move between devices of one kind.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from rmux.cluster import DeviceId
from rmux.place.lengths import Survival

_SHARES = (0.75, 0.5, 0.35, 0.25, 0.15, 0.1, 0.05, 0.025)
"""Of the responses unfinished now, what is left when a later move is looked at."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Response:
    """One that is not finished."""

    device: DeviceId
    tokens: int
    """Generated so far."""
    prompt_tokens: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class TailDevice:
    id: DeviceId
    hardware: str
    max_seqs: int
    """Sequences that decode together."""
    kv_tokens: int
    """Tokens that its cache holds."""
    next_start_s: float | None = None
    """From now to the planned start of the next job there; None when nobody else uses it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rollout:
    """A rollout under way, as far as this decision needs it."""

    total: int
    """Responses of the iteration."""
    unfinished: tuple[Response, ...]
    devices: tuple[TailDevice, ...]
    """Those it still holds."""
    elapsed_s: float
    next_ready_s: float | None
    """From now until the next job could use a freed device: 0 when it waits for one already, None
    when nobody will."""
    given: int = 0
    """Devices given up before."""
    moved_before: bool = False
    """Whether its stragglers were moved already; the fixed trigger does so once."""

    @property
    def done(self) -> float:
        """Share of the responses that are finished."""
        return 1.0 - len(self.unfinished) / self.total


@dataclass(frozen=True, slots=True, kw_only=True)
class Speed:
    """Decoding on one device: a step takes `step_s + per_seq_s x sequences`."""

    step_s: float
    per_seq_s: float = 0.0
    prefill_s_per_token: float = 0.0
    move_s: float = 0.0
    """What moving costs besides: stop, announce, continue."""

    def of(self, sequences: int) -> float:
        """Seconds per token of each of so many sequences."""
        return self.step_s + self.per_seq_s * sequences


@dataclass(frozen=True, slots=True, kw_only=True)
class TailDecision:
    reason: str
    """Why, in a sentence with numbers."""
    freed: tuple[DeviceId, ...] = ()
    """To be given up now; empty when nothing changes."""
    homes: Mapping[int, DeviceId] = field(default_factory=dict)
    """Where each response of a freed device goes on: index in `unfinished` -> device."""
    rest_s: float = 0.0
    """Expected time to the end of the rollout as it is."""
    rest_after_s: float = 0.0
    """And after the move."""
    freed_device_s: float = 0.0
    """Expected use of the freed devices to the next job."""
    cost_device_s: float = 0.0
    """Expected loss by the rollout itself, on all its devices."""

    @property
    def gain_device_s(self) -> float:
        return self.freed_device_s - self.cost_device_s


def decide(
    rollout: Rollout,
    *,
    history: Survival,
    speed: Speed,
    trigger: float | None = None,
    least_gain_device_s: float = 0.0,
) -> TailDecision:
    """What to do now. With `trigger` the paper's rule: once that share is done, the stragglers move
    to as few devices as hold them; else the move of the largest gain above `least_gain_device_s`.
    """
    if not rollout.unfinished:
        return TailDecision(reason="every response is finished")
    if trigger is not None and (rollout.moved_before or rollout.done < trigger):
        word = "moved already" if rollout.moved_before else f"{trigger:.0%} are to be"
        return TailDecision(reason=f"{rollout.done:.0%} of the responses are done; {word}")
    if trigger is None and rollout.next_ready_s is None:
        return TailDecision(reason="no job will take the devices")
    if trigger is None and (rollout.next_ready_s or 0.0) > speed.move_s:
        return TailDecision(reason=f"the next job is ready in {rollout.next_ready_s:.1f} s only")
    now = _Now(rollout, history, speed)
    found = [move for kept in range(1, len(rollout.devices)) if (move := now.keep(kept))]
    if not found:
        return TailDecision(reason="no smaller set of devices holds the tail", rest_s=now.rest_s)
    if trigger is not None:
        return found[0]
    best = max(found, key=lambda move: move.gain_device_s)
    later_s, later_device_s = now.best_later() if best.homes else (0.0, 0.0)
    if best.gain_device_s > max(least_gain_device_s, later_device_s):
        return best
    if best.gain_device_s > least_gain_device_s:
        reason = (
            f"freeing {len(best.freed)} devices gains {best.gain_device_s:.1f} device-seconds; a "
            f"move in {later_s:.1f} s is foreseen to gain {later_device_s:.1f}"
        )
        return TailDecision(reason=reason, rest_s=now.rest_s)
    return TailDecision(
        reason=f"freeing {len(best.freed)} devices gains {best.freed_device_s:.1f} device-seconds "
        f"and costs {best.cost_device_s:.1f}",
        rest_s=now.rest_s,
    )


class _Now:
    """What every move is compared with."""

    def __init__(self, rollout: Rollout, history: Survival, speed: Speed) -> None:
        self.rollout, self.history, self.speed = rollout, history, speed
        self.on: dict[DeviceId, list[int]] = {device.id: [] for device in rollout.devices}
        for index, response in enumerate(rollout.unfinished):
            self.on[response.device].append(index)
        so_far = [response.tokens for response in rollout.unfinished]
        self.rest_tokens = history.longest_left(so_far)
        self.worst_tokens = max(0, history.limit_tokens - min(so_far))
        means = {tokens: history.mean_left(tokens) for tokens in set(so_far)}
        self.left_tokens = sum(means[tokens] for tokens in so_far)
        """Expected, of all together."""
        self.rest_s = self._rest_s(len(rollout.devices))
        self.kv = [r.prompt_tokens + r.tokens + means[r.tokens] for r in rollout.unfinished]

    def keep(self, count: int) -> TailDecision | None:
        """The move onto `count` devices; None where they cannot hold the tail in time."""
        least_step_s = self.speed.of(-(-len(self.rollout.unfinished) // count))
        kept = self._chosen(count)
        if kept is None or not self._in_time(kept, least_step_s):
            return None
        homes = self._homes(kept)
        if homes is None:
            return None
        unfinished = self.rollout.unfinished
        loads = {device.id: len(self.on[device.id]) for device in kept}
        prefills = dict.fromkeys(loads, 0)
        for index, home in homes.items():
            loads[home] += 1
            prefills[home] += unfinished[index].prompt_tokens + unfinished[index].tokens
        pause_s = self.speed.prefill_s_per_token * max(prefills.values())
        if homes:
            pause_s += self.speed.move_s
        if not self._in_time(kept, self.speed.of(max(loads.values())), pause_s=pause_s):
            return None
        return self._priced(kept, homes, rest_after_s=pause_s + self._rest_s(count))

    def best_later(self) -> tuple[float, float]:
        """(seconds from now, gain in device-seconds) of the best single move still to come, by the
        expected lengths: fewer responses move then, onto fewer devices, and less is left."""
        unfinished, held = self.rollout.unfinished, len(self.rollout.devices)
        so_far = round(sum(one.tokens for one in unfinished) / len(unfinished))
        prompt = sum(one.prompt_tokens for one in unfinished) / len(unfinished)
        seqs = min(device.max_seqs for device in self.rollout.devices)
        best = (0.0, 0.0)
        for share in _SHARES:
            tokens = self.history.until(so_far, share)
            in_s = tokens * self.speed.of(round(len(unfinished) / held))
            count = len(unfinished) * self.history.left(so_far, tokens)
            used_s = self.rest_s - in_s
            if count < 1 or used_s <= 0:
                continue
            left = self.history.mean_left(min(so_far + int(tokens), self.history.limit_tokens - 1))
            for kept in range(max(1, math.ceil(count / seqs)), held):
                prefills = math.ceil(count / held * (held - kept) / kept) * (
                    prompt + so_far + tokens
                )
                late_s = (
                    self.speed.move_s
                    + self.speed.prefill_s_per_token * prefills
                    + self.speed.per_seq_s * count * left * (1 / kept - 1 / held)
                )
                gain = (held - kept) * used_s - (held + self.rollout.given) * late_s
                best = max(best, (in_s, gain), key=lambda found: found[1])
        return best

    def _rest_s(self, devices: int) -> float:
        """Expected time to the end on so many: a step lasts as long as those are many that run in
        it, which is fewer and fewer of them."""
        crowd_tokens = self.left_tokens / devices
        return self.speed.step_s * self.rest_tokens + self.speed.per_seq_s * crowd_tokens

    def _in_time(self, kept: Sequence[TailDevice], step_s: float, *, pause_s: float = 0.0) -> bool:
        """Whether even the worst case is over by every planned start on these devices."""
        worst_s = pause_s + self.worst_tokens * step_s
        return all(one.next_start_s is None or worst_s <= one.next_start_s for one in kept)

    def _priced(
        self, kept: Sequence[TailDevice], homes: dict[int, DeviceId], *, rest_after_s: float
    ) -> TailDecision:
        devices, stay = self.rollout.devices, {device.id for device in kept}
        freed = tuple(device.id for device in devices if device.id not in stay)
        ready_s = self.rollout.next_ready_s
        used_s = 0.0 if ready_s is None else max(0.0, self.rest_s - ready_s)
        gained = len(freed) * used_s
        # The job's own loop is late by this much, with the devices given up before as well.
        lost = (self.rollout.given + len(devices)) * max(0.0, rest_after_s - self.rest_s)
        return TailDecision(
            reason=f"{len(self.rollout.unfinished)} responses go on for {rest_after_s:.1f} s on "
            f"{len(kept)} of {len(devices)} devices; freed: {gained:.1f} device-seconds, "
            f"cost: {lost:.1f}",
            freed=freed,
            homes=homes,
            rest_s=self.rest_s,
            rest_after_s=rest_after_s,
            freed_device_s=gained,
            cost_device_s=lost,
        )

    def _chosen(self, count: int) -> list[TailDevice] | None:
        """The devices to keep: of every kind that has responses at least one, then those that
        nobody waits for, then those with most to prefill elsewhere."""

        def worth(device: TailDevice) -> tuple[bool, float, int, DeviceId]:
            start_s = device.next_start_s
            held = sum(self.rollout.unfinished[index].tokens for index in self.on[device.id])
            return (start_s is not None, -(start_s or 0.0), -held, device.id)

        ranked = sorted(self.rollout.devices, key=worth)
        firsts = {
            device.hardware: device
            for device in reversed(ranked)
            if any(self.on[d.id] for d in ranked if d.hardware == device.hardware)
        }
        if len(firsts) > count:
            return None
        chosen = list(firsts.values())
        chosen += [device for device in ranked if device not in chosen][: count - len(chosen)]
        return chosen

    def _homes(self, kept: Sequence[TailDevice]) -> dict[int, DeviceId] | None:
        """A device of its own kind for every response that has to move, the longest first onto the
        emptiest; None where one does not fit."""
        hardware = {device.id: device.hardware for device in self.rollout.devices}
        room = {d.id: d.max_seqs - len(self.on[d.id]) for d in kept}
        free_kv = {d.id: d.kv_tokens - sum(self.kv[i] for i in self.on[d.id]) for d in kept}
        if any(seqs < 0 for seqs in room.values()):
            return None
        if sum(room.values()) + sum(len(self.on[one]) for one in room) < len(self.kv):
            return None
        homes: dict[int, DeviceId] = {}
        moving = [i for device, held in self.on.items() if device not in room for i in held]
        for index in sorted(moving, key=lambda index: -self.kv[index]):
            kind = hardware[self.rollout.unfinished[index].device]
            fitting = [
                device.id
                for device in kept
                if device.hardware == kind
                and room[device.id] > 0
                and free_kv[device.id] >= self.kv[index]
            ]
            if not fitting:
                return None
            home = max(fitting, key=lambda device: (room[device], free_kv[device]))
            homes[index] = home
            room[home] -= 1
            free_kv[home] -= self.kv[index]
        return homes
