"""What a command costs: `rmux --help`, and `rmux job ls` on a store of 10,000 jobs."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from datetime import UTC, datetime
from pathlib import Path

from rmux.ids import JobId
from rmux.job import Engine, Job, JobSpec, JobState
from rmux.store import jobs
from rmux.store.engine import Store
from scripts.benches._document import finish, flags, row

JOBS = 10_000
RMUX = Path(sys.executable).with_name("rmux")


def fill(url: str) -> None:
    store = Store.create(url)
    with store.write() as conn:
        for number in range(JOBS):
            job = Job(
                id=JobId(f"j-{number:06d}"),
                spec=JobSpec(name=f"job-{number}", engine=Engine.EMULATED),
                spec_hash="x3:1",
                state=JobState.PENDING,
                created_at=datetime.now(UTC),
            )
            jobs.insert(conn, job)
    store.close()


def seconds(*argv: str, env: dict[str, str], runs: int) -> list[float]:
    taken = []
    for _ in range(runs + 1):
        started = time.monotonic()
        subprocess.run([RMUX, *argv], env=env, check=True, capture_output=True)
        taken.append(time.monotonic() - started)
    return taken[1:]  # the first run also reads the files from disk


def main() -> None:
    parser = flags(__doc__)
    parser.add_argument("--runs", type=int, default=20)
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        env = {**os.environ, "HOME": folder, "RMUX_STORE": f"sqlite:///{folder}/rmux.db"}
        fill(env["RMUX_STORE"])
        facts = {"jobs": JOBS}
        rows = [
            row("rmux --help", seconds("--help", env=env, runs=asked.runs), unit="s"),
            row(
                "rmux job ls", seconds("job", "ls", env=env, runs=asked.runs), unit="s", facts=facts
            ),
        ]
        every = seconds("job", "ls", "--limit", "0", env=env, runs=max(3, asked.runs // 5))
        rows.append(row("rmux job ls --limit 0", every, unit="s", facts=facts))
    finish("cli", rows, asked=asked)


if __name__ == "__main__":
    main()
