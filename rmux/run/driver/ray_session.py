"""One private Ray instance per job: its daemons, its actors, and their end.

Not `ray stop`: it ends every Ray of the host. Everything an instance starts inherits a run tag, so
its processes are found and ended also when Ray itself has lost them.
"""

from __future__ import annotations

import logging
import os
import re
import select
import shutil
import signal
import socket
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rmux.errors import BackendError, DeadlineError, RmuxError
from rmux.run import processes

_log = logging.getLogger(__name__)

_SOCKET_PATH_LIMIT_BYTES = 107
_RAY_SUFFIX_BYTES = len("/session_2026-01-01_00-00-00_000000_4194304/sockets/plasma_store.1")
_ENVIRON = {
    "RAY_worker_niceness": "0",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_AUTH_MODE": "disabled",
    "RAY_prestart_worker_first_driver": "0",
    "RAY_enable_metrics_collection": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    "RAY_DISABLE_IMPORT_WARNING": "1",
}
_OBJECT_STORE_BYTES = 80 * 2**20
_STDERR_LINES = 20
_RAY_LINE = re.compile(r":(job_id|actor_name|task_name):")
_WARNING = re.compile(r"\[W\d+ |WARNING|.*Warning:")
_COLOR = re.compile(r"\x1b\[[0-9;]*m")


