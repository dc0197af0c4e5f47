"""The Redis channel on the embedded server: restarts, FLUSHALL, clocks that step back."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
import uuid

import pytest
import redis

from rmux.errors import UserError
from rmux.run import processes, valkey
from rmux.run.channel import RedisChannel, connect
from rmux.run.messages import Permits

pytestmark = pytest.mark.redis


def told(number: int) -> Permits:
    return Permits(acks=(("s", number),))


class Server:
    def __init__(self, log) -> None:
        self.tag = f"rxv{uuid.uuid4().hex[:6]}"
        self.url = valkey.socket_url(self.tag)
        self.log = log
        self.start()

    def start(self) -> None:
        environ = {**os.environ, processes.TAG_VARIABLE: self.tag}
        self.child = valkey.start(self.tag, environ=environ, log=self.log)
        valkey.wait_ready(self.url, timeout_s=10)

    def kill(self) -> None:
        self.child.send_signal(signal.SIGKILL)
        self.child.wait()

    def close(self) -> None:
        self.child.kill()
        self.child.wait()
        folder = valkey.temp_folder(self.tag)
        valkey.socket_path(self.tag).unlink(missing_ok=True)
        folder.rmdir()


@pytest.fixture
def server(tmp_path):
    running = Server(tmp_path / "valkey.log")
    yield running
    running.close()


@pytest.fixture
def channels(server):
    made = [connect(server.url), connect(server.url)]
    yield made
    for channel in made:
        channel.close()


def received(channel, *, timeout_s: float = 5.0):
    """Everything up to the first silence after something came."""
    found = []
    deadline_s = time.monotonic() + timeout_s
    while time.monotonic() < deadline_s and not found:
        found += channel.receive(0.2)
    return [message.acks[0][1] for _, message in found]


def test_a_message_reaches_its_reader_and_only_new_ones_do(channels):
    sender, reader = channels
    sender.send("a", told(1))
    reader.subscribe(["a"])
    sender.send("a", told(2))
    assert received(reader) == [2]
    assert reader.receive(0.05) == []


def test_replay_begins_at_the_oldest_kept(channels):
    sender, reader = channels
    sender.send("a", told(1))
    sender.send("a", told(2))
    reader.subscribe(["a"], replay=True)
    assert received(reader) == [1, 2]


def test_streams_are_capped_and_expire(channels, server):
    sender, _ = channels
    for number in range(1000):
        sender.send("a", told(number))
    client = redis.Redis.from_url(server.url)
    assert client.xlen("a") < 500
    assert 0 < client.ttl("a") <= 24 * 3600
    client.close()


def test_a_reader_subscribed_while_it_waits_loses_nothing(channels):
    sender, reader = channels
    found = []
    thread = threading.Thread(target=lambda: found.extend(reader.receive(5)))
    thread.start()
    time.sleep(0.02)
    reader.subscribe(["a"])
    sender.send("a", told(1))
    thread.join(6)
    assert [message for _, message in found] == [told(1)]


def test_what_comes_after_a_flush_is_read(channels, server):
    sender, reader = channels
    reader.subscribe(["a"])
    sender.send("a", told(1))
    assert received(reader) == [1]
    client = redis.Redis.from_url(server.url)
    client.flushall()
    client.close()
    sender.send("a", told(2))
    assert received(reader) == [2]


def test_ids_that_fell_behind_the_cursor_are_read_from_the_start(channels, server):
    sender, reader = channels
    reader.subscribe(["a"])
    sender.send("a", told(1))
    assert received(reader) == [1]
    client = redis.Redis.from_url(server.url, decode_responses=True)
    text = client.xrange("a")[0][1]["m"]
    client.delete("a")
    client.xadd("a", {"m": text}, id="5-1")  # a server whose clock stepped back
    client.close()
    assert received(reader) == [1]


def test_both_ends_survive_a_killed_server_at_the_same_path(channels, server):
    sender, reader = channels
    reader.subscribe(["a"])
    sender.send("a", told(1))
    assert received(reader) == [1]
    server.kill()
    sender.send("a", told(2))  # lost, and no error
    assert reader.receive(0.1) == []
    server.start()
    sender.send("a", told(3))
    assert received(reader) == [3]


def test_a_server_that_starts_late_is_waited_for(server, tmp_path):
    server.kill()
    timer = threading.Timer(0.3, server.start)
    timer.start()
    channel = RedisChannel(server.url, connect_timeout_s=5)
    timer.join()
    channel.close()


def test_the_socket_is_private_and_listens_nowhere_else(server):
    assert valkey.temp_folder(server.tag).stat().st_mode & 0o777 == 0o700
    assert valkey.socket_path(server.tag).stat().st_mode & 0o077 == 0
    client = redis.Redis.from_url(server.url)
    assert client.config_get("port") == {"port": "0"}
    assert client.config_get("save") == {"save": ""}
    client.close()


def test_the_server_carries_the_run_tag_and_dies_with_what_started_it(tmp_path):
    tag = f"rxv{uuid.uuid4().hex[:6]}"
    code = (
        "import os, sys, time; from pathlib import Path; from rmux.run import valkey\n"
        f"valkey.start({tag!r}, environ={{**os.environ, 'RMUX_RUN_TAG': {tag!r}}}, "
        f"log=Path({str(tmp_path / 'log')!r}))\n"
        f"valkey.wait_ready(valkey.socket_url({tag!r}), timeout_s=10)\n"
        "print('ready', flush=True); time.sleep(60)"
    )

    starter = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE)
    try:
        assert starter.stdout is not None
        assert starter.stdout.readline() == b"ready\n"
        (server,) = processes.tagged(tag)
        starter.kill()
        assert processes.wait_ended([server], timeout_s=5) == []
    finally:
        starter.kill()
        starter.wait()
        starter.stdout.close()
        processes.sweep(tag, grace_s=1)
        valkey.socket_path(tag).unlink(missing_ok=True)
        valkey.temp_folder(tag).rmdir()


def test_a_socket_path_that_is_too_long_is_refused_with_its_length(monkeypatch, tmp_path):
    deep = tmp_path / ("x" * 60) / ("y" * 40)
    deep.mkdir(parents=True)
    monkeypatch.setattr("tempfile.tempdir", str(deep))
    with pytest.raises(UserError, match="107 bytes"):
        valkey.socket_path("rx123456")
