"""The revision: exact on a joint law of two tokens, fair to every token, and nothing where it is not asked for."""

from __future__ import annotations

import math
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from conftest import make_classifier, make_denoiser
from toy_regime import WIDTH, ToyProcess
from tta_diffusion.common.randomness import Randomness
from tta_diffusion.control.classifier import AttributeObjective
from tta_diffusion.control.guidance import Guidance, GuidanceConfig
from tta_diffusion.diffusion.simplex import SimplexProcess
from tta_diffusion.sampling.revision import Revision
from tta_diffusion.sampling.sampler import Sampler, SamplerConfig
from tta_diffusion.settings import GenerationConfig, make_sampler
from tta_diffusion.tokens.canvas import Canvas, SpecialTokens
from tta_diffusion.tokens.logits import DenseLogits

PAIR = SpecialTokens(pad=6, end=7, start=None)  # of a toy of eight, whose first three words the law knows
JOINT = torch.tensor([[0.40, 0.05, 0.05], [0.02, 0.28, 0.00], [0.05, 0.00, 0.15]], dtype=torch.float64)
ROWS = 20_000


class PairDenoiser(nn.Module):
    """p(x_i | x_j) of a joint law of two tokens where x_j is clean, the marginal law where it is not."""

    def __init__(self, joint: Tensor) -> None:
        super().__init__()
        self.joint, self.max_length, self.device = joint, 2, torch.device("cpu")
        self.config = SimpleNamespace(vocab_size=len(joint), length=2)

    def predict(self, seen, times, canvas, previous, free, k):
        x, _ = seen
        ids = x[..., : len(self.joint)].argmax(-1)  # exact where a token is clean
        laws = []
        for i in (0, 1):
            joint = self.joint if i == 0 else self.joint.T
            given = joint[:, ids[:, 1 - i]].T  # (B, V) in x_i
            laws.append(torch.where((times[:, 1 - i] == 0)[:, None], given, joint.sum(1).expand_as(given)))
        return DenseLogits(torch.stack(laws, 1).log())


def pairs(revision: Revision, joint: Tensor = JOINT, rows: int = ROWS) -> Tensor:
    """(rows, 2) texts of one step, which draws both tokens at once, and of a revision."""
    process = ToyProcess(torch.eye(WIDTH))
    config = SamplerConfig(1, time_conditioning="token", revision=revision)
    canvas = Canvas.blank(rows, 2, PAIR)
    return Sampler(PairDenoiser(joint), process, config).sample(canvas, Randomness.from_seeds(list(range(rows)))).ids


def distance(ids: Tensor, law: Tensor) -> float:
    """Total variation between the law and the frequencies of pairs."""
    counts = torch.bincount(ids[:, 0] * len(law) + ids[:, 1], minlength=law.numel()).view_as(law)
    return float((counts / len(ids) - law).abs().sum() / 2)


def test_without_bounds_it_is_a_gibbs_sampler_of_the_joint_law():
    together = JOINT.sum(1)[:, None] * JOINT.sum(0)
    chance = 0.02  # of 20,000 draws from nine cells
    assert distance(pairs(Revision()), together) < chance  # a step draws what does not belong together
    gibbs = pairs(Revision(16, groups=2, doubt=math.inf))
    assert distance(gibbs, JOINT) < chance < distance(gibbs, together) / 5


def test_tokens_that_belong_together_stay():
    alike = torch.eye(3, dtype=torch.float64) / 3  # two tokens that are always the same
    before, after = pairs(Revision(), alike, 500), pairs(Revision(1, groups=2), alike, 500)
    fitting = before[:, 0] == before[:, 1]
    assert 100 < int(fitting.sum()) < 250
    assert bool((after[:, 0] == after[:, 1]).all())
    assert torch.equal(after[fitting], before[fitting])


@given(st.lists(st.lists(st.booleans(), min_size=9, max_size=9), min_size=1, max_size=4), st.integers(1, 5))
def test_every_free_token_is_hidden_once_a_round(rows, groups):
    free = torch.tensor(rows)
    revision, randomness = Revision(2 * groups, groups), Randomness.from_seeds(list(range(len(rows))))
    hidden = torch.stack([revision.hidden(number, free, randomness) for number in range(2 * groups)])
    for turn in hidden.split(groups):
        assert torch.equal(turn.sum(0), free.long())
    for row, places in enumerate(free):
        for block in places.nonzero().flatten().split(groups):  # of neighbours, each in another pass
            assert hidden[:groups, row, block].sum(1).max() <= 1
    alone = revision.hidden(0, free[-1:], Randomness.from_seeds([len(rows) - 1]))
    assert torch.equal(alone[0], hidden[0, -1])


def test_rounds_have_other_groups():
    free, randomness = torch.ones(1, 12, dtype=torch.bool), Randomness.from_seeds([0])
    revision = Revision(8, 4)
    first, second = ({tuple(revision.hidden(n + k, free, randomness)[0].tolist()) for k in range(4)} for n in (0, 4))
    assert first != second


V, L = 40, 12
SPECIAL = SpecialTokens(pad=0, end=1, start=2, banned=(2, 3))


def sampler(revision: Revision, steps: int = 5, **config) -> Sampler:
    guidance = Guidance([(AttributeObjective("mood", make_classifier(V), 0), 1.0)], GuidanceConfig(20.0, 1))
    settings = SamplerConfig(steps, early_exit=False, revision=revision, **config)
    return Sampler(make_denoiser(V, "llama"), SimplexProcess(V), settings, guidance=guidance)


