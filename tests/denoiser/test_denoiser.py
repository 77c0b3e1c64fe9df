"""The denoiser: families of backbones, times, pinned tokens, self-conditioning, checkpoints."""

from __future__ import annotations

import pytest
import torch
from safetensors.torch import save_file
from transformers import AutoConfig, LlamaForCausalLM, RobertaForMaskedLM, masking_utils

from conftest import LENGTH, make_denoiser, tiny_backbone
from tta_diffusion.denoiser.backbone import FAMILIES, Backbone
from tta_diffusion.denoiser.checkpoint import plain_config
from tta_diffusion.denoiser.model import SimplexDenoiser
from tta_diffusion.denoiser.self_conditioning import SELF_CONDITIONING
from tta_diffusion.denoiser.tess import import_tess
from tta_diffusion.fast import aligned
from tta_diffusion.fast.attention import UNMASKED
from tta_diffusion.tokens.canvas import Canvas, SpecialTokens
from tta_diffusion.tokens.logits import DenseLogits
from tta_diffusion.tokens.soft_tokens import DenseTokens, SparseTokens
from tta_diffusion.tokens.top_logits import FreeRows, TopLogits

V = 31
MODEL_TYPES = ["roberta", "bert", "modernbert", "llama"]
ON_EMBEDDINGS = ["none", "mean", "addition", "concat"]


def inputs(seed: int = 0, length: int = 8):
    generator = torch.Generator().manual_seed(seed)
    scores = 3 * torch.randn(2, length, V, generator=generator)
    times = torch.rand(2, length, generator=generator)
    ids = torch.randint(5, V, (2, length), generator=generator)
    pinned = torch.zeros(2, length, dtype=torch.bool)
    pinned[:, :2] = True
    return DenseTokens(scores), times, ids, pinned


@pytest.mark.parametrize("shift", [False, True])
@pytest.mark.parametrize("model_type", MODEL_TYPES)
def test_every_position_sees_every_other_one(model_type, shift):
    denoiser = make_denoiser(V, model_type, shift_predictions=shift)
    embeds = torch.randn(1, 6, 32, generator=torch.Generator().manual_seed(0)).requires_grad_(True)
    logits = denoiser.backbone.head(denoiser.hidden(embeds))
    for place in range(6):
        (gradient,) = torch.autograd.grad(logits[0, place].square().sum(), embeds, retain_graph=True)
        assert bool((gradient[0].norm(dim=-1) > 1e-6).all()), f"position {place} does not see all"


def sheet(ids: torch.Tensor, pinned: torch.Tensor) -> Canvas:
    return Canvas(ids, pinned, torch.zeros_like(pinned), SpecialTokens(pad=0, end=1))