class RaySession:
    """Started once, closed once; `close` may be called at any point and again.

    Calls raise BackendError when an actor or the instance died, with the last lines of its stderr.
    """

    def __init__(self, *, job_id: str, temp_dir: Path, run_tag: str, num_cpus: int = 16) -> None:
        self._job_id = job_id
        self._temp_dir = temp_dir / "ray"
        self._tag = f"{run_tag}-ray"
        self._num_cpus = num_cpus
        self._session_dir: Path | None = None
        self._names: dict[Any, str] = {}
        self._pids: dict[Any, int] = {}
        self._lost = ""
        self._closing = threading.Event()
        self._watcher: threading.Thread | None = None

    def start(self) -> None:
        """Start the daemons: 3 to 6 s. BackendError when they do not come up."""
        longest = len(os.fsencode(self._temp_dir)) + _RAY_SUFFIX_BYTES
        if longest > _SOCKET_PATH_LIMIT_BYTES:
            raise BackendError(
                f"Ray's sockets below {self._temp_dir} would have paths of {longest} bytes, "
                f"the limit is {_SOCKET_PATH_LIMIT_BYTES}",
                code="backend.temp-path",
                hint="use a shorter temporary folder",
            )
        self._temp_dir.mkdir(parents=True, exist_ok=True, mode=0o700)
        with _environ({**_ENVIRON, processes.TAG_VARIABLE: self._tag}), _kept_signals():
            self._init()
        self._watcher = threading.Thread(target=self._watch, name="ray-watch", daemon=True)
        self._watcher.start()

    def actor(self, cls: type[Any], *args: Any, name: str, threads: int = 4, **kwargs: Any) -> Any:
        """Start an actor of `cls` with `threads` threads for its calls; returns its handle.

        Ray is asked for no CPU and no GPU: rmux owns devices and affinity.
        """
        import ray

        options = {
            "num_cpus": 0,
            "num_gpus": 0,
            "max_concurrency": threads,
            "max_restarts": 0,
            "max_task_retries": 0,
        }
        self._check_lost()
        handle = ray.remote(cls).options(**options).remote(*args, **kwargs)
        self._names[handle] = name
        return handle

    def get(self, refs: Any, *, timeout_s: float | None = None, what: str = "") -> Any:
        """The value of one reference, or a list of them for a list.

        RmuxErrors of the actor pass through; any other failure of it is a BackendError.
        DeadlineError after `timeout_s`.
        """
        import ray

        deadline_s = None if timeout_s is None else time.monotonic() + timeout_s
        pending = list(refs) if isinstance(refs, list) else [refs]
        while pending:
            self._check_lost()
            left_s = 0.5 if deadline_s is None else min(0.5, deadline_s - time.monotonic())
            ready, pending = ray.wait(pending, num_returns=1, timeout=max(0.0, left_s))
            self._value(ready)
            if not ready and deadline_s is not None and time.monotonic() >= deadline_s:
                raise DeadlineError(f"{what or 'a call to an actor'} took over {timeout_s:g} s")
        values = self._value(refs if isinstance(refs, list) else [refs])
        return values if isinstance(refs, list) else values[0]

    def ready(self, refs: list[Any], *, timeout_s: float) -> list[Any]:
        """Those of `refs` that have ended, waiting for the first at most `timeout_s`."""
        import ray

        self._check_lost()
        done, _ = ray.wait(refs, num_returns=1, timeout=timeout_s)
        if len(done) == 1 and len(refs) > 1:
            done, _ = ray.wait(refs, num_returns=len(refs), timeout=0)
        return list(done)

    def meet(self, handle: Any, *, timeout_s: float = 60.0) -> int:
        """Wait until the actor lives; returns its pid. Its class must have a method `pid`."""
        if handle not in self._pids:
            what = f"start of {self._names.get(handle, 'an actor')}"
            self._pids[handle] = self.get(handle.pid.remote(), timeout_s=timeout_s, what=what)
        return self._pids[handle]

    def stderr_of(self, pid: int) -> str:
        """The last lines an actor's process wrote to stderr."""
        if self._session_dir is None:
            return ""
        for path in (self._session_dir / "logs").glob(f"worker-*-{pid}.err"):
            lines = processes.last_lines(path, count=_STDERR_LINES + 2).splitlines()
            # Ray's own first lines name the job and the class.
            return "\n".join(line for line in lines if not _RAY_LINE.match(line))
        return ""

    def daemons(self) -> list[processes.ProcessId]:
        """Every living process of the instance, actors included."""
        return processes.tagged(self._tag)

    def close(self) -> None:
        """End every process of the instance, in bounded time."""
        self._closing.set()
        if self._session_dir is not None:
            import ray

            # Hangs for long when its daemons are gone, hence a thread that may be left behind.
            goodbye = threading.Thread(target=ray.shutdown, name="ray-shutdown", daemon=True)
            goodbye.start()
            goodbye.join(timeout=0.5 if self._lost else 5.0)
            self._session_dir = None
        processes.sweep(self._tag, grace_s=1.0)
        processes.remove_shared_memory(self._tag)
        shutil.rmtree(self._temp_dir, ignore_errors=True)
        if self._watcher is not None:
            self._watcher.join(timeout=2.0)
            self._watcher = None

    def _init(self) -> None:
        import ray

        try:
            context = ray.init(
                address="local",
                namespace=self._job_id,
                num_cpus=self._num_cpus,
                num_gpus=0,
                object_store_memory=_OBJECT_STORE_BYTES,
                include_dashboard=False,
                log_to_driver=False,
                configure_logging=False,
                logging_level=logging.ERROR,
                _temp_dir=str(self._temp_dir),
            )
        except (OSError, RuntimeError, ValueError, ConnectionError) as error:
            processes.sweep(self._tag, grace_s=1.0)
            raise BackendError(f"Ray did not start: {error}", code="backend.ray") from error
        self._session_dir = Path(context.address_info["session_dir"])

    def _value(self, refs: list[Any]) -> list[Any]:
        import ray

        try:
            return list(ray.get(refs))
        except ray.exceptions.RayTaskError as error:
            cause = getattr(error, "cause", None)
            if isinstance(cause, RmuxError):
                raise cause from None
            text = _COLOR.sub("", str(error))
            lines = text.splitlines()[-_STDERR_LINES:]
            found = re.search(r"\(pid=(\d+)", text)
            pid = int(found[1]) if found else 0
            raise BackendError(
                f"{self._name_of(pid)} failed: {type(cause).__name__}: {cause}",
                code="backend.actor",
                details={"pid": pid, "stderr": "\n".join(lines)},
            ) from error
        except ray.exceptions.RayActorError as error:
            raise self._dead(error) from error
        except ray.exceptions.RayError as error:
            raise BackendError(f"Ray failed: {error}", code="backend.ray") from error

    def _name_of(self, pid: int) -> str:
        handle = next((handle for handle, known in self._pids.items() if known == pid), None)
        return self._names.get(handle, "an actor")

    def _dead(self, error: Any) -> BackendError:
        wanted = getattr(error, "actor_id", None)
        for handle, name in self._names.items():
            if wanted is not None and str(handle._actor_id.hex()) == str(wanted):
                pid = self._pids.get(handle, 0)
                tail = self.stderr_of(pid)
                words = [line for line in tail.splitlines() if not _WARNING.match(line)]
                last = f"its last words: {words[-1]}" if words else "without a word"
                return BackendError(
                    f"{name} (pid {pid}) died, {last}",
                    code="backend.died",
                    details={"actor": name, "pid": pid, "stderr": tail},
                )
        return BackendError(f"an actor died: {error}", code="backend.died")

    def _check_lost(self) -> None:
        if self._lost:
            raise BackendError(f"Ray's {self._lost} died", code="backend.ray")
        if self._session_dir is None:
            raise BackendError("the Ray instance is not running", code="backend.ray")

    def _watch(self) -> None:
        """A killed GCS would go unnoticed for 45 s otherwise."""
        poller, names, fds = select.poll(), {}, []
        for process in self.daemons():
            name = _command(process.pid)
            if name in ("gcs_server", "raylet"):
                try:
                    fd = os.pidfd_open(process.pid)
                except ProcessLookupError:
                    self._lost = name
                    return
                fds.append(fd)
                names[fd] = name
                poller.register(fd, select.POLLIN)
        while not self._closing.is_set():
            ended = poller.poll(500)
            if ended and not self._closing.is_set():
                self._lost = names[ended[0][0]]
                _log.error("Ray's %s died", self._lost)
                break
        for fd in fds:
            os.close(fd)


def _command(pid: int) -> str:
    try:
        return Path(os.fsdecode(Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")[0])).name
    except OSError:
        return ""


@contextmanager
def _environ(values: Mapping[str, str]) -> Iterator[None]:
    """Ray's daemons inherit what the environment says while they start."""
    before = {key: os.environ.get(key) for key in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for key, value in before.items():
            if value is None:
                os.environ.pop(key, None)
            else:
                os.environ[key] = value


@contextmanager
def _kept_signals() -> Iterator[None]:
    """Ray puts its own SIGTERM handler in place; the driver's stays in force."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.getsignal(signal.SIGTERM)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before if before is not None else signal.SIG_DFL)


def free_port(address: str = "127.0.0.1") -> int:
    """A port that was free a moment ago, for engines that insist on being told one."""
    with socket.socket() as probe:
        probe.bind((address, 0))
        return int(probe.getsockname()[1])
