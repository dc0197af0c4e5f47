"""The demo: the by-hand commands in order, then one document of what was measured.

stdout is the report (or, with --json, one document `rmux.demo/v1`); everything else is stderr.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from story import document, show
from story.sampler import Sampler

ROOT = Path(__file__).parents[2]
SPECS = ("copy", "sort")
_TAG = "RMUX_DEMO"


class Story:
    """Runs `rmux` commands against a store of its own in one folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.env = os.environ | {
            "RMUX_STORE": f"sqlite:///{folder}/rmux.db",
            "RMUX_RUN_DIR": str(folder / "runs"),
            "RMUX_NO_INPUT": "1",
            _TAG: folder.name,
        }
        self.rmux = str(Path(sys.executable).parent / "rmux")

    def say(self, *args: str) -> dict[str, Any]:
        """Run one command with --json and return its document; its own words go to stderr."""
        sys.stderr.write(f"\n$ rmux {' '.join(args)}\n")
        done = subprocess.run(
            [self.rmux, *args, "--json"], env=self.env, stdout=subprocess.PIPE, check=False
        )
        if done.returncode != 0:
            raise SystemExit(f"rmux {' '.join(args)} ended with exit code {done.returncode}")
        answer: dict[str, Any] = json.loads(done.stdout)
        return answer

    def show(self, *args: str) -> None:
        """Run one command for the eyes: its answer goes to stderr, or to the terminal."""
        sys.stderr.write(f"\n$ rmux {' '.join(args)}\n")
        sys.stderr.flush()
        stdout = None if sys.stdout.isatty() else sys.stderr
        subprocess.run([self.rmux, *args], env=self.env, stdout=stdout, check=False)

    def run_group(self, group: str) -> None:
        """`group up` in the background of a live watch, until every member is done."""
        sys.stderr.write(f"\n$ rmux group up {group} &\n")
        log = (self.folder / "group-up.log").open("wb")
        up = subprocess.Popen(
            [self.rmux, "group", "up", group], env=self.env, stdout=log, stderr=log
        )
        try:
            self.show("group", "watch", group, "--until", "done")
            code = up.wait(timeout=120)
        finally:
            if up.poll() is None:
                up.terminate()
                up.wait(timeout=60)
        if code != 0:
            sys.stderr.write(Path(log.name).read_text(errors="replace")[-4000:])
            raise SystemExit(f"rmux group up ended with exit code {code}")


def tell(folder: Path, *, iterations: int | None) -> dict[str, Any]:
    """The whole story in `folder`; returns the document."""
    story = Story(folder)
    jobs_dir = ROOT / "examples/cpu"
    subprocess.run(
        [sys.executable, str(ROOT / "examples/cpu/make_models.py")], check=True, stdout=sys.stderr
    )
    if iterations is not None:
        jobs_dir = _shortened(jobs_dir, folder / "jobs", iterations=iterations)
    story.say("store", "init")
    story.say("pool", "add", "-f", str(ROOT / "examples/cpu/cluster.toml"))
    specs = {name: str(jobs_dir / f"{name}.toml") for name in SPECS}
    profiles = {}
    for name, spec in specs.items():
        measure = ["--measure", "--keep-events", str(folder / f"{name}-alone.jsonl")]
        if iterations is not None:
            measure += ["--iterations", str(min(iterations - 1, 5))]
        profiles[name] = story.say("profile", spec, *measure)
    jobs = []
    for spec in specs.values():
        story.show("place", spec, "--explain")
        jobs.append(story.say("job", "submit", spec))
    groups = {job["group"] for job in jobs}
    if len(groups) != 1 or None in groups:
        raise SystemExit(f"the two jobs were not placed in one group but in {sorted(groups)}")
    with Sampler(tag=(_TAG, folder.name)) as sampler:
        story.run_group(jobs[0]["group"])
    return document.build(
        store_url=story.env["RMUX_STORE"],
        group_id=jobs[0]["group"],
        alone={name: folder / f"{name}-alone.jsonl" for name in SPECS},
        profiles=profiles,
        sampler=sampler,
    )


def _shortened(source: Path, target: Path, *, iterations: int) -> Path:
    """The example jobs with another number of iterations."""
    shutil.copytree(source, target)
    for name in SPECS:
        path = target / f"{name}.toml"
        lines = path.read_text().splitlines()
        lines = [f"iterations = {iterations}" if _sets_iterations(row) else row for row in lines]
        path.write_text("\n".join(lines) + "\n")
    return target


def _sets_iterations(line: str) -> bool:
    return line.replace(" ", "").startswith("iterations=")


def main() -> int:
    parser = argparse.ArgumentParser(prog="scripts/demo", description=__doc__)
    parser.add_argument("--json", action="store_true", help="one document instead of the report")
    parser.add_argument("--keep", action="store_true", help="leave the run folder and name it")
    parser.add_argument(
        "--iterations", type=int, help="iterations of each job, at least 3 (default: the specs' 15)"
    )
    options = parser.parse_args()
    if options.iterations is not None and options.iterations < 3:
        parser.error("--iterations: two are left after the warm-up only from 3 on")
    began_s = time.monotonic()
    folder = Path(tempfile.mkdtemp(prefix="rmux-demo-"))
    try:
        doc = tell(folder, iterations=options.iterations)
        doc["wall_s"] = round(time.monotonic() - began_s, 1)
        if options.keep:
            doc["run_dir"] = str(folder)
        text = json.dumps(doc, allow_nan=False, indent=2) + "\n" if options.json else show.page(doc)
        sys.stdout.write(text)
    finally:
        if options.keep:
            sys.stderr.write(f"run folder: {folder}\n")
        else:
            shutil.rmtree(folder, ignore_errors=True)
    return document.verdict(doc)


if __name__ == "__main__":
    sys.exit(main())
