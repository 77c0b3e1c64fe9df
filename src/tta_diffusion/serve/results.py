"""Finished texts as requests get them."""

from __future__ import annotations

from itertools import accumulate, pairwise
from typing import Any

import torch

from tta_diffusion.data.smiles import writes_smiles
from tta_diffusion.demo.molecules import svg_of
from tta_diffusion.evaluation.molecules import read_molecule, require_rdkit
from tta_diffusion.pipeline import TTAOutput, TTAPipeline
from tta_diffusion.serve.judge import Judge
from tta_diffusion.serve.work import Written
from tta_diffusion.tokens.canvas import text_begins


def finished(pipeline: TTAPipeline, output: TTAOutput, judge: Judge, rewritten: bool) -> list[Written]:
    """What an output holds, text by text; a text that was rewritten has no prompt before it."""
    device = pipeline.denoiser.device
    ids = output.sequences.to(device)
    chances = judge(ids, torch.zeros_like(ids, dtype=torch.bool))
    rows = zip(output.texts, output.prompts, output.seeds, output.steps, ids.tolist(), chances, strict=True)
    return [
        _written(pipeline, text, "" if rewritten else prompt, seed, steps, row, p)
        for text, prompt, seed, steps, row, p in rows
    ]


def _written(
    pipeline: TTAPipeline, text: str, prompt: str, seed: int, steps: int, ids: list[int], p: dict[str, float]
) -> Written:
    special, begin = pipeline.special, text_start(pipeline, ids)
    stop = next((i for i in range(begin, len(ids)) if ids[i] in (special.end, special.pad)), len(ids))
    given = pipeline.library.tokenise(prompt) if prompt else []
    inside = [] if pipeline.from_source else given  # a source stands before the text, and is no part of it
    shown = str(pipeline.tokenizer.decode(inside, skip_special_tokens=True)) if inside else ""
    return Written(
        text=text,
        behind=text.removeprefix(shown),
        seed=seed,
        steps=steps,
        prompt_tokens=len(given),
        tokens=max(0, stop - begin - len(inside)),
        ended=stop < len(ids),
        pieces=pieces(pipeline, text),
        p=p,
        molecule=molecule(text) if writes_smiles(pipeline.tokenizer) else None,
    )


def text_start(pipeline: TTAPipeline, ids: list[int]) -> int:
    """The place of a sheet's first token of text, behind the start token, and behind the source where there is one."""
    if pipeline.from_source:
        return int(text_begins(torch.tensor([ids]), pipeline.special.start))
    return int(pipeline.special.start is not None)


def pieces(pipeline: TTAPipeline, text: str) -> list[str]:
    """The text cut where its tokens begin, spaces in front; joined, they are the text."""
    if not pipeline.tokenizer.is_fast:
        return [text]
    ends = accumulate((end for _, end in pipeline.library.spans(text)[:-1]), max)
    cuts = [0, *ends, len(text)]
    return [text[a:b] for a, b in pairwise(cuts)]


def molecule(text: str) -> dict[str, Any] | None:
    """What RDKit says of a molecule, and its picture; None without RDKit."""
    try:
        require_rdkit()
    except ValueError:
        return None
    found = read_molecule(text)
    if found is None:
        return {"valid": False}
    return {"valid": True, "qed": round(found.qed, 5), "rings": found.rings, "svg": svg_of(text)}