def sheet(rows: int = 3) -> Canvas:
    canvas = Canvas.blank(rows, L, SPECIAL)
    for row in range(rows):
        canvas = canvas.pin(row, 0, [2, 5 + row]).pin(row, 6, [7])
    return canvas


def seeds(*numbers: int) -> Randomness:
    return Randomness.from_seeds(list(numbers))


def test_given_tokens_stay_and_texts_do_not_depend_on_their_batch():
    revised = sampler(Revision(6, groups=3, doubt=1.0))
    canvas = sheet()
    together = revised.sample(canvas, seeds(0, 1, 2))
    assert torch.equal(together.ids[canvas.pinned], canvas.ids[canvas.pinned])
    assert together.steps == [11, 11, 11]
    assert torch.equal(revised.sample(canvas.rows(1, 2), seeds(1)).ids, together.ids[1:2])
    assert not torch.equal(together.ids, sampler(Revision()).sample(canvas, seeds(0, 1, 2)).ids)


def test_without_doubt_nothing_changes():
    plain = sampler(Revision()).sample(sheet(), seeds(0, 1, 2)).ids
    assert torch.equal(sampler(Revision(6, 3, doubt=0.0)).sample(sheet(), seeds(0, 1, 2)).ids, plain)


def test_guidance_of_the_prediction_takes_part():
    def judged(strength: float) -> float:
        one = sampler(Revision(12, 3, doubt=math.inf), steps=1)
        assert one.guidance is not None
        one = replace(one, guidance=replace(one.guidance, config=GuidanceConfig(strength, 1)))
        trace = one.sample(sheet(8), Randomness.from_seeds(list(range(8))), trace=True).traces
        assert trace is not None
        return sum(float(t.probability["mood"]["after"][-1]) for t in trace)

    assert judged(200.0) > judged(0.0) + 0.5


def test_graphs_write_the_same(fake_gpu):
    config = {"revision": Revision(6, 3, doubt=1.0)}
    graphed, eager = sampler(**config), sampler(**config, graphs=False)
    for canvas in (sheet(), sheet()):  # the second replays
        assert torch.equal(graphed.sample(canvas, seeds(0, 1, 2)).ids, eager.sample(canvas, seeds(0, 1, 2)).ids)


def test_a_trace_and_a_callback_see_every_pass():
    seen = []
    revised = sampler(Revision(4, 2))
    output = revised.sample(sheet(), seeds(0, 1, 2), callback=seen.append, trace=True)
    assert output.traces is not None
    assert [info.step for info in seen] == list(range(9))
    assert {info.steps for info in seen} == {9}
    hidden = [info.times == 1 for info in seen[5:]]
    assert torch.equal(hidden[0] | hidden[1], sheet().free)
    for trace, row in zip(output.traces, output.ids, strict=True):
        assert trace.ids.shape == (9, L)
        assert trace.ids[-1].tolist() == row.tolist()


def test_tokens_are_not_noised_above_the_time_of_a_rewriting(pipeline):
    words, settings = "the pizza was good", {"seed": 0, "steps": 8, "revise": 4, "doubt": math.inf}
    kept = pipeline.rewrite(words, [0, 0.6, 0, 0.6], **settings, return_trace=True)
    assert kept.texts[0].split()[0] == "the"
    assert kept.texts[0].split()[2] == "was"
    assert float(kept.traces[0].times.max()) <= 0.6


def test_a_trace_has_the_steps_that_its_text_took(monkeypatch):
    monkeypatch.setattr(SimplexProcess, "settled", lambda *given: torch.tensor([True, False, False]))
    revised = sampler(Revision(4, 2))
    output = replace(revised, config=replace(revised.config, early_exit=True)).sample(
        sheet(), seeds(0, 1, 2), trace=True
    )
    assert output.traces is not None
    assert output.steps == [1 + 4, 5 + 4, 5 + 4]
    assert [len(trace.u) for trace in output.traces] == output.steps
    assert output.traces[0].ids[-1].tolist() == output.ids[0].tolist()


@pytest.mark.parametrize(("revise", "steps", "passes"), [(8, 50, 8), (8, 20, 8), (8, 10, 5), (8, 1, 0), (0, 20, 0)])
def test_its_passes_are_among_the_steps(pipeline, revise, steps, passes):
    config = GenerationConfig().override({"steps": steps, "revise": revise})
    made = make_sampler(pipeline.denoiser, [], config).config
    assert (made.steps, made.revision.passes) == (steps - passes, passes)
    assert pipeline("the", steps=steps, revise=revise, early_exit=False, seed=0).steps == [steps]


def test_a_grid_that_lists_its_times_is_taken_whole(pipeline):
    assert pipeline("the", grid=[1.0, 0.6, 0.3], revise=2, early_exit=False, seed=0).steps == [3 + 2]


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"revise": -1}, "revise must be at least 0"),
        ({"revise_groups": 0}, "at least 0 passes and 1 group"),
        ({"doubt": -0.1}, "doubt must be at least 0"),
        ({"doubt": math.nan}, "doubt must be at least 0"),
    ],
)
def test_wrong_values(pipeline, settings, says):
    with pytest.raises(ValueError, match=says):
        pipeline("the", **settings)
