"""The shipped model's networks and tokenizer without transformers: the same as with it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import Tensor
from transformers import AutoTokenizer, LlamaConfig, LlamaForCausalLM, ModernBertConfig
from transformers import ModernBertForSequenceClassification as Classifier

from tta_diffusion.assets import MODEL
from tta_diffusion.denoiser.backbone import Backbone
from tta_diffusion.fast.light import llama, modernbert
from tta_diffusion.fast.light.llama import Kept, LightLlama, Rows
from tta_diffusion.fast.light.tokenizer import LightTokenizer

B, L = 3, 9


def llama_config(layers: int = 3, tied: bool = True) -> dict[str, object]:
    return {
        "model_type": "llama",
        "vocab_size": 50,
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_hidden_layers": layers,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 8,
        "max_position_embeddings": 40,
        "rms_norm_eps": 1e-5,
        "rope_parameters": {"rope_type": "default", "rope_theta": 1000.0},
        "tie_word_embeddings": tied,
        "initializer_range": 0.2,
    }


def light(layers: int = 3) -> LightLlama:
    torch.manual_seed(0)
    return LightLlama(llama_config(layers)).eval()


@pytest.mark.parametrize("tied", [True, False])
def test_llama_is_the_one_of_transformers(tied: bool) -> None:
    torch.manual_seed(0)
    raw = llama_config(tied=tied)
    theirs = Backbone(LlamaForCausalLM(LlamaConfig(**{k: v for k, v in raw.items() if k != "model_type"})))
    ours = Backbone.to_fill(raw)
    assert isinstance(ours.model, LightLlama)
    assert ours.state_dict().keys() == theirs.state_dict().keys()
    ours.load_state_dict(theirs.state_dict())
    x = torch.randn(B, L, 32)
    with torch.no_grad():
        assert torch.allclose(ours.encode(x), theirs.encode(x), atol=1e-5)
        assert torch.allclose(ours.head(ours.encode(x)), theirs.head(theirs.encode(x)), atol=1e-5)
    assert (ours.model.lm_head.weight is ours.table.weight) == tied


@pytest.mark.parametrize(
    "change",
    [
        {"attention_bias": True},
        {"rope_parameters": {"rope_type": "yarn"}},
        {"model_type": "qwen2"},
        {"hidden_act": "gelu"},
    ],
)
def test_what_is_not_plain_goes_through_transformers(change: dict[str, object]) -> None:
    assert llama.supports(llama_config())
    assert not llama.supports(llama_config() | change)
    assert not llama.supports({k: v for k, v in llama_config().items() if k != "rms_norm_eps"})


def some(flags: Tensor) -> Rows:
    return Rows(flags.flatten().nonzero().flatten(), (flags.shape[0], flags.shape[1]))


def test_rows_beside_what_is_kept_are_those_of_the_whole() -> None:
    """Nothing has changed: whatever is run is what it was, also where a text has no row at all."""
    torch.manual_seed(1)
    encoder, x = light().model, torch.randn(B, L, 32)
    flags = torch.rand(B, L) < 0.4
    flags[1] = False
    with torch.no_grad():
        kept = Kept()
        whole = encoder.run(x, kept)
        found = encoder.run(x[flags], kept, some(flags))
    assert torch.allclose(found, whole[flags], atol=1e-5)


def test_one_layer_reads_nothing_stale() -> None:
    """Keys and values of a first layer depend on their own token alone: rows that changed are exact."""
    torch.manual_seed(2)
    encoder, x = light(layers=1).model, torch.randn(B, L, 32)
    flags = torch.rand(B, L) < 0.5
    y = torch.where(flags[..., None], torch.randn(B, L, 32), x)
    with torch.no_grad():
        kept = Kept()
        encoder.run(x, kept)
        found = encoder.run(y[flags], kept, some(flags))
        assert torch.allclose(found, encoder.run(y)[flags], atol=1e-5)
        assert not torch.allclose(found, encoder.run(x)[flags], atol=1e-2)


def test_merged_layers_say_the_same() -> None:
    torch.manual_seed(5)
    encoder, x = light().model, torch.randn(B, L, 32)
    with torch.no_grad():
        before = encoder.run(x)
        encoder.merge()
        assert torch.allclose(encoder.run(x), before, atol=1e-5)
    assert not hasattr(encoder.layers[0].self_attn, "q_proj")
    assert not hasattr(encoder.layers[0].mlp, "gate_proj")


def test_a_text_does_not_depend_on_those_beside_it() -> None:
    torch.manual_seed(3)
    encoder, x = light().model, torch.randn(B, L, 32)
    flags = torch.rand(B, L) < 0.5
    y = x + 0.1 * torch.randn(B, L, 32)
    with torch.no_grad():
        kept, alone = Kept(), Kept()
        encoder.run(x, kept)
        encoder.run(x[:1], alone)
        together = encoder.run(y[flags], kept, some(flags))[: int(flags[0].sum())]
        assert torch.allclose(together, encoder.run(y[:1][flags[:1]], alone, some(flags[:1])), atol=1e-5)


def bert_config() -> ModernBertConfig:
    return ModernBertConfig(
        vocab_size=40,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        layer_types=["full_attention", "full_attention"],
        classifier_pooling="mean",
        pad_token_id=0,
        num_labels=3,
        initializer_range=0.3,
        rope_parameters={
            name: {"rope_type": "default", "rope_theta": 1000.0} for name in ("full_attention", "sliding_attention")
        },
    )


@pytest.mark.parametrize("ends", [(9, 9, 9), (9, 4, 6)])
def test_the_classifier_and_its_gradient_are_those_of_transformers(ends: tuple[int, ...]) -> None:
    torch.manual_seed(4)
    config = bert_config()
    theirs = Classifier(config).eval()
    raw = config.to_dict() | {"model_type": "modernbert"}
    assert modernbert.supports(raw)
    ours = modernbert.LightModernBert(raw).eval()
    ours.load_state_dict(theirs.state_dict())
    mask = (torch.arange(L) < torch.tensor(ends)[:, None]).long()
    x = torch.randn(B, L, 32)
    found = []
    for model in (ours, theirs):
        leaf = x.clone().requires_grad_(True)
        logits = model(inputs_embeds=leaf, attention_mask=mask).logits
        found.append((logits, *torch.autograd.grad(logits.log_softmax(-1)[:, 1].sum(), leaf)))
    for one, other in zip(*found, strict=True):
        assert torch.allclose(one, other, atol=1e-5)
    assert ours.config.id2label == theirs.config.id2label
    assert not modernbert.supports(raw | {"classifier_pooling": "cls"})
    assert not modernbert.supports(raw | {"layer_types": ["full_attention", "sliding_attention"]})


def test_the_tokenizer_is_the_one_of_transformers() -> None:
    light, whole = LightTokenizer.of(MODEL), AutoTokenizer.from_pretrained(MODEL)
    assert light is not None
    assert len(light) == len(whole)
    assert light.get_vocab() == whole.get_vocab()
    for name in ("pad", "eos", "bos", "unk", "mask", "cls", "sep"):
        assert getattr(light, f"{name}_token_id") == getattr(whole, f"{name}_token_id")
    assert set(light.all_special_ids) == set(whole.all_special_ids)
    for text in ("", "The pizza's crust - café!", "a\n b</s> c  ", " 12,5 %"):
        for split in (True, False):
            settings = {"add_special_tokens": False, "split_special_tokens": split, "return_offsets_mapping": True}
            ours, theirs = light(text, **settings), whole(text, **settings)
            assert ours["input_ids"] == theirs["input_ids"]
            assert ours["offset_mapping"] == theirs["offset_mapping"]
        for skip in (True, False):
            ids = [2, *ours["input_ids"], 1]
            assert light.decode(ids, skip_special_tokens=skip) == whole.decode(ids, skip_special_tokens=skip)
    assert light("two words", return_tensors="pt").input_ids.shape[0] == 1  # asked of transformers


def test_other_tokenizers_are_left_to_transformers(tmp_path: Path, tokenizer) -> None:
    assert LightTokenizer.of(tmp_path) is None
    tokenizer.save_pretrained(tmp_path)
    (tmp_path / "tokenizer_config.json").write_text('{"tokenizer_class": "BertTokenizer"}')
    assert LightTokenizer.of(tmp_path) is None


def test_the_shipped_model_is_loaded_without_transformers() -> None:
    code = (
        "import sys; from tta_diffusion.pipeline import TTAPipeline; pipe = TTAPipeline.from_pretrained();"
        "pipe.check(['The pizza'], 'sentiment=negative'); print('transformers' in sys.modules)"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout.strip() == "False"
