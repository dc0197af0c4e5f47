"""The blob's layout and its cuts."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rmux.errors import NotFoundError, UserError
from rmux.sync.shards import ALIGNMENT_BYTES, Manifest, Tensor, shards


@given(
    size_bytes=st.integers(0, 10**7),
    count=st.integers(1, 64),
    alignment_bytes=st.sampled_from([1, 2, 64, 4096]),
)
def test_shards_cover_the_blob_once_and_are_balanced_to_one_unit(
    size_bytes: int, count: int, alignment_bytes: int
) -> None:
    cut = shards(size_bytes, count=count, alignment_bytes=alignment_bytes)
    assert len(cut) == count
    assert cut[0].begin == 0
    assert cut[-1].end == size_bytes
    assert all(left.end == right.begin for left, right in itertools.pairwise(cut))
    sizes = [shard.num_bytes for shard in cut]
    assert max(sizes) - min(sizes) <= alignment_bytes
    assert all(shard.begin % alignment_bytes == 0 for shard in cut if shard.num_bytes)


def test_a_cut_into_no_shards_is_refused() -> None:
    with pytest.raises(UserError, match="into 0 shards"):
        shards(100, count=0)


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["bfloat16", "float32", "int8"]),
            st.lists(st.integers(0, 9), max_size=3),
        ),
        max_size=12,
    )
)
def test_tensors_are_laid_out_aligned_in_order_and_survive_a_document(
    entries: list[tuple[str, list[int]]],
) -> None:
    manifest = Manifest.of(
        (f"w{index}", dtype, shape) for index, (dtype, shape) in enumerate(entries)
    )
    end = 0
    for tensor in manifest.tensors:
        assert tensor.offset % ALIGNMENT_BYTES == 0
        assert tensor.offset >= end
        end = tensor.end
    assert manifest.size_bytes == end
    assert Manifest.from_document(manifest.to_document()) == manifest


def test_a_view_is_the_tensor_itself_inside_the_blob() -> None:
    manifest = Manifest.of([("a", "float32", (3,)), ("b", "bfloat16", (2, 2))])
    blob = bytearray(manifest.size_bytes)
    manifest.view(memoryview(blob), "b")[:] = b"12345678"
    assert blob[ALIGNMENT_BYTES:] == b"12345678"
    with pytest.raises(NotFoundError, match="lm_head"):
        manifest.view(memoryview(blob), "lm_head")


def test_an_unknown_dtype_names_the_known_ones() -> None:
    with pytest.raises(UserError, match="float7") as caught:
        Manifest.of([("a", "float7", (1,))])
    assert "bfloat16" in str(caught.value.hint)


@pytest.mark.parametrize(
    ("tensors", "problem"),
    [
        ([("a", "int8", (4,), 0, 5)], "not its shape's"),
        ([("a", "int8", (4,), 0, 4), ("b", "int8", (4,), 2, 4)], "overlaps"),
        ([("a", "int8", (4,), 98, 4)], "the end of the blob"),
        ([("a", "int8", (4,), 0, 4), ("a", "int8", (4,), 8, 4)], "twice"),
    ],
)
def test_a_manifest_that_contradicts_itself_is_refused(
    tensors: list[tuple[str, str, tuple[int, ...], int, int]], problem: str
) -> None:
    with pytest.raises(UserError, match=problem):
        Manifest(
            size_bytes=100,
            tensors=tuple(
                Tensor(name=name, dtype=dtype, shape=shape, offset=offset, bytes=count)
                for name, dtype, shape, offset, count in tensors
            ),
        )


def test_a_document_that_is_no_manifest_is_refused() -> None:
    with pytest.raises(UserError, match="not a weight manifest"):
        Manifest.from_document({"size_bytes": 4, "tensors": [{"name": "a"}]})
