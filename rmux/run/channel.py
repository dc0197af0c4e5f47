"""Streams of control messages between the processes of a group.

A message may be lost, doubled or late: each carries its sender's whole position and is sent again
on every heartbeat, so a reader needs no more than the newest one of each stream. `send` and
`receive` may be called from different threads; `receive` from one at a time.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Protocol

from rmux.errors import UnreachableError, UserError
from rmux.run.messages import Message, decode, encode

if TYPE_CHECKING:
    import redis

logger = logging.getLogger(__name__)

_MAX_MESSAGES = 256
"""Kept per stream; a reader further behind than this loses only what newer messages repeat."""
_EXPIRE_S = 24 * 3600
"""A stream nobody writes to is dropped after this: a shared server keeps no dead jobs."""
_CHECK_EVERY_S = 1.0
_BLOCK_S = 0.1
"""Longest single read: how soon a new subscription or a closed channel is noticed."""
_RETRY_S = 0.02
_MAX_RETRY_S = 0.5
_START = "0-0"


class Channel(Protocol):
    def send(self, stream: str, message: Message) -> None:
        """Append; silently dropped while the server is away (the next heartbeat repeats it)."""

    def subscribe(self, streams: Iterable[str], *, replay: bool = False) -> None:
        """Set what `receive` reads; new ones start now, or with `replay` at the oldest kept."""

    def receive(self, timeout_s: float) -> list[tuple[str, Message]]:
        """What arrived, in order per stream; empty after `timeout_s` seconds."""

    def close(self) -> None: ...


def connect(url: str, *, timeout_s: float = 5.0) -> Channel:
    """A channel to redis://, rediss:// or unix://; UserError for any other.

    UnreachableError when nothing answers within `timeout_s`; 0 tries once.
    """
    from rmux.config import display_url

    if not url.startswith(("redis://", "rediss://", "unix://")):
        raise UserError(
            f"{display_url(url)!r} is not a channel",
            code="channel.url",
            hint="use redis://host:port/0 or unix:///path/to.sock",
        )
    return RedisChannel(url, connect_timeout_s=timeout_s)


class MemoryHub:
    """The streams of one process, for tests: several channels meet here."""

    def __init__(self) -> None:
        self.arrived = threading.Condition()
        self.streams: dict[str, list[str]] = {}

    def flush(self) -> None:
        """Lose everything, as FLUSHALL does."""
        with self.arrived:
            self.streams.clear()


class MemoryChannel:
    def __init__(self, hub: MemoryHub) -> None:
        self._hub = hub
        self._cursors: dict[str, int] = {}

    def send(self, stream: str, message: Message) -> None:
        with self._hub.arrived:
            self._hub.streams.setdefault(stream, []).append(encode(message))
            self._hub.arrived.notify_all()

    def subscribe(self, streams: Iterable[str], *, replay: bool = False) -> None:
        with self._hub.arrived:
            self._cursors = {
                name: self._cursors.get(name, 0 if replay else len(self._hub.streams.get(name, ())))
                for name in streams
            }

    def receive(self, timeout_s: float) -> list[tuple[str, Message]]:
        with self._hub.arrived:
            if not (texts := self._take()):
                self._hub.arrived.wait(timeout_s)
                texts = self._take()
        return _readable(texts)

    def _take(self) -> list[tuple[str, str]]:
        texts = []
        for name, cursor in self._cursors.items():
            kept = self._hub.streams.get(name, [])
            start = cursor if cursor <= len(kept) else 0
            texts += [(name, text) for text in kept[start:]]
            self._cursors[name] = len(kept)
        return texts

    def close(self) -> None:
        self._cursors = {}


class RedisChannel:
    """Plain XREAD with own cursors: nothing on the server but the capped streams themselves."""

    def __init__(self, url: str, *, connect_timeout_s: float = 5.0) -> None:
        import redis

        from rmux.config import display_url

        self._errors = (redis.RedisError, OSError)
        self._shown_url = display_url(url)
        try:
            # A blocked read must outlive its own BLOCK time; anything else answers in milliseconds.
            self._writer = redis.Redis.from_url(
                url, decode_responses=True, socket_timeout=2.0, protocol=2
            )
            self._reader = redis.Redis.from_url(
                url, decode_responses=True, socket_timeout=5.0, protocol=2
            )
        except (ValueError, TypeError) as error:
            raise UserError(
                f"{self._shown_url}: {error}",
                code="channel.url",
                hint="use redis://host:port/0 or unix:///path/to.sock",
            ) from error
        self._lock = threading.Lock()
        self._cursors: dict[str, str] = {}
        self._expires_s: dict[str, float] = {}
        self._checked_s = 0.0
        self._closed = False
        self._run_id = self._first_contact(connect_timeout_s)

    def send(self, stream: str, message: Message) -> None:
        text = encode(message)
        try:
            self._writer.xadd(stream, {"m": text}, maxlen=_MAX_MESSAGES, approximate=True)
            now_s = time.monotonic()
            if self._expires_s.get(stream, 0.0) <= now_s:
                self._writer.expire(stream, _EXPIRE_S)
                self._expires_s[stream] = now_s + _EXPIRE_S / 24
        except self._errors as error:
            logger.info("lost a message to %s: %s", stream, error)
            # A server that comes back empty has to be told again.
            self._expires_s.pop(stream, None)

    def subscribe(self, streams: Iterable[str], *, replay: bool = False) -> None:
        wanted = tuple(dict.fromkeys(streams))
        with self._lock:
            known = dict(self._cursors)
        fresh = {name: _START for name in wanted if name not in known}
        if not replay:
            # Unreachable now: everything the server has after it is back is news to us.
            with contextlib.suppress(*self._errors):
                fresh = {name: self._last_id(self._writer, name) for name in fresh}
        with self._lock:
            self._cursors = {
                name: self._cursors.get(name, fresh.get(name, _START)) for name in wanted
            }

    def receive(self, timeout_s: float) -> list[tuple[str, Message]]:
        deadline_s = time.monotonic() + timeout_s
        pause_s = _RETRY_S
        while not self._closed:
            left_s = deadline_s - time.monotonic()
            try:
                texts = self._read(left_s)
            except self._errors as error:
                logger.info("channel %s: %s", self._shown_url, error)
                # Whatever comes back may be another server, or the same one emptied.
                self._checked_s = 0.0
                texts = []
                time.sleep(max(0.0, min(pause_s, left_s)))
                pause_s = min(2 * pause_s, _MAX_RETRY_S)
            if texts or time.monotonic() >= deadline_s:
                return _readable(texts)
        return []

    def close(self) -> None:
        self._closed = True
        self._writer.close()
        self._reader.close()

    def _read(self, left_s: float) -> list[tuple[str, str]]:
        if time.monotonic() - self._checked_s > _CHECK_EVERY_S:
            self._check_server()
        with self._lock:
            cursors = dict(self._cursors)
        wait_s = max(0.001, min(left_s, _BLOCK_S))
        if not cursors:
            time.sleep(wait_s)
            return []
        keys: dict[Any, Any] = dict(cursors)
        # BLOCK 0 would mean for ever.
        found: Any = self._reader.xread(keys, count=_MAX_MESSAGES, block=int(wait_s * 1000))
        texts = []
        with self._lock:
            for name, rows in found or ():
                if self._cursors.get(name) == cursors[name]:
                    texts += [(name, fields.get("m", "")) for _, fields in rows]
                    self._cursors[name] = rows[-1][0]
        return texts

    def _check_server(self) -> None:
        run_id = self._server_run_id(self._reader)
        replaced = run_id != self._run_id
        if replaced:
            logger.warning("channel %s is another server now: read from its start", self._shown_url)
        with self._lock:
            names = list(self._cursors)
        last = {name: self._last_id(self._reader, name) for name in names}
        with self._lock:
            for name, last_id in last.items():
                behind = name in self._cursors and _order(last_id) < _order(self._cursors[name])
                if replaced or behind:
                    self._cursors[name] = _START
        self._run_id = run_id
        self._checked_s = time.monotonic()

    def _first_contact(self, timeout_s: float) -> str:
        deadline_s = time.monotonic() + timeout_s
        while True:
            try:
                return self._server_run_id(self._writer)
            except self._errors as error:
                if time.monotonic() >= deadline_s:
                    within = f" within {timeout_s:g} s" if timeout_s else ""
                    raise UnreachableError(
                        f"no answer from the channel at {self._shown_url}{within}: {error}",
                        code="channel.unreachable",
                        hint="check that the Redis or Valkey server runs and the URL is right",
                    ) from error
                time.sleep(0.05)

    @staticmethod
    def _server_run_id(client: redis.Redis) -> str:
        info: Any = client.info("server")
        return str(info["run_id"])

    def _last_id(self, client: redis.Redis, name: str) -> str:
        rows: Any = client.xrevrange(name, count=1)
        return str(rows[0][0]) if rows else _START


def _readable(texts: Iterable[tuple[str, str]]) -> list[tuple[str, Message]]:
    found = []
    for name, text in texts:
        message = decode(text)
        if message is None:
            logger.warning("ignored a message on %s that this version cannot read", name)
        else:
            found.append((name, message))
    return found


def _order(entry_id: str) -> tuple[int, int]:
    time_ms, _, number = entry_id.partition("-")
    return int(time_ms), int(number or 0)
