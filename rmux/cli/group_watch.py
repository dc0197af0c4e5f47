"""Follow a group: a live picture on a terminal, lines anywhere else."""

from __future__ import annotations

import select
import sys
import termios
import time
import tty
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING

from rmux.cli import group_views, watch_view
from rmux.cli.documents_groups import EventRecord
from rmux.cli.exit_codes import ExitCode, code_of
from rmux.cli.group_views import Look
from rmux.cli.output import Format, Output, PipeClosed
from rmux.clock import SystemClock
from rmux.errors import DeadlineError, RmuxError, UnreachableError, UserError
from rmux.events import EventType, PhaseEvent, to_document

if TYPE_CHECKING:
    from rich.text import Text

    from rmux.store.engine import Store

HEARTBEAT_S = 15.0
_FRAME_S = 0.25
_POLL_S = 0.25
_QUIET_S = 0.5
_COLORS = ("cyan", "magenta", "yellow", "green", "blue", "red")


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """What to follow, from where, until when."""

    group: str
    since_seq: int | None = None
    until: str | None = None
    once: bool = False

    def is_over(self, seen: Look) -> bool:
        """'done': no member is left; 'idle': nothing serves the group and no member runs."""
        if self.until == "done":
            return not seen.group.members
        return self.until == "idle" and seen.lease is None


def watch(out: Output, store: Store, request: Request) -> None:
    """Returns when `until` is reached, the user leaves or `once` is done; else an exception ends
    it: DeadlineError, Ctrl-C."""
    if out.format is Format.JSON and not request.once:
        raise UserError("a watch is a stream", hint="-o jsonl, or --once for one document")
    if request.once:
        _once(out, store, request)
    elif out.is_terminal and not out.is_json and out.format is not Format.NAME:
        _live(out, store, request)
    else:
        _lines(out, store, request)


def _once(out: Output, store: Store, request: Request) -> None:
    with store.read() as conn:
        seen = group_views.look(conn, request.group)
    if out.format is Format.JSONL:
        out.line(_snapshot(seen), text="")
        _Narrator(out, store, request, seq=seen.seq).say("end", reason="once", code=ExitCode.DONE)
        return
    width = out.console().width if out.is_terminal else 160
    out.emit(
        group_views.document(seen),
        text=lambda: "\n".join(watch_view.render(seen, width=width, height=60)),
        names=[seen.group.id],
    )


class _Narrator:
    """Tells a watch line by line; `seq` is the cursor behind what was told."""

    def __init__(self, out: Output, store: Store, request: Request, *, seq: int) -> None:
        self.out, self.store, self.request, self.seq = out, store, request, seq
        self._spoke_s = self._told_s = time.monotonic()
        self._names: dict[str, str] = {}

    def follow(self) -> None:
        """Until the request is over."""
        from rmux.store import events

        lost = ""
        group = self.request.group
        following = events.follow(
            self.store, clock=SystemClock(), group=group, after_seq=self.seq, poll_s=_POLL_S
        )
        for news in following:
            if news.gap and not lost:
                self.say("gap", reason=news.gap)
            lost = news.gap
            for event in news.events:
                if event.type is EventType.PROGRESS and not self.out.is_json:
                    continue
                name = self._name(event)
                self.out.line(_record(event), text=partial(watch_view.event_text, event, name=name))
                self._spoke_s = self._told_s = time.monotonic()
            self.seq = news.seq
            if time.monotonic() - self._spoke_s >= HEARTBEAT_S and self.out.is_json:
                self.say("heartbeat")
            if not news.events and not lost and self._is_over():
                return

    def say(self, type: str, *, reason: str | None = None, code: ExitCode | None = None) -> None:
        """A line of the watch itself."""
        own = EventRecord(
            seq=self.seq,
            type=type,
            at=datetime.now(UTC),
            at_s=SystemClock().now_s(),
            source="watch",
            source_n=0,
            group_id=self.request.group,
            reason=reason,
            exit_code=None if code is None else int(code),
        )
        self.out.line(own, text=f"{own.at.astimezone():%H:%M:%S%z} {type} {reason or ''}".rstrip())
        self._spoke_s = time.monotonic()

    def _is_over(self) -> bool:
        """Over, and quiet for a while: the last words of what ended have arrived."""
        if self.request.until is None or time.monotonic() - self._told_s < _QUIET_S:
            return False
        with self.store.read() as conn:
            return self.request.is_over(group_views.look(conn, self.request.group, recent=()))

    def _name(self, event: PhaseEvent) -> str:
        from rmux.store import jobs

        if event.job_id is None:
            return ""
        if event.job_id not in self._names:
            with self.store.read() as conn:
                self._names[event.job_id] = jobs.get(conn, event.job_id).spec.name
        return self._names[event.job_id]


