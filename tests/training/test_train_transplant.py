"""A smaller decoder with another vocabulary keeps what the larger one knows of shared tokens and layers."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from conftest import tiny_sizes
from tta_diffusion.denoiser.model import SimplexDenoiser
from tta_diffusion.training.transplant import main, pieces_of, token_vectors, transplant

TEXTS = [
    "the lake was calm and the boat was slow",
    "a boat on the lake, slow and calm",
    "lakes and boats and calm days",
]


def byte_level(vocab_size: int, texts: list[str]) -> PreTrainedTokenizerFast:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    special = ["<pad>", "</s>", "<s>"]
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=special,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token="<pad>", eos_token="</s>", bos_token="<s>")


@pytest.fixture(scope="module")
def large() -> tuple[LlamaForCausalLM, PreTrainedTokenizerFast]:
    tokenizer = byte_level(300, TEXTS)
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        **tiny_sizes(layers=4, inner=48),
        max_position_embeddings=64,
        tie_word_embeddings=True,
    )
    return LlamaForCausalLM(config).eval(), tokenizer


@torch.no_grad()
def test_all_layers_and_the_same_vocabulary_change_nothing(
    large: tuple[LlamaForCausalLM, PreTrainedTokenizerFast],
) -> None:
    model, tokenizer = large
    same, shared = transplant(model, tokenizer, tokenizer, range(4), length=64)
    assert shared == len(tokenizer) - 3
    ordinary = torch.tensor([[t for t in tokenizer(TEXTS[0]).input_ids if t > 2]])
    theirs, ours = model(ordinary).logits, same.eval()(ordinary).logits
    assert torch.allclose(ours[..., 3:], theirs[..., 3:], atol=1e-5)


def test_chosen_layers_and_shared_words_are_copied(large: tuple[LlamaForCausalLM, PreTrainedTokenizerFast]) -> None:
    model, tokenizer = large
    target = byte_level(290, ["boats were calm", "the days were slow"])
    small, shared = transplant(model, tokenizer, target, [0, 3], length=16)
    old, new = model.get_input_embeddings().weight, small.get_input_embeddings().weight
    both = set(tokenizer.get_vocab()) & set(target.get_vocab()) - set(target.all_special_tokens)
    assert shared == len(both) > 256
    for token in both:
        assert torch.equal(new[target.get_vocab()[token]], old[tokenizer.get_vocab()[token]])
    assert torch.equal(new[target.eos_token_id], old[tokenizer.bos_token_id])
    for mine, theirs in ((0, 0), (1, 3)):
        a, b = small.model.layers[mine].state_dict(), model.model.layers[theirs].state_dict()
        assert all(torch.equal(a[name], b[name]) for name in b)
    assert small.lm_head.weight is small.get_input_embeddings().weight


def test_a_new_word_lies_between_its_pieces(large: tuple[LlamaForCausalLM, PreTrainedTokenizerFast]) -> None:
    model, tokenizer = large
    table, known = model.get_input_embeddings().weight.detach(), tokenizer.get_vocab()
    target = byte_level(320, ["zebra zebra zebra zebra"])
    vectors, _ = token_vectors(table, tokenizer, target)
    fresh = next(t for t in target.get_vocab() if len(t) > 2 and t not in known and t not in target.all_special_tokens)
    pieces = pieces_of(fresh, known)
    assert "".join(tokenizer.convert_ids_to_tokens(pieces)) == fresh
    assert torch.allclose(vectors[target.get_vocab()[fresh]], table[pieces].mean(0))


@pytest.mark.parametrize("layers", [[0, 4], [1, 1], [-1], []])
def test_layers_that_do_not_exist(large: tuple[LlamaForCausalLM, PreTrainedTokenizerFast], layers: list[int]) -> None:
    model, tokenizer = large
    with pytest.raises(ValueError, match="layers must be different numbers from 0 to 3"):
        transplant(model, tokenizer, tokenizer, layers, length=64)


def test_the_command_writes_a_start_for_training(
    large: tuple[LlamaForCausalLM, PreTrainedTokenizerFast], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model, tokenizer = large
    model.bfloat16().save_pretrained(tmp_path / "large")
    model.float()
    tokenizer.save_pretrained(tmp_path / "large")
    byte_level(280, TEXTS).save_pretrained(tmp_path / "tokenizer")
    main([str(tmp_path / "large"), str(tmp_path / "tokenizer"), str(tmp_path / "small"), "--layers", "0,2"])
    assert "2 layers" in capsys.readouterr().out
    denoiser = SimplexDenoiser.from_backbone(tmp_path / "small", length=16)
    assert denoiser.config.shift_predictions
    assert {p.dtype for p in denoiser.parameters()} == {torch.float32}
