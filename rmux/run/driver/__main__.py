"""python -m rmux.run.driver CONFIG.json"""

from __future__ import annotations

import io
import logging
import sys
from pathlib import Path

from rmux.errors import RmuxError
from rmux.run.driver.config_file import read_config
from rmux.run.driver.loop import EXIT_FAILED, run_driver
from rmux.run.host_memory import offer_to_oom_killer

logging.basicConfig(
    level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s", stream=sys.stderr
)


def main(argv: list[str]) -> int:
    if isinstance(sys.stdout, io.TextIOWrapper):
        # What a script prints is in its log when it is killed.
        sys.stdout.reconfigure(line_buffering=True)
    # What a job starts inherits it: out of memory, the kernel spares runner and controller.
    offer_to_oom_killer()
    try:
        return run_driver(read_config(Path(argv[1])))
    except RmuxError as error:
        logging.error("%s", error.message)  # noqa: LOG015 - the process has one log, its stderr
        return EXIT_FAILED


if __name__ == "__main__":
    sys.exit(main(sys.argv))