@pytest.mark.parametrize("model_type", MODEL_TYPES)
def test_logits_at_some_places_are_those_of_the_whole(model_type):
    """On a CPU without the last bias, in memory that the next call writes over; all in one where a graph is kept."""
    denoiser, places = make_denoiser(V, model_type), torch.tensor([2, 3, 9, 15])
    free = FreeRows((2, 8), places, places // 8, torch.empty(0, dtype=torch.int64), None, (1, 0))

    def predict(seed: int) -> TopLogits:
        noisy, times, ids, pinned = inputs(seed)
        return denoiser.predict(noisy, times, sheet(ids, pinned), None, free, k=5)

    if (bias := denoiser.backbone.decoder.bias) is not None:
        torch.nn.init.normal_(bias)
    with torch.no_grad():
        expected = denoiser(*inputs()).flatten(0, 1)[places]
        top = predict(0)
        assert (top.bias is None) == (denoiser.backbone.decoder.bias is None)
        assert torch.equal(top.ids, expected.topk(5).indices)
        torch.testing.assert_close(top.whole(slice(None)), expected)
        again = predict(1)
    assert again.logits.data_ptr() == top.logits.data_ptr()
    whole = predict(0)
    assert whole.bias is None
    assert whole.logits.requires_grad
    assert whole.logits.data_ptr() != top.logits.data_ptr()
    torch.testing.assert_close(whole.whole(slice(None)).detach(), expected)


@torch.no_grad()
def test_a_whole_prediction_is_what_may_be_written():
    denoiser = make_denoiser(V)
    noisy, times, ids, pinned = inputs()
    canvas = Canvas(ids, pinned, pinned, SpecialTokens(pad=0, end=1, start=2, banned=(2, 3)))
    previous = DenseTokens(inputs(seed=1)[0].scores)
    prediction = denoiser.predict(noisy, times, canvas, previous, None, k=5)
    assert isinstance(prediction, DenseLogits)
    expected = canvas.restrict(denoiser(noisy, times, ids, pinned, previous))
    torch.testing.assert_close(prediction.values, expected)
    assert bool((prediction.values[..., [2, 3]] == -torch.inf).all())


@pytest.mark.parametrize("model_type", MODEL_TYPES)
def test_a_saved_denoiser_gives_the_same_logits(model_type, tmp_path):
    denoiser = make_denoiser(V, model_type, tied_input=model_type != "roberta", self_conditioning="concat")
    denoiser.save_pretrained(tmp_path)
    loaded = SimplexDenoiser.from_pretrained(tmp_path)
    assert loaded.config == denoiser.config
    assert not loaded.training
    with torch.no_grad():
        assert torch.equal(loaded(*inputs()), denoiser(*inputs()))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["denoiser.json", "model.safetensors"]


@pytest.mark.parametrize("model_type", MODEL_TYPES)
def test_the_head_is_that_of_the_language_model(model_type):
    denoiser = make_denoiser(V, model_type)
    embeds = torch.randn(2, 6, 32, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        expected = denoiser.backbone.model(inputs_embeds=embeds).logits
        torch.testing.assert_close(denoiser.backbone.head(denoiser.hidden(embeds)), expected)


@pytest.mark.parametrize(
    ("model_type", "window"),
    [*((kind, None) for kind in (*MODEL_TYPES, "mistral", "qwen2")), ("modernbert", 4), ("mistral", 4)],
)
def test_nothing_is_masked_and_no_mask_is_made_for_it(model_type, window, monkeypatch):
    """Not even where transformers itself would make one, as some versions do while a CUDA graph is recorded."""
    raw = tiny_backbone(V, model_type if model_type in MODEL_TYPES else "llama") | {"model_type": model_type}
    if model_type == "modernbert":
        raw["local_attention"] = 2 * (window or 40)
    if model_type in ("mistral", "qwen2"):
        raw |= {"num_key_value_heads": 2, "sliding_window": window}
    torch.manual_seed(0)
    backbone = Backbone.from_config(raw).eval()
    embeds = torch.randn(2, 12, 32, requires_grad=True)
    masks: list[torch.Tensor | None] = []
    original = torch.nn.functional.scaled_dot_product_attention

    def attend(*args, attn_mask=None, **settings):
        masks.append(attn_mask)
        return original(*args, attn_mask=attn_mask, **settings)

    monkeypatch.setattr(torch.nn.functional, "scaled_dot_product_attention", attend)
    found = []
    for as_if_recorded in (True, False):
        if as_if_recorded:
            monkeypatch.setattr(masking_utils, "_ignore_bidirectional_mask_sdpa", lambda *a, **kw: False)
        else:
            monkeypatch.undo()
            backbone.model.set_attn_implementation("sdpa")
        hidden = backbone.encode(embeds)
        found.append((hidden, *torch.autograd.grad(hidden.square().sum(), embeds)))
    assert all(mask is None for mask in masks) == (window is None)
    assert len(masks) == backbone.config.num_hidden_layers
    for ours, theirs in zip(*found, strict=True):
        assert torch.equal(ours, theirs)


def test_how_attention_is_computed_is_not_saved_and_a_wish_is_kept():
    denoiser = make_denoiser(V)
    assert denoiser.backbone.config._attn_implementation == UNMASKED
    assert UNMASKED not in str(plain_config(denoiser.backbone.config))
    model = denoiser.backbone.model
    model.set_attn_implementation("eager")
    assert Backbone(model).config._attn_implementation == "eager"


@torch.no_grad()
@pytest.mark.parametrize("bias", [False, True])
def test_a_padded_vocabulary_gives_the_same_logits(bias):
    decoder, hidden = torch.nn.Linear(16, 77, bias=bias), torch.randn(3, 16)
    for _ in range(2):
        logits = aligned.project(hidden, decoder)
        torch.testing.assert_close(logits, decoder(hidden))
        assert logits.stride() == (128, 1)
        weight, _ = aligned.padded(decoder)
        assert aligned.padded(decoder)[0] is weight  # made once
        (decoder.bias if bias else decoder.weight).mul_(2)  # and anew when a number has changed


@torch.no_grad()
def test_shifted_predictions_come_from_the_position_before():
    plain, shifted = make_denoiser(V, "llama"), make_denoiser(V, "llama", shift_predictions=True)
    embeds = torch.randn(1, 6, 32, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(
        shifted.backbone.head(shifted.hidden(embeds))[:, 1:], plain.backbone.head(plain.hidden(embeds))[:, :-1]
    )


@torch.no_grad()
def test_pinned_positions_ignore_noise_and_time():
    denoiser = make_denoiser(V)
    noisy, times, ids, pinned = inputs()
    plain = denoiser(noisy, times, ids, pinned)
    other_scores, other_times, other_ids = noisy.scores.clone(), times.clone(), ids.clone()
    other_scores[pinned], other_times[pinned], other_ids[~pinned] = 0.0, 0.123, 0
    assert torch.equal(denoiser(DenseTokens(other_scores), other_times, other_ids, pinned), plain)
    other_ids[0, 0] += 1 if other_ids[0, 0] < V - 1 else -1
    assert not torch.allclose(denoiser(noisy, times, other_ids, pinned)[0], plain[0])


@torch.no_grad()
def test_the_time_of_a_token_enters_at_its_own_position():
    denoiser = make_denoiser(V)
    noisy, times, ids, pinned = inputs()
    later = times.clone()
    later[0, 5] += 0.5
    change = denoiser.inputs(noisy, later, ids, pinned) - denoiser.inputs(noisy, times, ids, pinned)
    torch.testing.assert_close(change[0, 5], 0.5 * denoiser.time.weight[:, 0], rtol=1e-4, atol=1e-6)
    change[0, 5] = 0
    assert bool((change == 0).all())


@torch.no_grad()
@pytest.mark.parametrize("name", SELF_CONDITIONING)
def test_self_conditioning_uses_the_previous_prediction(name):
    denoiser = make_denoiser(V, self_conditioning=name)
    noisy, times, ids, pinned = inputs()
    first = denoiser(noisy, times, ids, pinned)
    assert bool(torch.isfinite(first).all())
    previous = DenseTokens(inputs(seed=1)[0].scores)
    after = denoiser(noisy, times, ids, pinned, previous)
    assert torch.allclose(after, first) == (name == "none")
    uniform = denoiser(noisy, times, ids, pinned, DenseTokens(torch.zeros(2, 8, V)))
    torch.testing.assert_close(uniform, first, rtol=1e-4, atol=1e-4)


@torch.no_grad()
@pytest.mark.parametrize("name", SELF_CONDITIONING)
def test_sparse_tokens_or_a_sentence(name):
    denoiser = make_denoiser(V, self_conditioning=name)
    noisy, times, ids, pinned = inputs()
    previous = inputs(seed=1)[0]
    all_of_noisy, all_of_previous = (SparseTokens(*soft.probs.sort(-1)[::-1]) for soft in (noisy, previous))
    sparse = all_of_noisy, times, ids, pinned, all_of_previous
    if name in ON_EMBEDDINGS:
        expected = denoiser(noisy, times, ids, pinned, previous)
        torch.testing.assert_close(denoiser(*sparse), expected, rtol=1e-3, atol=1e-3)
    else:
        with pytest.raises(ValueError, match="engine='dense'"):
            denoiser(*sparse)


@torch.no_grad()
def test_mean_averages_probabilities_and_the_others_do_what_they_say():
    table = torch.randn(V, 6, generator=torch.Generator().manual_seed(3))
    x, y = inputs()[0].scores, inputs(seed=1)[0].scores
    p, q = x.softmax(-1), y.softmax(-1)
    expected = {
        "none": p,
        "mean": (p + q) / 2,
        "addition": p + q,
        "max": torch.maximum(p, q),
        "multiply": p * q,
        "logit-mean": ((x + y) / 2).softmax(-1),
        "logit-addition": (x + y).softmax(-1),
    }
    for name, mixture in expected.items():
        got = SELF_CONDITIONING.get(name)(DenseTokens(x), DenseTokens(y), table, None)
        torch.testing.assert_close(got, mixture @ table, rtol=1e-4, atol=1e-5)
    assert sorted([*expected, "concat"]) == list(SELF_CONDITIONING)


@torch.no_grad()
@pytest.mark.parametrize("self_conditioning", ["mean", "concat"])
def test_import_of_the_published_network(tmp_path, self_conditioning):
    """A state dict with the public names gives what the published forward pass gives."""
    torch.manual_seed(3)
    raw = tiny_backbone(V, "roberta")
    model = RobertaForMaskedLM(AutoConfig.for_model(**raw)).eval()
    soft_table, time_weight, time_bias = torch.randn(32, V), torch.randn(32, 1), torch.randn(32)
    state = {name: tensor.clone().contiguous() for name, tensor in model.state_dict().items()}
    state |= {
        "vocab_to_hidden_dim_embed.weight": soft_table,
        "timestep_embed.weight": time_weight,
        "timestep_embed.bias": time_bias,
        "roberta.embeddings.position_ids": torch.arange(40)[None],
    }
    project = torch.randn(32, 64) / 8
    if self_conditioning == "concat":
        state["project_to_hidden_size.weight"] = project
    save_file(state, str(tmp_path / "model.safetensors"))
    ours = import_tess(tmp_path / "model.safetensors", raw, length=LENGTH)
    assert ours.config.self_conditioning == self_conditioning
    assert ours.config.time_conditioning == "global"

    noisy, _, ids, pinned = inputs()
    previous, u = inputs(seed=1)[0], 0.37
    p, q = noisy.scores.softmax(-1), previous.scores.softmax(-1)
    if self_conditioning == "mean":
        embeds = ((p + q) / 2) @ soft_table.T
    else:
        embeds = torch.cat([p @ soft_table.T, q @ soft_table.T], -1) @ project.T
    embeds = embeds + u * time_weight[:, 0] + time_bias
    clean = model.roberta.embeddings.word_embeddings(ids)
    embeds = torch.where(pinned[..., None], clean, embeds)
    expected = model.lm_head(model.roberta(inputs_embeds=embeds)[0])
    torch.testing.assert_close(ours(noisy, torch.full(ids.shape, u), ids, pinned, previous), expected)


@torch.no_grad()
@pytest.mark.parametrize(("model_type", "auto"), [("roberta", RobertaForMaskedLM), ("llama", LlamaForCausalLM)])
def test_a_denoiser_starts_from_a_pretrained_model(model_type, auto, tmp_path):
    torch.manual_seed(4)
    model = auto(AutoConfig.for_model(**tiny_backbone(V, model_type))).eval()
    model.save_pretrained(tmp_path / "hf")
    denoiser = SimplexDenoiser.from_backbone(tmp_path / "hf", length=8).eval()
    assert denoiser.config.shift_predictions == FAMILIES.get(model_type).causal
    ours = dict(denoiser.backbone.model.named_parameters())
    for name, parameter in model.named_parameters():
        assert torch.equal(ours[name], parameter), name
    denoiser.save_pretrained(tmp_path / "saved")
    again = SimplexDenoiser.from_pretrained(tmp_path / "saved")
    torch.testing.assert_close(again(*inputs()), denoiser(*inputs()), rtol=0, atol=0)
