"""A gaussian model that reads likelihoods: what it is shown, what it answers, and how it goes on from a simplex."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tta_diffusion.common.configuration import build, load_yaml
from tta_diffusion.common.randomness import Randomness
from tta_diffusion.control.constraints import CallableObjective
from tta_diffusion.control.guidance import GuidanceConfig
from tta_diffusion.control.langevin import Langevin
from tta_diffusion.denoiser.config import DenoiserConfig
from tta_diffusion.denoiser.likelihood_model import LikelihoodDenoiser, principal
from tta_diffusion.denoiser.model import SimplexDenoiser
from tta_diffusion.diffusion.gaussian import GaussianProcess, GaussianState, posterior
from tta_diffusion.sampling.regimes import REGIMES
from tta_diffusion.settings import GenerationConfig
from tta_diffusion.tokens.canvas import Canvas, SpecialTokens
from tta_diffusion.tokens.point_logits import PointLogits, likelihood
from tta_diffusion.tokens.soft_tokens import DenseTokens
from tta_diffusion.training.config import TrainConfig
from tta_diffusion.training.objectives.likelihood import LikelihoodObjective
from tta_diffusion.training.regimes import TRAINING

V, L, D, H = 11, 6, 4, 16
BACKBONE = {"model_type": "llama", "hidden_size": H, "num_hidden_layers": 1, "num_attention_heads": 2}
BACKBONE |= {"intermediate_size": 32, "vocab_size": V, "max_position_embeddings": L, "tie_word_embeddings": True}
OWN = {"regime": "gaussian", "reading": "likelihood", "embedding_width": D, "time_conditioning": "token"}
CANVAS = Canvas.blank(2, L, SpecialTokens(pad=0, end=1, banned=(2,))).pin(0, 3, [6])


def simplex() -> SimplexDenoiser:
    torch.manual_seed(0)
    model = SimplexDenoiser(DenoiserConfig(backbone=BACKBONE, length=L, time_conditioning="token"))
    torch.nn.init.normal_(model.table)
    return model.eval()


@pytest.fixture
def model(tmp_path: Path) -> LikelihoodDenoiser:
    simplex().save_pretrained(tmp_path / "simplex")
    return LikelihoodDenoiser.from_pretrained(tmp_path / "simplex", **OWN)


def process(model: LikelihoodDenoiser, **settings) -> GaussianProcess:
    return REGIMES.get("gaussian").make_process(model, GenerationConfig().override(settings))


def test_the_likelihood_is_that_of_the_noise() -> None:
    """Among three embeddings by the density of the normal distribution itself."""
    generator = torch.Generator().manual_seed(1)
    table, noisy = torch.randn(3, 2, generator=generator), torch.randn(5, 2, generator=generator)
    ab = torch.tensor([[0.0], [0.2], [0.5], [0.9], [0.99]])
    law = torch.distributions.Normal(ab.sqrt()[:, None] * table, (1 - ab).sqrt()[:, None])
    expected = law.log_prob(noisy[:, None].expand(5, 3, 2)).sum(-1).softmax(-1)
    torch.testing.assert_close(likelihood(noisy, ab, table).softmax(-1), expected)
    clear = likelihood(table, torch.ones(3, 1), table)
    assert torch.equal(clear.argmax(-1), torch.arange(3)), "without noise a token is itself"


def test_embeddings_are_principal_components_on_a_sphere() -> None:
    generator = torch.Generator().manual_seed(2)
    words = torch.randn(500, 6, generator=generator) * torch.tensor([5.0, 3.0, 2.0, 0.1, 0.1, 0.1])
    found = principal(words, 3)
    torch.testing.assert_close(found.norm(dim=-1), torch.full((500,), 3**0.5))
    # Rotated as may be, cosines are those of the three wide directions, each divided by its spread.
    wide = torch.nn.functional.normalize(words[:, :3] / torch.tensor([5.0, 3.0, 2.0]), dim=-1)
    assert (found @ found.T / 3 - wide @ wide.T).abs().mean() < 0.05
    with pytest.raises(ValueError, match="beyond the 6 dimensions"):
        principal(words, 7)


def test_it_goes_on_from_a_simplex_model(model: LikelihoodDenoiser, tmp_path: Path) -> None:
    """Shown the same soft tokens, it predicts the same."""
    tokens, times = DenseTokens(torch.randn(2, L, V)), torch.rand(2, L)
    found = model.predict(tokens, times, CANVAS, None, None, V)
    with torch.no_grad():
        expected = simplex()(tokens, times, CANVAS.ids, CANVAS.pinned)
    torch.testing.assert_close(found.values, CANVAS.restrict(expected))
    model.save_pretrained(tmp_path / "gaussian")
    again = REGIMES.get("gaussian").load(tmp_path / "gaussian", "cpu")
    assert isinstance(again, LikelihoodDenoiser)
    torch.testing.assert_close(again.embeddings, model.embeddings)
    assert torch.equal(again.predict(tokens, times, CANVAS, None, None, V).values, found.values)


def test_a_step_goes_towards_the_mean_embedding(model: LikelihoodDenoiser) -> None:
    own = process(model, clamp=False, eta=0.0)
    times = torch.full((2, L), 0.7, dtype=torch.float64)
    state, seen = own.observe(own.begin(CANVAS.ids, times), Randomness.from_seeds([3, 4]), 0)
    assert isinstance(seen, DenseTokens)
    assert state.x is not None
    values = torch.randn(2, L, V)
    later = own.advance(
        state, PointLogits(values, None), values.argmax(-1), times - 0.2, Randomness.from_seeds([3, 4]), 0
    )
    mean = (values.softmax(-1)[..., None] * model.embeddings).sum(-2)
    signals = own.signal(times), own.signal(times - 0.2)
    torch.testing.assert_close(later.x, posterior(state.x, mean, *signals, eta=0.0).mean, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("support", [0, 6])
def test_langevin_raises_the_tokens_that_it_moves_towards(model: LikelihoodDenoiser, support: int) -> None:
    wished = 5
    wish = CallableObjective(lambda text: text.probs[:, 0, wished].log())
    config = GuidanceConfig(strength=0.2, iterations=3, support=support)
    logits = PointLogits(CANVAS.restrict(torch.randn(2, L, V, generator=torch.Generator().manual_seed(5))), None)
    state = GaussianState(CANVAS.ids, torch.full((2, L), 0.5, dtype=torch.float64), torch.zeros(2, L, D))
    guided = Langevin([(wish, 1.0)], config, process=process(model), step=0.01)(logits, CANVAS, 0.5, state).logits
    assert isinstance(guided, PointLogits)
    assert guided.shift is not None
    assert bool((guided.shift[:, 0] @ model.embeddings[wished] > 0).all())
    assert bool((guided.shift[:, 1:] == 0).all()), "the objective reads the first token alone"
    torch.testing.assert_close(guided.points, logits.clean(model.embeddings), msg="x_0 is the unguided one")
    pushed = guided.probability(torch.full((2, L), wished))[:, 0]
    assert bool((pushed > logits.values.softmax(-1)[:, 0, wished]).all())


def test_soft_guidance_needs_predictions_of_tokens(model: LikelihoodDenoiser) -> None:
    make = REGIMES.get("gaussian").guidance
    settings = GenerationConfig().override({"guidance_form": "soft"})
    assert not isinstance(make([], GuidanceConfig(), process(model), settings), Langevin)
    with pytest.raises(ValueError, match="reading 'likelihood'"):
        make([], GuidanceConfig(), GaussianProcess(model.embeddings), settings)


@pytest.mark.parametrize("form", ["plain", "self_condition"])
def test_training_sees_likelihoods_of_every_token_at_its_own_time(
    model: LikelihoodDenoiser, form: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    objective = TRAINING.get("gaussian").objective(model.train())
    assert isinstance(objective, LikelihoodObjective)
    ids = torch.randint(3, V, (4, L), generator=torch.Generator().manual_seed(1))
    pinned = torch.zeros(4, L, dtype=torch.bool)
    pinned[:, 0] = True
    times = torch.tensor([1e-3, 1e-3, 1e-3, 1.0, 1.0, 1.0]).expand(4, L)
    seen = []
    inputs = model.inputs

    def spy(noisy, *rest):  # type: ignore[no-untyped-def]
        seen.append(noisy.probs.detach())
        return inputs(noisy, *rest)

    monkeypatch.setattr(model, "inputs", spy)
    loss = objective(ids, pinned, times.amax(-1), times, times, form)
    assert len(seen) == (2 if form == "self_condition" else 1)
    assert all(torch.equal(one, seen[0]) for one in seen), "both looks at the same noise"
    assert float(seen[0].gather(-1, ids[..., None])[:, :3].min()) > 0.99
    torch.testing.assert_close(seen[0][:, 3:], torch.full((4, 3, V), 1 / V), rtol=0.02, atol=1e-4)
    assert bool((loss[pinned] == 0).all())
    loss.sum().backward()
    assert all(p.grad is not None and bool(p.grad.isfinite().all()) for p in model.parameters())


def test_the_recipe_and_a_wrong_reading() -> None:
    config = build(TrainConfig, load_yaml(Path(__file__).parents[2] / "configs/train/gaussian-likelihood.yaml"))
    assert (config.model.regime, config.model.reading) == ("gaussian", "likelihood")
    with pytest.raises(ValueError, match="reading must be one of layers, likelihood"):
        DenoiserConfig(backbone=BACKBONE, length=L, reading="likelyhood")
