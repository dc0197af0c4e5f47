"""The numbers that placement needs of one job, in the units that decisions add up."""

from __future__ import annotations

from rmux.estimate import JobProfile
from rmux.group import Member, one_ahead_s


class Needs:
    """The numbers of one job: seconds with the switch, bytes per node."""

    __slots__ = (
        "bits",
        "cap_s",
        "checkpoint_s",
        "expected_s",
        "longest_sync_s",
        "off_s",
        "peak_bytes",
        "plain",
        "repeats",
        "rollout_bytes",
        "rollout_s",
        "solo_s",
        "stale",
        "sync_s",
        "train_bytes",
        "train_s",
    )

    def __init__(
        self,
        profile: JobProfile,
        *,
        slo: float,
        max_staleness: int,
        max_repeats: int,
        asked_solo_s: float = 0.0,
    ) -> None:
        rollout, train = profile.rollout, profile.train
        self.rollout_s = rollout.worst_s + rollout.switch_s
        self.train_s = train.worst_s + train.switch_s
        self.sync_s, self.checkpoint_s = profile.sync_s, profile.checkpoint_s
        self.off_s = self.sync_s + self.checkpoint_s
        self.bits = 8.0 * profile.sync_bytes
        self.stale = max_staleness > 0
        self.solo_s = self.loop_s(self.off_s)
        """Of its loop alone, on the devices it has."""
        self.cap_s = slo * (asked_solo_s or self.solo_s)
        """Longest iteration that keeps its promise."""
        self.repeats = max_repeats
        self.plain = not self.stale and max_repeats <= 1
        both = (rollout.expected_s, train.expected_s)
        self.expected_s = max(both) if self.stale else sum(both)
        """From one sync to the next, at least."""
        self.longest_sync_s = max_repeats * self.cap_s - self.train_s - self.checkpoint_s
        if not self.stale:
            self.longest_sync_s -= self.rollout_s
        """A longer one breaks its promise even alone."""
        self.rollout_bytes = profile.rollout_resident_bytes
        self.train_bytes = profile.train_resident_bytes
        self.peak_bytes = profile.switch_peak_bytes

    def loop_s(self, off_s: float) -> float:
        if self.stale:
            return one_ahead_s(rollout_s=self.rollout_s, train_s=self.train_s, off_device_s=off_s)
        return self.rollout_s + self.train_s + off_s

    @staticmethod
    def of(member: Member) -> Needs:
        return Needs(
            member.profile,
            slo=member.slo,
            max_staleness=member.max_staleness,
            max_repeats=member.max_repeats,
            asked_solo_s=member.asked_solo_s,
        )
