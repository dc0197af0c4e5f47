"""A driver from its configuration to its last report: engines, init, the job, the end."""

from __future__ import annotations

import contextlib
import importlib
import logging
import os
import runpy
import signal
import sys
import threading
import traceback
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

from rmux.errors import RmuxError, WorkerError
from rmux.job import Engine
from rmux.run.channel import Channel, connect
from rmux.run.driver import checkpoint, shim
from rmux.run.driver.engines import DriverConfig, Engines
from rmux.run.driver.link import Link
from rmux.run.driver.session import Cancelled, Saver, Session
from rmux.run.driver.shed import Shedder
from rmux.run.driver.start import brings_own_engines, init_pools, make_engines

log = logging.getLogger(__name__)

_CLOSE_WITHIN_S = 20.0
_ERROR_LINES, _ERROR_CHARACTERS = 30, 4000
_SIGNALS = (signal.SIGTERM, signal.SIGINT)
EXIT_OK, EXIT_FAILED, EXIT_STOPPED = 0, 1, 143


class Interrupted(BaseException):
    """SIGTERM, or an order that does not wait for the iteration."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    state: str
    """The last DriverStatus.state; one that was stopped keeps 'running' and is run again."""
    exit_code: int
    error: str = ""


def run_driver(
    config: DriverConfig, *, channel: Channel | None = None, engines: Engines | None = None
) -> int:
    """Run the job to its end; the exit code: 0 succeeded or cancelled, 1 failed, 143 stopped.

    Only in the main thread: signals and user code need it. UnreachableError when the channel does
    not answer.
    """
    link = Link(
        config, channel=channel or connect(config.channel_url), on_interrupt=_interrupt_main
    )
    link.start()
    session: Session | None = None
    shedder: Shedder | None = None
    with _interrupts() as armed:
        try:
            engines = engines or make_engines(config)
            session = _start(config, link, engines)
            shedder = _shedder(link, engines, session)
            _run_user_code(config, session)
            session.finish()
            outcome = Outcome(state="succeeded", exit_code=EXIT_OK)
        except (Cancelled, Interrupted):
            failure = link.failure or (session.failure if session is not None else None)
            outcome = _ended_early(link.desired) if failure is None else _failed(failure)
        except Exception as error:  # noqa: BLE001 - the top: every failure is reported
            outcome = _failed(error)
        finally:
            armed.clear()
            shim.activate(None)
            if session is not None:
                session.close()
        if shedder is not None:
            shedder.close()
        finished = session.finished if session else 0
        link.report_status(outcome.state, iteration=finished, error=outcome.error)
        _close(engines)
        link.end(
            outcome.state,
            iteration=finished,
            error=outcome.error,
            acks_within_s=(2 if outcome.exit_code == EXIT_STOPPED else 10) * config.heartbeat_s,
        )
    return outcome.exit_code


def _start(config: DriverConfig, link: Link, engines: Engines) -> Session:
    """Everything up to the first line of user code."""
    own = brings_own_engines(config.spec)
    engines.prepare()
    newest = checkpoint.latest(config.run_dir)
    finished = 0 if newest is None else newest.iteration
    link.report_status("starting", iteration=finished)
    if not own:
        init_pools(config, link, engines, iteration=finished)
    if newest is not None:
        engines.restore(newest.folder)
    return Session(
        config,
        link=link,
        engines=engines,
        save=_saver(config, engines, own=own),
        finished=finished,
        owns_process=own,
        interrupt=_interrupt_main,
    )


def _shedder(link: Link, engines: Engines, session: Session) -> Shedder:
    shedder = Shedder(link, engines, may_spill=lambda: session.may_spill)
    shedder.start()
    return shedder


def _saver(config: DriverConfig, engines: Engines, *, own: bool) -> Saver:
    spec = config.spec

    def save(*, finished: int, weight_version: int) -> int | None:
        if finished % spec.checkpoint.every and finished != spec.iterations:
            return None
        written = checkpoint.write(
            config.run_dir,
            iteration=finished,
            weight_version=weight_version,
            attempt=config.attempt,
            seed=spec.seed,
            keep=spec.checkpoint.keep,
            fill=engines.save,
        )
        # A script with its own engines keeps its own state: this records only how far it got.
        return None if own else written.bytes

    return save


def _run_user_code(config: DriverConfig, session: Session) -> None:
    """The recipe's main, or the script as `__main__` in its own folder."""
    spec = config.spec
    os.environ["RMUX_START_ITERATION"] = str(session.finished)
    os.environ["RMUX_ITERATIONS"] = str(spec.iterations)
    os.environ["RMUX_RUN_DIR"] = str(config.run_dir)
    shim.activate(session)
    if spec.script is None:
        name = "emulated" if spec.engine is Engine.EMULATED else spec.recipe
        importlib.import_module(f"rmux.run.driver.recipes.{name}").main(spec)
        return
    folder = str(Path(spec.script).parent)
    os.chdir(folder)
    sys.argv = [spec.script]
    sys.path.insert(0, folder)
    try:
        runpy.run_path(spec.script, run_name="__main__")
    except SystemExit as error:
        if error.code not in (None, 0):
            raise WorkerError(f"the script ended with status {error.code}") from error


def _failed(error: Exception) -> Outcome:
    log.error("the job failed", exc_info=error)
    return Outcome(state="failed", exit_code=EXIT_FAILED, error=_tail(error))


def _ended_early(desired: str) -> Outcome:
    if desired in ("cancel", "cancel-now"):
        return Outcome(state="cancelled", exit_code=EXIT_OK)
    return Outcome(state="running", exit_code=EXIT_STOPPED)


def _tail(error: BaseException) -> str:
    """The last lines of the traceback, with the hint and the stderr an rmux error carries."""
    lines = "".join(traceback.format_exception(error)).splitlines()
    if isinstance(error, RmuxError):
        lines += str(error.details.get("stderr", "")).splitlines()
        lines += [f"hint: {error.hint}"] if error.hint else []
    return "\n".join(lines[-_ERROR_LINES:])[-_ERROR_CHARACTERS:]


def _close(engines: Engines | None) -> None:
    """Stop the engines within a bound: what is left then is the runner's to end."""
    if engines is None:
        return
    watchdog = threading.Timer(_CLOSE_WITHIN_S, os._exit, args=(EXIT_STOPPED,))
    watchdog.daemon = True
    watchdog.start()
    try:
        engines.close()
    except (RmuxError, OSError) as error:
        log.warning("the engines did not close cleanly: %s", error)
    watchdog.cancel()


def _interrupt_main() -> None:
    signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGTERM)


@contextlib.contextmanager
def _interrupts() -> Iterator[threading.Event]:
    """While the event is set, turn one SIGTERM or SIGINT into Interrupted; ignore the others."""
    armed = threading.Event()
    armed.set()

    def interrupt(number: int, frame: FrameType | None) -> None:
        if armed.is_set():
            armed.clear()
            raise Interrupted

    before = {number: signal.signal(number, interrupt) for number in _SIGNALS}
    try:
        yield armed
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
