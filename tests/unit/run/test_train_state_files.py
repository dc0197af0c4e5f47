from __future__ import annotations

from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from rmux.errors import BackendError  # noqa: E402
from rmux.run.workers.train_state_files import SavedParts, write_part  # noqa: E402

NUMELS = (5, 4, 1)
WHOLE = torch.arange(10.0)


def write_split(folder: Path, ranks: int) -> None:
    """As ranks of ZeRO 3 do it: an equal piece of every parameter, the last ones filled up."""
    for rank in range(ranks):
        pieces, at = [], 0
        for numel in NUMELS:
            size = -(-numel // ranks)
            values = WHOLE[at : at + numel][rank * size : (rank + 1) * size]
            pieces.append(torch.nn.functional.pad(values, (0, size - values.numel()), value=-1.0))
            at += numel
        facts = {"numel": 10, "numels": NUMELS}
        write_part(folder, {"weights": torch.cat(pieces)}, facts=facts, rank=rank, ranks=ranks)


@pytest.mark.parametrize("ranks", [1, 2, 3, 4])
def test_pieces_of_every_parameter_are_put_together_in_order(tmp_path: Path, ranks: int) -> None:
    write_split(tmp_path, ranks)
    assert torch.equal(SavedParts(tmp_path).whole("weights"), WHOLE)


def test_ranges_of_one_buffer_are_put_together_in_order(tmp_path: Path) -> None:
    for rank, part in enumerate(WHOLE.split(4)):
        write_part(tmp_path, {"weights": part}, facts={"numel": 10}, rank=rank, ranks=3)
    saved = SavedParts(tmp_path)
    assert torch.equal(saved.whole("weights"), WHOLE)
    assert saved.whole("exp_avg") is None
    assert saved.facts == {"numel": 10}


def test_a_checkpoint_without_all_of_its_parts_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BackendError, match="no training state"):
        SavedParts(tmp_path)
    write_split(tmp_path, 3)
    (tmp_path / "part-0001-of-0003.safetensors").unlink()
    with pytest.raises(BackendError, match="not that of one set of ranks") as caught:
        SavedParts(tmp_path)
    assert caught.value.code == "checkpoint.torn"


def test_parts_of_two_attempts_are_not_mixed(tmp_path: Path) -> None:
    write_split(tmp_path, 2)
    write_split(tmp_path, 1)
    with pytest.raises(BackendError, match="not that of one set of ranks"):
        SavedParts(tmp_path)