def _lines(out: Output, store: Store, request: Request) -> None:
    with store.read() as conn:
        seen = group_views.look(conn, request.group)
    out.line(_snapshot(seen), text=lambda: watch_view.receipt(seen, watched_s=0.0))
    since = seen.seq if request.since_seq is None else request.since_seq
    narrator = _Narrator(out, store, request, seq=since)
    try:
        narrator.follow()
    except DeadlineError:
        narrator.say("end", reason="timeout", code=ExitCode.DEADLINE)
        raise
    except KeyboardInterrupt:
        narrator.say("end", reason="interrupted", code=ExitCode.INTERRUPTED)
        raise
    except PipeClosed:
        raise
    except RmuxError as error:
        narrator.say("end", reason=error.code, code=code_of(error))
        raise
    except BaseException:  # the one other way out is SIGTERM
        narrator.say("end", reason="terminated", code=ExitCode.TERMINATED)
        raise
    narrator.say("end", reason=f"until:{request.until}", code=ExitCode.DONE)


def _live(out: Output, store: Store, request: Request) -> None:
    from rich.live import Live
    from rich.text import Text

    begun_s = time.monotonic()
    console = out.console()
    recent = deque[PhaseEvent]()
    seen = _refresh(store, request, recent)
    try:
        with Live(console=console, screen=True, auto_refresh=False) as live, _keys() as pressed:
            while True:
                lines = watch_view.render(seen, width=console.width, height=console.height)
                live.update(Text("\n").join(_colored(line) for line in lines), refresh=True)
                if pressed() in ("q", "\x1b", "\x03") or request.is_over(seen):
                    return
                try:
                    seen = _refresh(store, request, recent)
                except UnreachableError:
                    continue  # the picture stands still until the store is back
    finally:
        out.say(watch_view.receipt(seen, watched_s=time.monotonic() - begun_s))


def _refresh(store: Store, request: Request, recent: deque[PhaseEvent]) -> Look:
    """Look again; `recent` keeps the events of the window, so that each is read once."""
    from rmux.store import events

    with store.read() as conn:
        if recent:
            recent.extend(events.read(conn, group=request.group, after_seq=recent[-1].seq))
        else:
            recent.extend(events.latest(conn, group=request.group))
        seen = group_views.look(conn, request.group, recent=recent)
    while recent and recent[0].at_s < seen.now_s - group_views.WINDOW_S and len(recent) > 1:
        recent.popleft()
    return seen


def _no_key() -> str:
    time.sleep(_FRAME_S)
    return ""


@contextmanager
def _keys() -> Iterator[Callable[[], str]]:
    """A function that waits one frame for a key; '' without one or without a terminal."""
    if sys.stdin is None or not sys.stdin.isatty():
        yield _no_key
        return
    fd = sys.stdin.fileno()
    before = termios.tcgetattr(fd)

    def pressed() -> str:
        ready, _, _ = select.select([fd], [], [], _FRAME_S)
        return sys.stdin.read(1) if ready else ""

    tty.setcbreak(fd)
    try:
        yield pressed
    finally:
        termios.tcsetattr(fd, termios.TCSADRAIN, before)


def _colored(line: str) -> Text:
    from rich.text import Text

    text = Text(line, no_wrap=True, end="")
    head = line.split("  ", 1)[0]
    if head.isupper() and len(head) > 1 and not head.startswith("·"):
        text.stylize("bold")
    lane = line.rpartition("  ")[2]
    if len(lane) > 9 and all(cell.isalpha() or cell == "·" for cell in lane):
        start = len(line) - len(lane)
        for index, cell in enumerate(lane):
            if cell != "·":
                color = _COLORS[(ord(cell) - ord("A")) % len(_COLORS)]
                text.stylize(color, start + index, start + index + 1)
    return text


def _snapshot(seen: Look) -> EventRecord:
    group = group_views.document(seen).model_dump(mode="json", by_alias=True)
    return EventRecord(
        seq=seen.seq,
        type="snapshot",
        at=seen.at,
        at_s=seen.now_s,
        source="watch",
        source_n=0,
        group_id=seen.group.id,
        data=group,
    )


def _record(event: PhaseEvent) -> EventRecord:
    return EventRecord(**{**to_document(event), "at": event.at})
