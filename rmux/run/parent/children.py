"""The processes that a parent starts, watches and restarts."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from rmux.ids import NodeId
from rmux.run import processes, valkey
from rmux.run.processes import ProcessId

_FIRST_DELAY_S = 0.05
_MAX_DELAY_S = 5.0
_STEADY_S = 10.0
"""A child that lived this long starts over with the shortest delay."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What the children of one parent are started with."""

    store_url: str
    group: str
    host: str
    tag: str
    channel_url: str
    run_dir: Path
    stay: bool
    heartbeat_s: float
    lease_s: float
    stop_s: float
    fence_floor_s: float
    fence_grace_s: float
    memory_look_s: float
    memory_pause_s: float
    tail_trigger: str = "gain"

    @property
    def folder(self) -> Path:
        return self.run_dir / self.group

    @property
    def environ(self) -> Mapping[str, str]:
        return {
            **os.environ,
            processes.TAG_VARIABLE: self.tag,
            "RMUX_GROUP_ID": self.group,
        }

    def start_server(self) -> subprocess.Popen[bytes]:
        return valkey.start(self.tag, environ=self.environ, log=self.folder / role_log(SERVER))

    def start_controller(self) -> subprocess.Popen[bytes]:
        args = [*self._common(), "--host", self.host, "--lease-s", str(self.lease_s)]
        args += ["--stop-s", str(self.stop_s), "--fence-floor-s", str(self.fence_floor_s)]
        args += ["--stay"] if self.stay else []
        return self._spawn("controller", args, role="controller")

    def start_runner(self, node: NodeId) -> subprocess.Popen[bytes]:
        args = [*self._common(), "--node", node, "--tag", self.tag]
        args += ["--stop-grace-s", str(self.stop_s), "--fence-grace-s", str(self.fence_grace_s)]
        args += ["--memory-look-s", str(self.memory_look_s)]
        args += ["--memory-pause-s", str(self.memory_pause_s)]
        args += ["--tail-trigger", self.tail_trigger]
        return self._spawn("runner", args, role=runner_role(node))

    def _common(self) -> list[str]:
        pairs = {
            "--store": self.store_url,
            "--group": self.group,
            "--channel": self.channel_url,
            "--run-dir": str(self.run_dir),
            "--heartbeat-s": str(self.heartbeat_s),
        }
        return [word for pair in pairs.items() for word in pair]

    def _spawn(self, module: str, args: list[str], *, role: str) -> subprocess.Popen[bytes]:
        argv = processes.module_argv(f"rmux.run.{module}", *args)
        return processes.spawn(argv, environ=self.environ, log=self.folder / role_log(role))


SERVER = "channel server"


def runner_role(node: NodeId) -> str:
    return f"runner {node}"


def role_log(role: str) -> str:
    """Name of the log of a child, in the group's folder."""
    return "valkey.log" if role == SERVER else f"{role.replace(' ', '-')}.log"


class Tell(Protocol):
    def __call__(self, role: str, change: str, *, pid: int, **data: object) -> None: ...


class Child:
    """One process with a role, through all its restarts."""

    def __init__(
        self, role: str, start: Callable[[], subprocess.Popen[bytes]], *, tell: Tell
    ) -> None:
        self.role = role
        self._start, self._tell = start, tell
        self._delay_s = _FIRST_DELAY_S
        self._started_s = 0.0
        self._due_s: float | None = 0.0
        self._died_s: float | None = None
        self.pidfd: int | None = None
        self._child: subprocess.Popen[bytes] | None = None
        self.process: ProcessId | None = None

    def poll(self, *, now_s: float) -> int | None:
        """Start it when due; its exit status when it has just ended, negative for a signal."""
        if self._child is None:
            if self._due_s is not None and now_s >= self._due_s:
                self._launch(now_s)
            return None
        status = self._child.poll()
        if status is None:
            return None
        if now_s - self._started_s > _STEADY_S:
            self._delay_s = _FIRST_DELAY_S
        retired = self._due_s is None
        change = "ended" if retired or status == 0 else "died"
        self._tell(self.role, change, pid=self._child.pid, exit=exit_text(status))
        if not retired:
            self._died_s, self._due_s = now_s, now_s + self._delay_s
            self._delay_s = min(2 * self._delay_s, _MAX_DELAY_S)
        self._forget()
        return status

    def _launch(self, now_s: float) -> None:
        self._child = self._start()
        self._started_s = now_s
        self.process = processes.identify(self._child.pid)
        try:
            self.pidfd = os.pidfd_open(self._child.pid)
        except ProcessLookupError:
            self.pidfd = None
        away_s = None if self._died_s is None else now_s - self._died_s
        change = "started" if away_s is None else "restarted"
        self._tell(self.role, change, pid=self._child.pid, away_s=away_s)

    def _forget(self) -> None:
        if self.pidfd is not None:
            os.close(self.pidfd)
        self._child, self.process, self.pidfd = None, None, None

    def due_in_s(self, *, now_s: float) -> float | None:
        """Seconds to its next start; None while it runs or is retired."""
        if self._child is not None or self._due_s is None:
            return None
        return max(0.0, self._due_s - now_s)

    def retire(self) -> None:
        """Never start it again."""
        self._due_s = None

    def stop(self, *, grace_s: float) -> bool:
        """SIGTERM, then SIGKILL after `grace_s`; True when it had to be killed."""
        self.retire()
        if self._child is None:
            return False
        forced = False
        self._child.terminate()
        try:
            self._child.wait(grace_s)
        except subprocess.TimeoutExpired:
            forced = True
            self.kill()
        self._forget()
        return forced

    def terminate(self) -> None:
        if self._child is not None:
            self._child.terminate()

    def kill(self) -> None:
        """SIGKILL to it and its whole process group."""
        self.retire()
        if self._child is not None:
            try:
                os.killpg(self._child.pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
            self._child.wait(5.0)


def exit_text(status: int) -> str:
    if status < 0:
        return f"killed by {signal.Signals(-status).name}"
    return f"status {status}"
