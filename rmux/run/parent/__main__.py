"""A parent of its own: python -m rmux.run.parent --group ID … (`group up --detach` and `--all`)."""

from __future__ import annotations

import argparse
import logging
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

from rmux.errors import RmuxError
from rmux.run.parent import run
from rmux.run.processes import die_with_parent


def main(argv: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="rmux.run.parent")
    for name in ("--store", "--group", "--host", "--run-dir"):
        parser.add_argument(name, required=True)
    parser.add_argument("--redis")
    parser.add_argument("--stay", action="store_true")
    parser.add_argument("--heartbeat-s", type=float, default=0.5)
    parser.add_argument("--lease-s", type=float, default=15.0)
    parser.add_argument("--stop-timeout-s", type=float, default=30.0)
    parser.add_argument("--fence-floor-s", type=float, default=60.0)
    parser.add_argument("--fence-grace-s", type=float, default=10.0)
    parser.add_argument("--memory-look-s", type=float, default=1.0)
    parser.add_argument("--memory-pause-s", type=float, default=3.0)
    parser.add_argument("--tail-trigger", default="gain")
    parser.add_argument("--tied", action="store_true", help="end with the process that started it")
    args = parser.parse_args(argv)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    if args.tied:
        die_with_parent(signal.SIGHUP)
    try:
        return run(
            args.store,
            args.group,
            host=args.host,
            run_dir=Path(args.run_dir),
            redis_url=args.redis,
            stay=args.stay,
            heartbeat_s=args.heartbeat_s,
            lease_s=args.lease_s,
            stop_timeout_s=args.stop_timeout_s,
            fence_floor_s=args.fence_floor_s,
            fence_grace_s=args.fence_grace_s,
            memory_look_s=args.memory_look_s,
            memory_pause_s=args.memory_pause_s,
            tail_trigger=args.tail_trigger,
        )
    except RmuxError as error:
        logging.getLogger("rmux").error("%s", error)
        return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
