"""Starting one attempt of a job, and clearing away what it left."""

from __future__ import annotations

import logging
import os
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from rmux.errors import RmuxError
from rmux.job import Job
from rmux.run import processes
from rmux.run.driver.config_file import write_config
from rmux.run.driver.engines import SPILL_FOLDER, DriverConfig
from rmux.run.processes import ProcessId
from rmux.run.valkey import temp_folder

if TYPE_CHECKING:
    from rmux.store.engine import Store

logger = logging.getLogger(__name__)

SHARED_MEMORY_FILE = "shared-memory.txt"
"""In the attempt's folder: names of segments that do not carry the run tag, one a line."""
_SWEEP_GRACE_S = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Site:
    """What every driver of a node is started with."""

    group: str
    tag: str
    run_dir: Path
    channel_url: str
    heartbeat_s: float
    tail_trigger: str = "gain"


@dataclass(frozen=True, slots=True, kw_only=True)
class Launched:
    """The outcome of a launch, posted to the loop by its thread."""

    job: str
    attempt: int
    run_dir: Path | None = None
    process: ProcessId | None = None
    child: subprocess.Popen[bytes] | None = None
    error: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cleared:
    """Nothing of the attempt is left on this host; posted to the loop by its thread."""

    job: str
    attempt: int
    num_processes: int
    segments: tuple[str, ...]


def attempt_tag(tag: str, job: str, attempt: int) -> str:
    return f"{tag}-{job}-a{attempt:03d}"


def attempt_folder(run_dir: Path, attempt: int) -> Path:
    return run_dir / f"attempt-{attempt}"


def launch(store: Store, site: Site, job: str, attempt: int) -> Launched:
    """Write the driver's configuration and start it in its own session."""
    run_dir: Path | None = None
    try:
        config, stored = _config(store, site, job, attempt)
        run_dir = config.run_dir
        folder = attempt_folder(run_dir, attempt)
        # Each by itself: folders made on the way to another get the usual mode.
        for made in (run_dir, folder):
            made.mkdir(parents=True, exist_ok=True, mode=0o700)
        config.temp_dir.mkdir(parents=True, exist_ok=True, mode=0o700)
        write_config(folder / "driver.json", config)
        environ = {
            **os.environ,
            processes.TAG_VARIABLE: config.run_tag,
            "RMUX_RUN_ID": f"{job}/{attempt}",
            "RMUX_JOB_ID": job,
            "RMUX_GROUP_ID": site.group,
            "RMUX_START_ITERATION": str(stored.iteration),
        }
        python = [stored.spec.python] if stored.spec.python else []
        argv = processes.module_argv("rmux.run.driver", str(folder / "driver.json"))
        child = processes.spawn(
            [*python, *argv[len(python) :]],
            environ=environ,
            log=folder / "driver.log",
            new_session=False,
        )
        process = processes.identify(child.pid)
    except (RmuxError, OSError) as error:
        logger.error("cannot start %s/%d: %s", job, attempt, error)
        return Launched(job=job, attempt=attempt, run_dir=run_dir, error=f"did not start: {error}")
    if process is None:
        child.wait()
        error_text = f"ended at once with status {child.returncode}"
        return Launched(job=job, attempt=attempt, run_dir=run_dir, error=error_text)
    return Launched(job=job, attempt=attempt, run_dir=run_dir, process=process, child=child)


def _config(store: Store, site: Site, job_id: str, attempt: int) -> tuple[DriverConfig, Job]:
    from rmux.store import groups, jobs, pools

    with store.read() as conn:
        job = jobs.get(conn, job_id)
        member = groups.get(conn, site.group).member(job.id)
        cluster = pools.load(conn)
    placement = member.placement
    gates = tuple(dict.fromkeys(placement.train_nodes + placement.rollout_nodes))
    config = DriverConfig(
        job_id=job.id,
        group_id=site.group,
        attempt=attempt,
        spec=job.spec,
        placement=placement,
        nodes=tuple(cluster.node(node) for node in gates),
        run_dir=Path(job.run_dir) if job.run_dir else site.run_dir / job.id,
        temp_dir=temp_dir(site.tag, job.id, attempt),
        run_tag=attempt_tag(site.tag, job.id, attempt),
        channel_url=site.channel_url,
        heartbeat_s=site.heartbeat_s,
        gates=gates,
        tail_trigger=site.tail_trigger,
    )
    return config, job


def temp_dir(tag: str, job: str, attempt: int) -> Path:
    """Short: Ray makes socket paths of 107 bytes at most below it."""
    return temp_folder(tag) / f"{job[-7:]}.{attempt}"


def clear(site: Site, job: str, attempt: int, *, run_dir: Path | None) -> Cleared:
    """End what carries the attempt's tag, in bounded time, and remove what it left behind."""
    tag = attempt_tag(site.tag, job, attempt)
    count = processes.sweep(tag, grace_s=_SWEEP_GRACE_S)
    recorded: list[str] = []
    if run_dir is not None:
        path = attempt_folder(run_dir, attempt) / SHARED_MEMORY_FILE
        recorded = path.read_text().split() if path.exists() else []
        # Of an attempt that died with its state on disk: the next one starts from a checkpoint.
        shutil.rmtree(run_dir / SPILL_FOLDER, ignore_errors=True)
    segments = processes.remove_shared_memory(tag, recorded=recorded)
    shutil.rmtree(temp_dir(site.tag, job, attempt), ignore_errors=True)
    return Cleared(job=job, attempt=attempt, num_processes=count, segments=tuple(segments))
