from __future__ import annotations

import threading

import pytest

from rmux.errors import UnreachableError, UserError
from rmux.run.channel import MemoryChannel, MemoryHub, RedisChannel, connect
from rmux.run.inbox import Arrived, Inbox
from rmux.run.messages import Permits


def told(number: int) -> Permits:
    return Permits(acks=(("s", number),))


@pytest.fixture
def hub() -> MemoryHub:
    return MemoryHub()


def test_a_reader_gets_what_was_sent_after_it_subscribed(hub):
    sender, reader = MemoryChannel(hub), MemoryChannel(hub)
    sender.send("a", told(1))
    reader.subscribe(["a", "b"])
    sender.send("a", told(2))
    sender.send("b", told(3))
    sender.send("c", told(4))
    assert reader.receive(0) == [("a", told(2)), ("b", told(3))]
    assert reader.receive(0) == []


def test_a_reader_that_asks_for_replay_gets_what_was_there(hub):
    sender, reader = MemoryChannel(hub), MemoryChannel(hub)
    sender.send("a", told(1))
    reader.subscribe(["a"], replay=True)
    assert reader.receive(0) == [("a", told(1))]


def test_subscribing_again_keeps_the_place_in_streams_read_before(hub):
    sender, reader = MemoryChannel(hub), MemoryChannel(hub)
    reader.subscribe(["a"])
    sender.send("a", told(1))
    reader.subscribe(["a", "b"])
    assert reader.receive(0) == [("a", told(1))]
    reader.subscribe(["b"])
    sender.send("a", told(2))
    assert reader.receive(0) == []


def test_an_emptied_hub_is_read_from_the_start(hub):
    sender, reader = MemoryChannel(hub), MemoryChannel(hub)
    reader.subscribe(["a"])
    for number in range(3):
        sender.send("a", told(number))
    reader.receive(0)
    hub.flush()
    sender.send("a", told(9))
    assert reader.receive(0) == [("a", told(9))]


def test_a_message_that_cannot_be_read_is_left_out(hub):
    reader = MemoryChannel(hub)
    reader.subscribe(["a"])
    hub.streams["a"] = ['{"kind": "gossip", "v": 1}']
    MemoryChannel(hub).send("a", told(1))
    assert reader.receive(0) == [("a", told(1))]


def test_a_waiting_reader_wakes_when_something_comes(hub):
    reader = MemoryChannel(hub)
    reader.subscribe(["a"])
    found = []
    thread = threading.Thread(target=lambda: found.extend(reader.receive(10)))
    thread.start()
    MemoryChannel(hub).send("a", told(1))
    thread.join(5)
    assert found == [("a", told(1))]


def test_an_address_of_another_kind_is_refused():
    with pytest.raises(UserError, match="not a channel"):
        connect("http://somewhere")


def test_a_server_that_does_not_answer_at_first_contact_is_an_error(tmp_path):
    with pytest.raises(UnreachableError) as caught:
        RedisChannel(f"unix://{tmp_path}/nobody.sock", connect_timeout_s=0)
    assert caught.value.code == "channel.unreachable"


def test_an_inbox_keeps_only_the_newest_message_of_each_stream_and_every_other_item():
    inbox = Inbox()
    for item in (Arrived("a", told(1)), "x", Arrived("b", told(2)), Arrived("a", told(3)), "y"):
        inbox.post(item)
    assert inbox.take(0) == ["x", Arrived("b", told(2)), Arrived("a", told(3)), "y"]
    assert inbox.take(0) == []
