"""The README of a classifier."""

from __future__ import annotations

from typing import Any

from tta_diffusion import __version__


def card(task: str, result: dict[str, Any], report: dict[str, Any]) -> str:
    half = "all training rows" if result["half"] is None else f"half {result['half']} of the training rows"
    sources = "\n".join(
        f"| {name} | {sum(splits['train'].values()):,} | {sum(splits['validation'].values()):,} |"
        for name, splits in result["sources"].items()
    )
    rows = "\n".join(
        f"| {name} | {after['accuracy']:.3f} | {before['nll']:.3f} | {after['nll']:.3f} | {before['ece']:.3f} "
        f"| {after['ece']:.3f} |"
        for (name, before), after in zip(result["before"].items(), result["after"].values(), strict=True)
    )
    teacher = result["teacher"]
    names = [teacher["name"], *teacher.get("also", ())] if teacher else []
    by = f"the classifier `{names[0]}`" if len(names) == 1 else f"the mean of {', '.join(f'`{n}`' for n in names)}"
    taught = f" Rows of the sources `taught:...` were labelled by {by}." if names else ""
    prior = "with every class weighted equally" if result["balanced"] else "with classes as often as in the data"
    return f"""# {task.capitalize()} classifier

Labels: {", ".join(result["labels"])}. {report["parameters"] / 1e6:.1f}M parameters, sequences of up to
{result["length"]} tokens. Trained with tta-diffusion {__version__} on {half}, on clean text and on the soft, noisy
inputs of diffusion sampling.{taught}

| source | training rows | validation rows |
|---|---|---|
{sources}

On validation rows, {prior}, before and after scaling by the temperature {result["temperature"]:.3f}, which is part of
the saved weights (and was fitted on the same clean rows). `u` is the time of the noise: 0 clean, 1 pure noise.

| input | accuracy | NLL before | NLL after | ECE before | ECE after |
|---|---|---|---|---|---|
{rows}

A long text is labelled as a whole, but its parts were trained on with that label: a part may say nothing about it. The
classifier repeats the prejudices of its sources.
"""
