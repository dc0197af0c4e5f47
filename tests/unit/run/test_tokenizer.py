"""The character tokenizer."""

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
