"""From a request to the pieces of work that answer it; what is wrong with it is said before it waits."""

from __future__ import annotations

import secrets
from dataclasses import replace
from typing import Any

from tta_diffusion.serve.limits import Limits
from tta_diffusion.serve.models import Served
from tta_diffusion.serve.schema import SETTINGS, Asked, Completion, Infill, Rewrite
from tta_diffusion.serve.work import Manner, Piece, Rewriting, Text, Varied
from tta_diffusion.settings import GenerationConfig
from tta_diffusion.tokens.keep import kept_times


def plan(asked: Asked, served: Served, limits: Limits) -> list[Piece]:
    """Checked as a call of the pipeline would check it, classifiers left out: they are loaded by whoever writes."""
    with served.lock:
        if isinstance(asked, Rewrite):
            return _rewriting(asked, served, limits)
        if isinstance(asked, Infill):
            limits.check(characters=len(asked.template))
            if not asked.template.strip():
                raise ValueError("the template is empty: write a text with gaps, like 'The pizza [4] but [6].'")
            return _writing(asked, [asked.prompt], [f"infill={asked.template}"], None, served, limits)
        assert isinstance(asked, Completion)
        prompts = [asked.prompt] if isinstance(asked.prompt, str) else asked.prompt
        if not prompts:
            raise ValueError("no prompt: give one text, or an empty one to start from nothing")
        return _writing(asked, prompts, [], asked.max_tokens, served, limits)


def _writing(
    asked: Asked, prompts: list[str], more: list[str], max_tokens: int | None, served: Served, limits: Limits
) -> list[Piece]:
    limits.check(prompts=len(prompts), characters=max(map(len, prompts)))
    control, settings = _manner(asked, more, len(prompts), served, limits)
    seed = secrets.randbits(31) if asked.seed is None else asked.seed
    pieces: list[Piece] = []
    work = 0
    for prompt in prompts:
        own = settings if max_tokens is None else settings | {"max_length": _sheet(served, prompt, max_tokens, limits)}
        work += asked.n * _work(_check(served, control, own, prompt=prompt), served, limits)
        manner = _frozen(served, control, own)
        pieces += [Text(manner, prompt, seed + i) for i in range(asked.n)]
    limits.check(work=work)
    if not served.twin.defaults.override(settings).variety:
        return pieces
    if len({piece.manner for piece in pieces}) > 1:
        raise ValueError("with variety, max_tokens asks for one sheet: send prompts of different lengths one by one")
    return [Varied(pieces[0].manner, tuple(prompts), asked.n, seed)]


def _rewriting(asked: Rewrite, served: Served, limits: Limits) -> list[Piece]:
    limits.check(characters=len(asked.text))
    control, settings = _manner(asked, [], 1, served, limits)
    times = kept_times(served.twin.tokenizer, asked.text, asked.time, asked.keep)
    found = _check(served, control, settings, text=asked.text, times=times)
    limits.check(work=asked.n * _work(found, served, limits))
    seed = secrets.randbits(31) if asked.seed is None else asked.seed
    return [Rewriting(_frozen(served, control, settings), asked.text, tuple(times), asked.n, seed)]


def _manner(
    asked: Asked, more: list[str], prompts: int, served: Served, limits: Limits
) -> tuple[list[str], dict[str, Any]]:
    """Controls in their one spelling and the settings that were given, within the limits."""
    given = [asked.control] if isinstance(asked.control, str) else asked.control
    limits.check(controls=len(given), control_characters=max(map(len, given), default=0))
    settings = {name: value for name in SETTINGS if (value := getattr(asked, name)) is not None}
    limits.check(**{name: settings[name] for name in ("steps", "candidates", "iterations") if name in settings})
    config = served.twin.defaults.override(settings)
    texts = prompts * asked.n
    limits.check(n=asked.n, texts=texts, steps=config.steps, candidates=config.candidates)
    limits.check(iterations=config.iterations, work=texts * config.candidates * config.steps)
    control = [served.control(spec) for spec in [*given, *more]]  # one given twice pushes twice
    if config.candidates > 1 and not served.judging(control):
        raise ValueError(f"candidates={config.candidates}, but no control judges the texts: add one, or ask for more n")
    return control, settings


def _check(served: Served, control: list[str], settings: dict[str, Any], **given: Any) -> GenerationConfig:
    """All settings; what the pipeline would say before its first step, from the controls that pin tokens."""
    judging = served.judging(control)
    pinning = [spec for spec in control if spec not in judging]
    alone = settings | {"candidates": 1}
    try:
        if "text" in given:
            found = served.twin.check_rewrite(given["text"], given["times"], pinning, **alone)
        else:
            found = served.twin.check([given["prompt"]], pinning, **alone)
        return replace(found, candidates=served.twin.defaults.override(settings).candidates)
    except ArithmeticError:
        raise ValueError("a number in this request is out of range") from None


def _work(config: GenerationConfig, served: Served, limits: Limits) -> int:
    """Steps of one text, in all its blocks and candidates."""
    length, blocks = served.twin.length(config), served.twin.blocks(config)
    limits.check(tokens=length)
    return config.candidates * config.steps * (blocks.count(length) if blocks else 1)


def _frozen(served: Served, control: list[str], settings: dict[str, Any]) -> Manner:
    config = served.twin.defaults.override(settings)
    return Manner(served.name, tuple(control), tuple(sorted(settings.items())), config.candidates)


def _sheet(served: Served, prompt: str, max_tokens: int, limits: Limits) -> int:
    """Tokens on the sheet so that at most `max_tokens` follow the prompt."""
    twin = served.twin
    lead = int(twin.special.start is not None) * (2 if twin.from_source else 1)  # one more stands behind a source
    sheet = lead + len(twin.library.tokenise(prompt)) + max_tokens
    if twin.from_source:
        return min(twin.denoiser.config.length, sheet)
    limits.check(tokens=sheet)
    return sheet
