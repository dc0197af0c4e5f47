"""Watch this machine during a run: foreign CPU use, CPU of parked workers, host memory."""

from __future__ import annotations

import threading
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

import psutil

from rmux.clock import SystemClock
from rmux.job import Phase
from rmux.timeline import Hold

_ROLES = (  # what a command line holds, and the role it is counted under; first match wins
    ("RolloutWorker", "rollout workers"),
    ("SpillingRank", "training ranks"),
    ("HostWeightCache", "weight caches"),
    ("rmux.run.driver", "drivers"),
    ("rmux.run.sandbox", "sandboxes"),
    ("rmux.run.controller", "controller"),
    ("rmux.run.runner", "runners"),
    ("group up", "parent"),
    ("valkey", "channel server"),
    ("group watch", "watch"),
    ("story.flow", "this demo"),
    ("ray", "Ray's own processes"),
)
_MARGIN_S = 0.3  # around a hold: its wake, its park and the sampling period


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """CPU seconds of one sampling period that ended at `at_s` (boot-time clock)."""

    at_s: float
    seconds: float
    foreign_s: float
    """Of processes that are not ours."""
    stolen_s: float
    """Taken from this machine by its host."""
    role_s: Mapping[str, float]


@dataclass
class Sampler:
    """Samples every process whose environment holds `tag` (NAME=value)."""

    tag: tuple[str, str]
    period_s: float = 0.5
    samples: list[Sample] = field(default_factory=list)
    peak_bytes: int = 0
    _workers: dict[int, tuple[str, Phase]] = field(default_factory=dict)
    _worker_cpu: dict[int, list[tuple[float, float]]] = field(
        default_factory=lambda: defaultdict(list)
    )
    _roles: dict[int, str] = field(default_factory=dict)
    _known: dict[int, bool] = field(default_factory=dict)
    _stop: threading.Event = field(default_factory=threading.Event)

    def __enter__(self) -> Sampler:
        self._thread = threading.Thread(target=self._loop, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._stop.set()
        self._thread.join()

    def parked_cpu(
        self, held: Sequence[Hold], *, since_s: float, until_s: float
    ) -> dict[str, float]:
        """Share of one core a parked worker uses, by pool: CPU seconds ÷ seconds outside holds."""
        used_s: dict[str, float] = defaultdict(float)
        parked_s: dict[str, float] = defaultdict(float)
        for pid, samples in self._worker_cpu.items():
            job, phase = self._workers[pid]
            mine = [h for h in held if h.job_id == job and h.phase in (phase, Phase.INIT)]
            for (before_s, cpu_before_s), (after_s, cpu_after_s) in pairwise(samples):
                inside = before_s >= since_s and after_s <= until_s
                if inside and not any(_touches(hold, before_s, after_s) for hold in mine):
                    used_s[phase] += cpu_after_s - cpu_before_s
                    parked_s[phase] += after_s - before_s
        return {phase: used_s[phase] / parked_s[phase] for phase in parked_s}

    def _loop(self) -> None:
        clock = SystemClock()
        cpu_s: dict[int, float] = {}
        busy_s, stolen_s = _machine_s()
        at = time.monotonic()
        while not self._stop.wait(self.period_s):
            ours = self._ours()
            now_cpu_s, rss = _usage(ours)
            for pid in self._workers:
                if pid in now_cpu_s:
                    self._worker_cpu[pid].append((clock.now_s(), now_cpu_s[pid]))
            (now_busy_s, now_stolen_s), now = _machine_s(), time.monotonic()
            used_s = {pid: s - cpu_s[pid] for pid, s in now_cpu_s.items() if pid in cpu_s}
            role_s: dict[str, float] = defaultdict(float)
            for pid, spent_s in used_s.items():
                role_s[self._roles[pid]] += spent_s
            self.samples.append(
                Sample(
                    at_s=clock.now_s(),
                    seconds=now - at,
                    foreign_s=max(0.0, now_busy_s - busy_s - sum(used_s.values())),
                    stolen_s=now_stolen_s - stolen_s,
                    role_s=role_s,
                )
            )
            self.peak_bytes = max(self.peak_bytes, rss)
            cpu_s, busy_s, stolen_s, at = now_cpu_s, now_busy_s, now_stolen_s, now

    def cpu(self, *, since_s: float, until_s: float) -> dict[str, float]:
        """Share of one core in a window, by role; 'foreign' and 'stolen' among them."""
        window = [sample for sample in self.samples if since_s < sample.at_s <= until_s]
        total_s = sum(sample.seconds for sample in window)
        spent_s: dict[str, float] = defaultdict(float)
        for sample in window:
            spent_s["foreign"] += sample.foreign_s
            spent_s["stolen"] += sample.stolen_s
            for role, used_s in sample.role_s.items():
                spent_s[role] += used_s
        ordered = sorted(spent_s.items(), key=lambda row: -row[1])
        return {role: used_s / total_s for role, used_s in ordered}

    def _ours(self) -> list[psutil.Process]:
        found = []
        for process in psutil.process_iter():
            try:
                if process.pid not in self._known:
                    mine = process.pid == psutil.Process().pid
                    self._known[process.pid] = mine or self._is_tagged(process)
                if self._known[process.pid]:
                    self._label(process)
                    found.append(process)
            except psutil.Error:
                self._known.pop(process.pid, None)
        return found

    def _is_tagged(self, process: psutil.Process) -> bool:
        return process.environ().get(self.tag[0]) == self.tag[1]

    def _label(self, process: psutil.Process) -> None:
        # looked at every time: Ray names a process after its actor only once that runs
        if process.pid in self._workers:
            return
        title = " ".join(process.cmdline())
        role = next((role for text, role in _ROLES if text in title), "other")
        self._roles[process.pid] = role
        phase = {"rollout workers": Phase.ROLLOUT, "training ranks": Phase.TRAIN}.get(role)
        if phase is not None:
            self._workers[process.pid] = (process.environ().get("RMUX_JOB_ID", ""), phase)


def _usage(processes: Sequence[psutil.Process]) -> tuple[dict[int, float], int]:
    cpu_s: dict[int, float] = {}
    rss = 0
    for process in processes:
        try:
            times = process.cpu_times()
            cpu_s[process.pid] = times.user + times.system
            rss += process.memory_info().rss - process.memory_info().shared
        except psutil.Error:
            continue
    return cpu_s, rss


def _machine_s() -> tuple[float, float]:
    """CPU seconds of all cores since boot: used here, and stolen by the host."""
    times = psutil.cpu_times()
    return times.user + times.nice + times.system + times.irq + times.softirq, times.steal


def _touches(hold: Hold, since_s: float, until_s: float) -> bool:
    end_s = float("inf") if hold.end_s is None else hold.end_s
    return hold.start_s - _MARGIN_S < until_s and end_s + _MARGIN_S > since_s
