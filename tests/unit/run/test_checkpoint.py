"""Checkpoints survive crashes and notice damage."""

import json
import os

import pytest

from rmux.run.driver import checkpoint


def fill(folder):
    (folder / "weights.bin").write_bytes(os.urandom(5000))
    (folder / "deep").mkdir()
    (folder / "deep" / "state.json").write_text("{}")


def write(run_dir, iteration, *, keep=9, fill=fill):
    return checkpoint.write(
        run_dir,
        iteration=iteration,
        weight_version=iteration,
        attempt=2,
        seed=7,
        keep=keep,
        fill=fill,
    )


def names(run_dir):
    return sorted(path.name for path in (run_dir / "checkpoints").iterdir())


def test_a_job_without_checkpoints_starts_at_the_beginning(tmp_path):
    assert checkpoint.latest(tmp_path) is None


def test_the_newest_checkpoint_is_found_with_what_was_written_about_it(tmp_path):
    write(tmp_path, 2)
    written = write(tmp_path, 10)
    found = checkpoint.latest(tmp_path)
    assert found == written
    assert (found.iteration, found.weight_version, found.attempt, found.seed) == (10, 10, 2, 7)
    assert found.folder == tmp_path / "checkpoints" / "it-000010"
    assert set(found.files) == {"weights.bin", "deep/state.json"}
    assert found.bytes == 5002


def flip_a_byte(folder):
    path = folder / "weights.bin"
    data = bytearray(path.read_bytes())
    data[2500] ^= 1
    path.write_bytes(data)


def tear(folder):
    path = folder / "weights.bin"
    path.write_bytes(path.read_bytes()[:4096])


def tear_the_manifest(folder):
    path = folder / "manifest.json"
    path.write_text(path.read_text()[:40])


def lose_a_file(folder):
    (folder / "deep" / "state.json").unlink()


def lose_the_manifest(folder):
    (folder / "manifest.json").unlink()


def take_anothers_name(folder):
    path = folder / "manifest.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "iteration": 99}))


@pytest.mark.parametrize(
    "damage",
    [
        flip_a_byte,
        tear,
        tear_the_manifest,
        lose_a_file,
        lose_the_manifest,
        take_anothers_name,
    ],
)
def test_a_damaged_checkpoint_is_skipped_for_the_one_before(tmp_path, damage, caplog):
    write(tmp_path, 1)
    newest = write(tmp_path, 2)
    damage(newest.folder)
    assert checkpoint.latest(tmp_path).iteration == 1
    assert "it-000002 is damaged" in caplog.text


def test_a_write_that_fails_leaves_only_the_older_checkpoint(tmp_path):
    write(tmp_path, 1)

    def half(folder):
        fill(folder)
        raise OSError("no space left on device")

    with pytest.raises(OSError, match="no space"):
        write(tmp_path, 2, fill=half)
    assert names(tmp_path) == ["it-000001"]
    assert checkpoint.latest(tmp_path).iteration == 1


def test_a_crash_while_writing_is_invisible_and_cleaned_up_by_the_next(tmp_path):
    write(tmp_path, 1)
    left = tmp_path / "checkpoints" / ".it-000002.4711"
    left.mkdir()
    (left / "weights.bin").write_bytes(b"half")
    assert checkpoint.latest(tmp_path).iteration == 1
    write(tmp_path, 2)
    assert names(tmp_path) == ["it-000001", "it-000002"]


def test_only_the_newest_are_kept(tmp_path):
    for iteration in range(1, 6):
        write(tmp_path, iteration, keep=2)
    assert names(tmp_path) == ["it-000004", "it-000005"]


def test_an_iteration_done_again_replaces_its_checkpoint(tmp_path):
    first = write(tmp_path, 3)
    second = write(tmp_path, 3)
    assert first.files != second.files
    assert checkpoint.latest(tmp_path) == second
    assert names(tmp_path) == ["it-000003"]
