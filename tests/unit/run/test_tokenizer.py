"""The character tokenizer."""

import sys
import types

import pytest

from rmux.errors import UserError
from rmux.run.driver.tokenizer import SYMBOLS, CharTokenizer, load_tokenizer


def test_there_are_64_symbols_and_every_text_of_them_comes_back():
    tokenizer = CharTokenizer()
    assert tokenizer.num_tokens == 64
    assert tokenizer.decode(tokenizer.encode(SYMBOLS)) == SYMBOLS
    assert tokenizer.encode("ab") == (0, 1)


def test_it_is_loaded_from_beside_the_model_as_it_was_saved(tmp_path):
    CharTokenizer("zyx").save(tmp_path)
    assert load_tokenizer(tmp_path).encode("xyz") == (2, 1, 0)


def test_an_unknown_character_is_named():
    with pytest.raises(UserError, match="'é' is not among the 64 symbols"):
        CharTokenizer().encode("abé")


@pytest.mark.parametrize("symbols", ["", "aba"])
def test_symbols_must_be_unique(symbols):
    with pytest.raises(UserError):
        CharTokenizer(symbols)


def test_a_broken_file_is_an_error_that_names_it(tmp_path):
    (tmp_path / "char_tokenizer.json").write_text('{"kind": "char"')
    with pytest.raises(UserError, match=r"char_tokenizer\.json is no character tokenizer"):
        load_tokenizer(tmp_path)


@pytest.mark.parametrize("size", [63, 65])
def test_a_model_with_another_vocabulary_is_refused_with_both_numbers(tmp_path, size):
    CharTokenizer().save(tmp_path)
    (tmp_path / "config.json").write_text(f'{{"vocab_size": {size}}}')
    with pytest.raises(
        UserError, match=f"has 64 tokens, the model a vocabulary of {size}"
    ) as found:
        load_tokenizer(tmp_path)
    assert found.value.code == "model.vocabulary"
    (tmp_path / "config.json").write_text('{"text_config": {"vocab_size": 64}}')
    assert load_tokenizer(tmp_path).num_tokens == 64


def test_a_vocabulary_that_was_filled_up_fits_and_one_that_is_too_small_does_not(
    tmp_path, monkeypatch
):
    """What transformers itself loads takes seconds to import and is not in question here."""
    stand_in = types.SimpleNamespace(from_pretrained=lambda folder, local_files_only: range(10))
    monkeypatch.setitem(sys.modules, "transformers", types.SimpleNamespace(AutoTokenizer=stand_in))
    (tmp_path / "config.json").write_text('{"vocab_size": 16}')
    assert load_tokenizer(tmp_path).num_tokens == 10
    (tmp_path / "config.json").write_text('{"vocab_size": 9}')
    with pytest.raises(UserError, match="has 10 tokens, the model a vocabulary of 9"):
        load_tokenizer(tmp_path)
