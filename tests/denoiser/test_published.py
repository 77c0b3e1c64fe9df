"""LLaDA and Dream checkpoints as they are published: other names, other configs, no code of theirs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor
from transformers import Qwen2Config, Qwen2ForCausalLM

from conftest import make_tokenizer
from tta_diffusion.denoiser.backbone import Backbone
from tta_diffusion.denoiser.token_model import TokenDenoiser
from tta_diffusion.diffusion.discrete import Seen
from tta_diffusion.pipeline import TTAPipeline
from tta_diffusion.tokens.canvas import Canvas, SpecialTokens

V, WIDTH, HEADS, SHARED, LAYERS, INNER, EPS, THETA, LENGTH = 40, 16, 4, 2, 2, 24, 1e-5, 5000.0, 12
MASK = 38  # a token that the tokenizer does not know
LLADA = {
    "model_type": "llada",
    "auto_map": {"AutoConfig": "configuration_llada.LLaDAConfig", "AutoModel": "modeling_llada.LLaDAModelLM"},
    "block_type": "llama",
    "activation_type": "silu",
    "d_model": WIDTH,
    "n_heads": HEADS,
    "n_kv_heads": SHARED,
    "n_layers": LAYERS,
    "mlp_hidden_size": INNER,
    "vocab_size": V - 1,
    "embedding_size": V,
    "max_sequence_length": 32,
    "rms_norm_eps": EPS,
    "rope": True,
    "rope_theta": THETA,
    "weight_tying": False,
    "mask_token_id": MASK,
    "eos_token_id": 1,
    "pad_token_id": 1,
}


def llada(directory: Path, **changes: object) -> dict[str, Tensor]:
    """A tiny checkpoint in two files; its weights."""
    torch.manual_seed(0)
    kept = WIDTH // HEADS * SHARED
    shapes = {"wte": (V, WIDTH), "ln_f": (WIDTH,), "ff_out": (V, WIDTH)}
    for layer in range(LAYERS):
        inner = {"q_proj": (WIDTH, WIDTH), "k_proj": (kept, WIDTH), "v_proj": (kept, WIDTH), "attn_out": (WIDTH, WIDTH)}
        inner |= {"ff_proj": (INNER, WIDTH), "up_proj": (INNER, WIDTH), "ff_out": (WIDTH, INNER)}
        inner |= {"attn_norm": (WIDTH,), "ff_norm": (WIDTH,)}
        shapes |= {f"blocks.{layer}.{name}": shape for name, shape in inner.items()}
    weights = {f"model.transformer.{name}.weight": torch.randn(*shape) * 0.3 for name, shape in shapes.items()}
    names = sorted(weights)
    for number, part in enumerate((names[::2], names[1::2])):
        save_file({name: weights[name] for name in part}, directory / f"model-0000{number + 1}-of-00002.safetensors")
    (directory / "config.json").write_text(json.dumps(LLADA | changes))
    return weights


def norm(x: Tensor, weight: Tensor) -> Tensor:
    return x / (x.square().mean(-1, keepdim=True) + EPS).sqrt() * weight


def turned(x: Tensor) -> Tensor:
    """Rotary positions of (L, heads, d): entry j and entry j + d/2 are a pair."""
    length, _, d = x.shape
    angle = torch.arange(length)[:, None] * THETA ** (-torch.arange(0, d, 2) / d)
    cos, sin = angle.cos()[:, None], angle.sin()[:, None]
    a, b = x[..., : d // 2], x[..., d // 2 :]
    return torch.cat([a * cos - b * sin, b * cos + a * sin], -1)


def directly(weights: dict[str, Tensor], ids: Tensor) -> Tensor:
    """Logits (L, V) of tokens (L,), written from the architecture: every position sees every other one."""
    w = {name.removeprefix("model.transformer.").removesuffix(".weight"): x for name, x in weights.items()}
    x, d = w["wte"][ids], WIDTH // HEADS
    for layer in range(LAYERS):
        own = {name.split(".")[-1]: one for name, one in w.items() if name.startswith(f"blocks.{layer}.")}
        read = norm(x, own["attn_norm"])
        q, k, v = ((read @ own[name].T).unflatten(-1, (-1, d)) for name in ("q_proj", "k_proj", "v_proj"))
        q, k, v = turned(q), turned(k).repeat_interleave(HEADS // SHARED, 1), v.repeat_interleave(HEADS // SHARED, 1)
        seen = torch.einsum("qhd,khd->hqk", q, k) / d**0.5
        x = x + torch.einsum("hqk,khd->qhd", seen.softmax(-1), v).flatten(1) @ own["attn_out"].T
        read = norm(x, own["ff_norm"])
        x = x + (torch.nn.functional.silu(read @ own["ff_proj"].T) * (read @ own["up_proj"].T)) @ own["ff_out"].T
    return norm(x, w["ln_f"]) @ w["ff_out"].T


def dream(directory: Path) -> Qwen2ForCausalLM:
    """A tiny checkpoint with Qwen2's names, and the model that it was saved from."""
    torch.manual_seed(1)
    own = {"vocab_size": V, "hidden_size": WIDTH, "intermediate_size": INNER, "num_hidden_layers": LAYERS}
    own |= {"num_attention_heads": HEADS, "num_key_value_heads": SHARED, "max_position_embeddings": 32}
    own |= {"rms_norm_eps": EPS, "tie_word_embeddings": False, "bos_token_id": 2, "eos_token_id": 1}
    rope = {"rope_type": "default", "rope_theta": THETA}
    model = Qwen2ForCausalLM(Qwen2Config(**own, rope_parameters=rope, attn_implementation="eager")).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(std=0.3)
    save_file(dict(model.state_dict()), directory / "model.safetensors")
    theirs = {"model_type": "Dream", "mask_token_id": MASK}
    theirs |= {"auto_map": {"AutoConfig": "configuration_dream.DreamConfig", "AutoModel": "modeling_dream.DreamModel"}}
    theirs |= {"rope_theta": THETA, "rope_scaling": None, "use_sliding_window": False, "sliding_window": 4}
    (directory / "config.json").write_text(json.dumps(own | theirs))
    return model


