from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from rmux.errors import BackendError, ConflictError  # noqa: E402
from rmux.run.workers.train_state_moved import OwnCopies, memory_of  # noqa: E402


def test_moved_state_is_empty_can_be_looked_at_and_comes_back_under_every_view() -> None:
    flat = torch.arange(12.0)
    view, other = flat[4:].view(2, 4), torch.ones(3, dtype=torch.int64)
    copies = OwnCopies(lambda: [flat, view, other])
    assert copies.move_out() == 12 * 4 + 3 * 8, "one storage counts once"
    assert flat.untyped_storage().nbytes() == other.untyped_storage().nbytes() == 0
    assert copies.look(view).tolist() == [[4.0, 5.0, 6.0, 7.0], [8.0, 9.0, 10.0, 11.0]]
    assert copies.look(other).tolist() == [1, 1, 1]
    assert copies.are_out
    assert copies.move_back() == 72
    assert view.tolist() == [[4.0, 5.0, 6.0, 7.0], [8.0, 9.0, 10.0, 11.0]]
    assert copies.move_back() == 0


def test_a_second_move_uses_the_same_host_memory_and_new_values() -> None:
    tensor = torch.zeros(1000)
    copies = OwnCopies(lambda: [tensor])
    places = []
    for value in (1.0, 2.0):
        tensor.fill_(value)
        copies.move_out()
        places.append(copies.look(tensor).data_ptr())
        copies.move_back()
        assert tensor.tolist() == [value] * 1000
    assert places[0] == places[1]


def test_state_is_not_moved_twice() -> None:
    tensor = torch.zeros(4)
    copies = OwnCopies(lambda: [tensor])
    copies.move_out()
    with pytest.raises(ConflictError):
        copies.move_out()


def test_memory_that_torch_may_not_empty_is_refused_before_anything_moves() -> None:
    free, held = torch.ones(4), torch.ones(4)
    held.numpy()
    copies = OwnCopies(lambda: [free, held])
    with pytest.raises(BackendError, match="1 of 2 storages"):
        copies.move_out()
    assert free.tolist() == [1.0] * 4
    assert not copies.are_out


def test_reading_the_bytes_of_a_tensor_does_not_keep_it_from_being_moved() -> None:
    tensor = torch.arange(3, dtype=torch.uint8)
    view = memory_of(tensor)
    assert (bytes(view), view.readonly) == (b"\x00\x01\x02", True)
    assert OwnCopies(lambda: [tensor]).move_out() == 3
    assert bytes(memory_of(torch.tensor([7], dtype=torch.uint8).clone())) == b"\x07"
