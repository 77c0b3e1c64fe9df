"""Molecules to tokens and back, and the corpus made of them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from transformers import PreTrainedTokenizerFast

from tta_diffusion.data.config import PrepareConfig, SourceConfig, load_config
from tta_diffusion.data.prepare import prepare
from tta_diffusion.data.smiles import pieces, smiles_tokenizer, writes_smiles
from tta_diffusion.data.store import TokenStore
from tta_diffusion.data.tokenizer import load_tokenizer, special_ids
from tta_diffusion.tokens.tokenizer import special_tokens

ROOT = Path(__file__).parents[2]
QM9 = ("C", "C#N", "CN(C=O)CC1CC1O", "C1N2C3C4C5OC13C2C54", "Cc1[nH]cnc1F", "O=C([O-])CC[NH3+]", "c1cnn2c-1ccc2")
TRICKY = (
    "C[C@@H](N)C(=O)O",  # chirality inside brackets
    "F/C=C\\F",  # both bonds that say on which side
    "ClCCBr",  # atoms of two letters
    "[13CH4].[Na+].[Cl-]",  # isotopes, charges, a dot
    "C%12CCCCC%12",  # ring closures of two digits,
    "C%(123)CCCCC%(123)",  # and of three
    "[O-][N+](=O)c1ccccc1",
    "CSC",  # no Sc, no Co: two letters outside brackets are two atoms
    "c1ccc2[nH]ccc2c1",
)


@pytest.fixture(scope="module")
def chemist() -> PreTrainedTokenizerFast:
    return smiles_tokenizer([*QM9, *TRICKY])


def test_a_piece_is_an_atom_a_bond_a_bracket_or_a_ring_closure() -> None:
    assert pieces("C[C@@H](N)C") == ["C", "[C@@H]", "(", "N", ")", "C"]
    assert pieces("ClCBr") == ["Cl", "C", "Br"]
    assert pieces("C%12N%(123)1") == ["C", "%12", "N", "%(123)", "1"]
    assert pieces(" C\nO ") == ["C", "O"]


@pytest.mark.parametrize("smiles", [*QM9, *TRICKY])
def test_the_round_trip_is_exact(chemist: PreTrainedTokenizerFast, smiles: str) -> None:
    ids = chemist(smiles, add_special_tokens=False)["input_ids"]
    assert len(ids) == len(pieces(smiles))
    assert chemist.unk_token_id not in ids
    assert chemist.decode(ids) == smiles


@given(st.text(alphabet="CNOFBrl[]()=#%123+-cno@/\\", max_size=30))
def test_pieces_lose_nothing(text: str) -> None:
    assert "".join(pieces(text)) == text


def test_space_before_a_molecule_changes_nothing(chemist: PreTrainedTokenizerFast) -> None:
    """Packing encodes a sentence as it would follow another."""
    assert chemist(" CCO")["input_ids"] == chemist("CCO")["input_ids"]


def test_special_tokens_have_their_places_and_what_is_new_is_unknown(chemist: PreTrainedTokenizerFast) -> None:
    assert special_ids(chemist) == {"pad": 0, "eos": 1, "bos": 2, "unk": 3, "mask": 4}
    assert special_tokens(chemist).start == 2
    assert chemist("[Xe]C")["input_ids"][0] == chemist.unk_token_id
    assert chemist.decode([2, *chemist("CO")["input_ids"], 1, 0], skip_special_tokens=True) == "CO"


def test_a_saved_tokenizer_knows_what_it_writes(chemist: PreTrainedTokenizerFast, tmp_path: Path) -> None:
    chemist.save_pretrained(tmp_path)
    loaded = load_tokenizer(tmp_path)
    assert writes_smiles(loaded)
    assert loaded.get_vocab() == chemist.get_vocab()
    assert loaded.decode(loaded(TRICKY[0])["input_ids"]) == TRICKY[0]


def test_other_tokenizers_do_not(model_directory: Path) -> None:
    assert not writes_smiles(load_tokenizer(model_directory))
    assert not writes_smiles(object())


def test_the_vocabulary_is_that_of_the_data_frequent_pieces_first() -> None:
    vocabulary = smiles_tokenizer(["CCCO", "C=O"]).get_vocab()
    assert [vocabulary[piece] for piece in "CO="] == [5, 6, 7]
    assert len(vocabulary) == 8
    with pytest.raises(ValueError, match="no molecule"):
        smiles_tokenizer([])


def test_the_recipe_makes_one_sequence_a_molecule(tmp_path: Path) -> None:
    """configs/data/qm9.yaml on molecules of our own, read back from the arrays."""
    rows = [f"C{'C' * (i % 7)}{'=O' if i % 2 else '#N'}{'(F)' * (i // 14)}C" for i in range(140)]
    (tmp_path / "molecules.jsonl").write_text("".join(json.dumps({"smiles": row}) + "\n" for row in rows))
    recipe = load_config(ROOT / "configs/data/qm9.yaml")
    assert (recipe.length, recipe.validation_fraction, recipe.tokenizer_kind) == (32, 0.05, "smiles")
    source = SourceConfig("qm9", path=("molecules.jsonl",), field=recipe.sources[0].field)
    config = PrepareConfig(**{**vars(recipe), "sources": (source,)})
    prepare(config, tmp_path, tmp_path / "out")
    store = TokenStore.open(tmp_path / "out")
    tokenizer = load_tokenizer(store.tokenizer_dir)
    fits = [row for row in rows if len(pieces(row)) <= 31]
    assert len(fits) < len(rows)
    found = []
    for split in ("train", "validation"):
        for row in store.arrays[split][0].tolist():
            assert row[0] == store.special_ids["bos"]
            found.append(tokenizer.decode(row, skip_special_tokens=True))
    assert sorted(found) == sorted(fits)
    assert 0 < store.count("validation") < 25


def test_an_unknown_kind_of_tokenizer_is_named() -> None:
    with pytest.raises(ValueError, match=r"Unknown 'tokenizer_kind' 'smile'.*smiles"):
        PrepareConfig((SourceConfig("a", path=("x",)),), tokenizer_kind="smile")