def name_regime(directory: Path, **more: object) -> None:
    (directory / "denoiser.json").write_text(json.dumps({"regime": "masked", "length": LENGTH} | more))


def predicted(denoiser: TokenDenoiser, ids: Tensor) -> Tensor:
    """(L, V) as the sampler asks for them."""
    canvas = Canvas.blank(1, len(ids), SpecialTokens(pad=0, end=1))
    seen = Seen(ids[None], torch.zeros(1, len(ids)))
    return denoiser.predict(seen, torch.full((1, len(ids)), 0.5), canvas, None, None, 8).values[0]


@torch.no_grad()
def test_llada_predicts_what_its_architecture_says(tmp_path):
    weights = llada(tmp_path)
    name_regime(tmp_path)
    denoiser = TokenDenoiser.from_pretrained(tmp_path)
    assert denoiser.config.mask_token == MASK
    ids = torch.randint(0, V, (LENGTH,))
    torch.testing.assert_close(predicted(denoiser, ids), directly(weights, ids), rtol=1e-4, atol=1e-5)


@torch.no_grad()
def test_dream_predicts_a_token_from_the_position_before(tmp_path):
    model = dream(tmp_path)
    name_regime(tmp_path)
    denoiser = TokenDenoiser.from_pretrained(tmp_path)
    assert denoiser.config.mask_token == MASK
    ids = torch.randint(0, V, (LENGTH,))
    everywhere = torch.zeros(1, 1, LENGTH, LENGTH)  # added to the scores of attention: nothing is hidden
    logits = model(ids[None], attention_mask=everywhere).logits[0]
    expected = torch.cat([logits[:1], logits[:-1]])
    torch.testing.assert_close(predicted(denoiser, ids), expected, rtol=1e-4, atol=1e-5)
    name_regime(tmp_path, shift_predictions=False)
    torch.testing.assert_close(predicted(TokenDenoiser.from_pretrained(tmp_path), ids), logits, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("make", [llada, dream])
def test_its_directory_is_a_model_directory(make, tmp_path):
    make(tmp_path)
    name_regime(tmp_path, sampling={"steps": 4})
    make_tokenizer().save_pretrained(tmp_path)
    pipe = TTAPipeline.from_pretrained(tmp_path)
    written = pipe("the pizza", num_samples=6, seed=0, order="confidence")
    assert set(written.steps) == {4}
    assert not bool((written.sequences == MASK).any()), "the mask is no word, though no tokenizer says so"
    pipe.save_pretrained(tmp_path / "saved")
    again = TTAPipeline.from_pretrained(tmp_path / "saved")
    assert again("the pizza", num_samples=6, seed=0, order="confidence").texts == written.texts


def test_what_cannot_be_read_is_one_sentence(tmp_path):
    llada(tmp_path, include_qkv_bias=True)
    with pytest.raises(ValueError, match="has include_qkv_bias=True, and only include_qkv_bias=False"):
        Backbone.from_pretrained(tmp_path)
    weights = llada(tmp_path, n_layers=1)
    with pytest.raises(ValueError, match="do not fit this config"):
        Backbone.from_pretrained(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "llada"}))
    with pytest.raises(ValueError, match="has no 'vocab_size'"):
        Backbone.from_pretrained(tmp_path)
    for file in tmp_path.glob("*.safetensors"):
        file.unlink()
    (tmp_path / "config.json").write_text(json.dumps(LLADA))
    torch.save(weights, tmp_path / "pytorch_model.bin")
    with pytest.raises(ValueError, match="no safetensors"):
        Backbone.from_pretrained(tmp_path)
    name_regime(tmp_path, lenght=3)
    with pytest.raises(ValueError, match="Unknown key 'lenght'"):
        TokenDenoiser.from_pretrained(tmp_path)
