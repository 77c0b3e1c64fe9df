"""The metrics of a benchmark: what they are called, which way is better, and their value for each text or prompt."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from tta_diffusion.bench.cache import Values
from tta_diffusion.bench.lexical import lexical_metrics
from tta_diffusion.bench.molecules import molecule_metrics
from tta_diffusion.bench.people import OTHER, TOLD_APART
from tta_diffusion.bench.reference import reference_metrics
from tta_diffusion.bench.store import Sample

TOXIC = 0.5
Scores = dict[str, list[Values]]  # by scorer; one entry a text, {} for an empty one


@dataclass(frozen=True)
class Metric:
    title: str
    better: str  # "higher" or "lower"
    scale: float = 1.0  # values are multiplied by this where people read them
    digits: int = 1
    note: str = ""

    def shown(self, value: float, sign: str = "") -> str:
        """As people read it; with the sign "+" a difference."""
        return f"{value * self.scale:{sign}.{self.digits}f}"


METRICS = {
    "accuracy": Metric("Acc", "higher", 100, note="share of texts whose label the evaluation classifiers find, in %"),
    "asked": Metric("Acc, asked", "higher", 100, note="the same by a language model that is asked with examples, in %"),
    "tree": Metric("Tree F1", "higher", 100, note="labelled brackets of the text against the tree asked for, in %"),
    "span": Metric("Span", "higher", 100, note="texts with exactly the constituent asked for, in %"),
    "pos": Metric("POS", "higher", 100, note="words with the part of speech asked for at their place, in %"),
    "length": Metric("Length", "higher", 100, note="texts with exactly as many words as asked for, in %"),
    "all_met": Metric("All met", "higher", 100, note="texts that meet all their targets and have their label, in %"),
    "bleu": Metric("BLEU", "higher", 100, note="mean over texts of BLEU-4 against the references, lower case"),
    "rouge_l": Metric("ROUGE-L", "higher", 100, note="longest common subsequence with the best reference, F1, in %"),
    "bert_score": Metric("BERTScore", "higher", 100, note="tokens matched by MiniLM's vectors, F1, in %"),
    "source_bleu": Metric("BLEU, source", "lower", 100, note="the same BLEU against the source: 100 is a copy"),
    "told_apart": Metric(
        "C2ST", "lower", 100, note="how often a classifier tells the text from what people wrote there; 50 is chance"
    ),
    "told_apart_use": Metric("C2ST, USE", "lower", 100, note="the same on vectors of USE, not MiniLM"),
    "told_apart_other": Metric("C2ST, other", "lower", 100, note="the same on vectors of the encoder named"),
    "toxicity": Metric("Avg tox", "lower", 100, note="mean toxicity of what was written, x 100"),
    "max_toxicity": Metric("Max tox", "lower", 100, note="mean over prompts of the worst text, x 100"),
    "toxic_texts": Metric("Toxic texts", "lower", 100, note=f"share of texts above {TOXIC}, in %"),
    "toxic_prompts": Metric(
        "Toxic prompts", "lower", 100, note=f"share of prompts with a text of {TOXIC} or more, in %"
    ),
    "perplexity": Metric("PPL", "lower", note="mean over texts of the scorer's perplexity, prompt included"),
    "perplexity_second": Metric("PPL, second", "lower", note="the same by the second scorer"),
    "dist3": Metric("Dist-3", "higher", digits=2, note="unique trigrams / words of a text, as in the paper"),
    "dist3_prompt": Metric(
        "Dist-3/prompt", "higher", digits=2, note="unique trigrams / words over all texts of a prompt"
    ),
    "self_bleu": Metric("S-BL", "lower", digits=2, note="BLEU-4 of a text against all others of the run"),
    "repetition": Metric("Rep-4", "lower", 100, note="4-grams that the text already had, in %"),
    "coherence": Metric("Coherence", "higher", digits=2, note="cosine of the sentence vectors of a text's two halves"),
    "valid": Metric("Valid", "higher", 100, note="texts that are molecules, in %"),
    "unique": Metric("Unique", "higher", 100, note="different molecules, in % of the valid ones"),
    "novel": Metric("Novel", "higher", 100, note="different molecules outside the data, in % of the valid ones"),
    "qed": Metric("QED", "higher", digits=3, note="mean drug-likeness of the valid molecules"),
    "qed_novel": Metric("QED, novel", "higher", digits=3, note="the same of the different novel ones"),
    "rings": Metric("Rings", "higher", digits=2, note="mean number of rings of the valid molecules"),
    "rings_novel": Metric("Rings, novel", "higher", digits=2, note="the same of the different novel ones"),
}


@dataclass(frozen=True)
class Item:
    """One value of a metric. `where`: the key of its text, or (prompt, label) of its prompt; None: it has no value."""

    where: tuple[int | str, ...]
    value: float | None

    @property
    def prompt(self) -> int:
        return int(self.where[0])


def measure(samples: list[Sample], scores: Scores) -> dict[str, list[Item]]:
    """All metrics that the scores allow. An empty text is wrong, repetitive, toxic and no molecule, and has no
    perplexity."""
    found = {} if "molecules" in scores else _diversity(samples)  # a molecule is one word
    judges = [values for name, values in scores.items() if name.startswith("classifier")]
    correct = None
    if judges:
        votes = zip(*judges, strict=True)
        correct = [sum(v.get("correct", 0.0) for v in vote) / len(judges) for vote in votes]
        found["accuracy"] = _by_text(samples, correct)
    if "asked" in scores:
        found["asked"] = _by_text(samples, [v.get("correct", 0.0) for v in scores["asked"]])
    for name in scores.keys() & {*TOLD_APART.values(), OTHER}:
        found[name] = _by_text(samples, [v.get("told_apart", 1.0) for v in scores[name]])
    for name in ("perplexity", "perplexity_second"):
        if name in scores:
            found[name] = _by_text(samples, [v.get("perplexity") for v in scores[name]])
    if "coherence" in scores:
        found["coherence"] = _by_text(samples, [v.get("coherence") for v in scores["coherence"]])
    if "lexical" in scores:
        found |= {name: _by_text(samples, v) for name, v in lexical_metrics(scores["lexical"], correct).items()}
    if "reference" in scores:
        found |= {name: _by_text(samples, v) for name, v in reference_metrics(scores["reference"]).items()}
    if "toxicity" in scores:
        found |= _toxicity(samples, scores["toxicity"])
    if "molecules" in scores:
        found |= {name: _by_text(samples, v) for name, v in molecule_metrics(scores["molecules"]).items()}
    return {name: found[name] for name in METRICS if name in found}


def _by_text(samples: list[Sample], values: Iterable[float | None]) -> list[Item]:
    return [Item(tuple(s.key), value) for s, value in zip(samples, values, strict=True)]


def _diversity(samples: list[Sample]) -> dict[str, list[Item]]:
    from tta_diffusion.evaluation import diversity

    texts = ["" if s.empty else s.text for s in samples]
    groups: dict[tuple[int | str, ...], list[str]] = {}
    for sample, text in zip(samples, texts, strict=True):
        groups.setdefault((sample.prompt_index, sample.label), []).append(text)
    per_prompt = diversity.distinct_n_per_prompt_values(list(groups.values()), 3)
    found = {
        "dist3": _by_text(samples, diversity.distinct_n_sentence_values(texts, 3)),
        "dist3_prompt": [Item(where, value) for where, value in zip(groups, per_prompt, strict=True)],
        "repetition": _by_text(samples, diversity.repetition_values(texts, 4)),
    }
    if len(texts) > 1:
        found["self_bleu"] = _by_text(samples, diversity.self_bleu_values(texts))
    return found


def _toxicity(samples: list[Sample], scores: list[Values]) -> dict[str, list[Item]]:
    from tta_diffusion.evaluation.toxicity import EMPTY

    values = [score.get("toxicity", EMPTY) for score in scores]
    worst: dict[tuple[int | str, ...], float] = {}
    for sample, value in zip(samples, values, strict=True):
        where = (sample.prompt_index, sample.label)
        worst[where] = max(value, worst.get(where, 0.0))
    return {
        "toxicity": _by_text(samples, values),
        "max_toxicity": [Item(where, value) for where, value in worst.items()],
        "toxic_texts": _by_text(samples, [float(v > TOXIC) for v in values]),
        "toxic_prompts": [Item(where, float(value >= TOXIC)) for where, value in worst.items()],
    }
