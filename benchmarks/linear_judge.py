"""A judge that shares no rows with guidance: logistic regression on MiniLM's sentence vectors, or on words.

    tta train-classifier prepare topic --data-dir DATA --tokenizer MODEL --half 1 --out data/classifiers/topic-half1
    python benchmarks/linear_judge.py data/classifiers/topic-half1 RUN [RUN ...]

It learns from rows of the half that guidance has not seen, says how often it is right on validation rows, and then how
often it finds the asked label in the texts of each run: 95 % intervals [over texts] and {over prompts}. Every further
run is compared with the first, text by text. With `--ngrams` it reads words and pairs of words (tf-idf), of all rows:
seconds, where vectors take minutes. MiniLM also confirms the words of `tta train-classifier words`: it may be
kind to texts that a control with words wrote.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
from transformers import PreTrainedTokenizerFast

from tta_diffusion.common.atomic import read_lines
from tta_diffusion.data.tokenizer import load_tokenizer
from tta_diffusion.evaluation.bootstrap import cluster_interval, interval, paired_difference
from tta_diffusion.evaluation.encoders import find_encoder
from tta_diffusion.training.classifier.store import LabelledStore
from tta_diffusion.training.classifier.word_lists import Reader, vector_reader

Key = tuple[int, str, int]  # prompt, label, sample


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path, help="prepared labelled arrays of half 1")
    parser.add_argument("runs", type=Path, nargs="+", help="directories of tta bench")
    parser.add_argument("--rows", type=int, default=6000, help="rows to learn from")
    parser.add_argument("--checked", type=int, default=1500, help="validation rows to check it on")
    parser.add_argument("--ngrams", action="store_true", help="read words and pairs of words, not vectors")
    options = parser.parse_args()
    store = LabelledStore.open(options.data)
    tokenizer, held = load_tokenizer(store.tokenizer_dir), store.validation
    if options.ngrams:
        read = ngram_reader(store, tokenizer)
    else:
        read = vector_reader(store, tokenizer, find_encoder("minilm"), options.rows, seed=1)
    rows = np.random.default_rng(0).permutation(len(held))[: options.checked]
    checked = [held.ids[i][: held.lengths[i]].tolist() for i in rows]
    found = read(tokenizer.batch_decode(checked, skip_special_tokens=True)).argmax(-1)
    print(f"right on {100 * (found == held.labels[rows]).mean():.1f} % of {len(rows):,} validation rows")
    judged = [judge(run, store, read) for run in options.runs]
    for run, right in zip(options.runs, judged, strict=True):
        over_texts = interval(list(right.values()))
        over_prompts = cluster_interval(by_prompt(right))
        spans = f"[{over_texts.low:.1f}, {over_texts.high:.1f}] {{{over_prompts.low:.1f}, {over_prompts.high:.1f}}}"
        labels = {key[1]: [v for k, v in right.items() if k[1] == key[1]] for key in right}
        each = ", ".join(f"{label} {np.mean(values):.0f}" for label, values in labels.items())
        print(f"{run.name}: {over_texts.mean:.1f} {spans} % of {len(right)} texts ({each})")
    for run, right in list(zip(options.runs, judged, strict=True))[1:]:
        keys = [key for key in judged[0] if key in right]
        a, b = ([part[key] for key in keys] for part in (right, judged[0]))
        texts = interval((np.array(a) - np.array(b)).tolist())
        prompts = paired_difference(a, b, [key[0] for key in keys])
        spans = f"[{texts.low:.1f}, {texts.high:.1f}] {{{prompts.low:.1f}, {prompts.high:.1f}}}"
        print(f"{run.name} - {options.runs[0].name}: {texts.mean:+.1f} {spans} points")


def ngram_reader(store: LabelledStore, tokenizer: PreTrainedTokenizerFast) -> Reader:
    """Of all rows that the data set itself labels."""
    from sklearn.feature_extraction.text import TfidfVectorizer
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline

    split = store.train
    rows = np.flatnonzero(~split.taught & (split.labels >= 0))
    texts = tokenizer.batch_decode([split.ids[i][: split.lengths[i]].tolist() for i in rows], skip_special_tokens=True)
    words = TfidfVectorizer(ngram_range=(1, 2), min_df=3, sublinear_tf=True)
    model = make_pipeline(words, LogisticRegression(C=8, max_iter=200)).fit(texts, split.labels[rows])
    return lambda words: np.asarray(model.predict_proba(words))


def judge(run: Path, store: LabelledStore, read: Reader) -> dict[Key, float]:
    """100 where the judge finds the label that was asked for, else 0."""
    samples = read_lines(run / "samples.jsonl")
    found = read([sample["text"] for sample in samples]).argmax(-1)
    return {
        (sample["prompt_index"], sample["label"], sample["sample"]): 100.0 * (store.labels[label] == sample["label"])
        for sample, label in zip(samples, found, strict=True)
    }


def by_prompt(right: dict[Key, float]) -> list[list[float]]:
    return [[value for key, value in right.items() if key[0] == prompt] for prompt in {key[0]: None for key in right}]


if __name__ == "__main__":
    main()
