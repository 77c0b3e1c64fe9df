"""The objective is learnt: a tiny model knows its sentences by heart, or their statistics where it sees nothing."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedModel, RobertaConfig, RobertaForMaskedLM

from train_helpers import WORDS, losses, make_config, make_tokenizer, sentences, train, write_corpus
from tta_diffusion.denoiser.model import SimplexDenoiser
from tta_diffusion.pipeline import TTAPipeline
from tta_diffusion.training.loop import Run


@pytest.mark.slow
def test_64_sentences_by_heart(tmp_path: Path) -> None:
    """From its first three words, each is written again exactly."""
    texts = sentences(64, seed=3)
    prompts = [" ".join(text.split()[:3]) for text in texts]
    assert len(set(prompts)) == 64
    corpus = write_corpus(tmp_path / "corpus", texts)
    backbone = {"model_type": "llama", "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2}
    config = make_config(
        corpus,
        tmp_path / "out",
        model={"backbone": {**backbone, "intermediate_size": 128}},
        optim={"steps": 240, "batch": 64, "micro_batch": 64, "warmup": 20, "ema": 0.95, "weight_decay": 0.0},
        condition={"prefix": [3, 3], "prefix_share": 1.0},
        run={"log_every": 40, "save_every": 1000},
    )
    train(config)
    pipeline = TTAPipeline.from_pretrained(tmp_path / "out" / "model")
    output = pipeline(prompts, steps=10, allocation="constant", top_p=0.5, seed=0)
    exact = sum(a == b for a, b in zip(output.texts, texts, strict=True))
    assert exact >= 62, f"{exact} of 64"


def test_at_time_one_the_loss_is_the_entropy_of_the_marginals(tmp_path: Path) -> None:
    """Without a prefix, pure noise tells nothing: the best prediction of a position is how often its tokens occur."""
    corpus = write_corpus(tmp_path / "corpus", sentences(256, words=WORDS[:6]))
    backbone = {"model_type": "bert", "hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
    backbone |= {"intermediate_size": 64, "hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    config = make_config(
        corpus,
        tmp_path / "out",
        model={"backbone": backbone},
        optim={"steps": 128, "batch": 64, "micro_batch": 64, "lr": 1e-2, "warmup": 5, "weight_decay": 0.0},
        time={"sampler": "grid", "grid": 1, "allocation_share": 0.0},
        condition={"prefix": [0, 0]},
        run={"log_every": 32, "save_every": 1000},
    )
    run = train(config)
    ids = torch.from_numpy(run.store.batch(range(256)))[:, 1:]  # the start token is given
    counts = torch.stack([torch.bincount(column, minlength=run.store.vocab_size) for column in ids.T]).double()
    entropy = float(torch.special.entr(counts / 256).sum(-1).mean())
    curve = [loss for _, loss, *_ in losses(tmp_path / "out")]
    assert entropy < curve[-1] < entropy + 0.02
    assert curve[0] > curve[1] > curve[2] > entropy


def save_language_model(kind: str, directory: Path) -> PreTrainedModel:
    tokenizer = make_tokenizer()
    torch.manual_seed(0)
    common = {"vocab_size": len(tokenizer), "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2}
    common |= {"intermediate_size": 64, "pad_token_id": 0, "eos_token_id": 1, "bos_token_id": 2}
    model: PreTrainedModel
    if kind == "masked":
        model = RobertaForMaskedLM(RobertaConfig(**common, max_position_embeddings=32))
    else:
        model = LlamaForCausalLM(LlamaConfig(**common, max_position_embeddings=32))
    model.save_pretrained(directory)
    tokenizer.save_pretrained(directory)
    return model


@pytest.mark.parametrize("kind", ["masked", "decoder"])
def test_from_a_language_model(kind: str, tmp_path: Path) -> None:
    language_model = save_language_model(kind, tmp_path / "lm")
    corpus = write_corpus(tmp_path / "corpus", sentences(64, words=WORDS[:5]))
    config = make_config(
        corpus,
        tmp_path / "out",
        model={"start": str(tmp_path / "lm"), "backbone": None},
        optim={"steps": 40, "batch": 16, "micro_batch": 16, "warmup": 5},
        run={"log_every": 10, "save_every": 1000},
    )
    run = Run(config)
    ours = dict(run.model.denoiser.backbone.model.named_parameters())
    assert all(torch.equal(parameter, ours[name]) for name, parameter in language_model.named_parameters())
    run.train()
    curve = [loss for _, loss, *_ in losses(tmp_path / "out")]
    assert curve[-1] < 0.7 * curve[0]
    exported = SimplexDenoiser.from_pretrained(tmp_path / "out" / "model")
    assert exported.config.shift_predictions == (kind == "decoder")
    assert not torch.equal(exported.backbone.table.weight, language_model.get_input_embeddings().weight)
