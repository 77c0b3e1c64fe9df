"""Prompt in, text out: `TTAPipeline.from_pretrained(directory)("The pizza", control="sentiment=negative")`."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import Tensor

from tta_diffusion.assets import resolve, shipped_model
from tta_diffusion.common.devices import find_device, find_dtype, warn_of_slow
from tta_diffusion.common.randomness import ENDING, Randomness
from tta_diffusion.common.seeds import first_seeds, sequence_seed
from tta_diffusion.control.free_guidance import labels_used
from tta_diffusion.control.parse import ControlLibrary, Controls, parse_controls
from tta_diffusion.denoiser.checkpoint import read_regime
from tta_diffusion.denoiser.protocol import Denoiser
from tta_diffusion.diffusion.process import State
from tta_diffusion.sampling.blocks import Blocks, check_long, scores_in_blocks, write_in_blocks
from tta_diffusion.sampling.regimes import REGIMES
from tta_diffusion.sampling.repetition import Peers
from tta_diffusion.sampling.rewriting import drafted
from tta_diffusion.sampling.sampler import Sampler, StepCallback, StepInfo
from tta_diffusion.sampling.trace import Trace, describe_tokens
from tta_diffusion.settings import MOST_TOKENS, GenerationConfig, make_sampler
from tta_diffusion.streaming import DraftStream
from tta_diffusion.tokens.canvas import Canvas, text_begins
from tta_diffusion.tokens.spelling import Spelling
from tta_diffusion.tokens.tokenizer import load_tokenizer, special_tokens

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

CONTROLS = "controls"
# Something typical, from which 8-bit products learn how large what they read can be.
TYPICAL = (
    "The city lies on the northern bank of the river, where a bridge was built in 1872. I loved the pizza, but the "
    "service was slow and the staff were rude! He said that the company would sell its shares next year; analysts were "
    "not surprised, and the team lost again."
)


@dataclass(frozen=True)
class TTAOutput:
    """Texts in the order of the prompts, `num_samples` of each in a row."""

    texts: list[str]
    sequences: Tensor  # (N, L) token ids
    prompts: list[str]
    seeds: list[int]
    steps: list[int]  # denoiser evaluations, fewer than asked for after an early exit
    settings: GenerationConfig
    traces: list[Trace] | None = None


@dataclass
class TTAPipeline:
    """A denoiser, its tokenizer and its controls."""

    denoiser: Denoiser
    tokenizer: PreTrainedTokenizerBase
    library: ControlLibrary = field(init=False)
    controls_directory: Path | None = None

    def __post_init__(self) -> None:
        if len(self.tokenizer) > self.denoiser.config.vocab_size:
            raise ValueError(
                f"the tokenizer has {len(self.tokenizer)} tokens, the denoiser {self.denoiser.config.vocab_size}: "
                "they do not belong together"
            )
        self.library = ControlLibrary(self.tokenizer, self.controls_directory)
        self.special = special_tokens(self.tokenizer, getattr(self.denoiser.config, "mask_token", None))
        own = self.denoiser.config
        self.defaults = GenerationConfig().override(REGIMES.get(own.regime).defaults | own.sampling)

    @property
    def from_source(self) -> bool:
        """Whether a prompt is a source to write from, such as a text to paraphrase, and no part of the text."""
        return bool(getattr(self.denoiser.config, "source", False))

    @cached_property
    def spelling(self) -> Spelling:
        return Spelling.of(self.tokenizer, self.denoiser.config.vocab_size)

    @classmethod
    def from_pretrained(
        cls,
        directory: str | Path | None = None,
        device: torch.device | str = "cpu",
        dtype: torch.dtype | None = None,
    ) -> TTAPipeline:
        """A model directory (or the hub name of one): denoiser, tokenizer and `controls/`. None: the shipped model."""
        path = shipped_model() if directory is None else resolve(directory)
        denoiser = REGIMES.get(read_regime(path)).load(path, device)
        if dtype is torch.int8 and torch.device(device).type != "cpu":
            raise ValueError("8-bit products run on a CPU: on a GPU take --dtype bfloat16")
        if dtype not in (None, torch.int8):
            warn_of_slow(device, dtype)
            denoiser = denoiser.to(dtype)
        pipe = cls(denoiser, load_tokenizer(path), path / CONTROLS)
        if dtype is torch.int8:
            lead = [] if pipe.special.start is None else [pipe.special.start]
            cast(Any, denoiser).lower(torch.tensor([(lead + pipe.library.tokenise(TYPICAL))[: denoiser.max_length]]))
        return pipe

    def save_pretrained(self, directory: str | Path) -> None:
        """Denoiser and tokenizer; classifiers are copied in by hand under `controls/<name>/`."""
        self.denoiser.save_pretrained(directory)
        self.tokenizer.save_pretrained(directory)

    def to(self, device: torch.device | str) -> TTAPipeline:
        self.denoiser.to(device)
        return self

    def __call__(
        self,
        prompt: str | Sequence[str] = "",
        control: Controls = None,
        num_samples: int = 1,
        seed: int | Sequence[int] | None = None,
        generator: torch.Generator | None = None,
        return_trace: bool = False,
        callback_on_step_end: Callable[[TTAPipeline, int, float, StepInfo], None] | None = None,
        streamer: Any = None,
        **settings: Any,
    ) -> TTAOutput:
        """Writes `num_samples` continuations of every prompt.

        Args:
            prompt: one text or several; an empty one starts from nothing.
            control: `name=value` strings or objectives, one or several (see `control.parse`).
            num_samples: texts for each prompt.
            seed: the texts of a prompt have the seeds seed, seed + 1, ...; a text depends on its prompt, its seed
                and the settings alone; with `variety` also on the texts of its prompt before it in this call
                (candidates that were not kept among them), and on `batch_size`. Several: one for each prompt. None
                draws one from `generator`, or anew.
            return_trace: record the trajectories.
            callback_on_step_end: called as (pipeline, step, u, info) after each step.
            streamer: an object with `put_draft`, `put` and `end`, such as transformers' TextDiffusionStreamer, for a
                single text; it gets the prompt, the drafts of what follows, and what follows.
            settings: any field of `GenerationConfig`, over the model's own defaults.
        """
        prompts = [prompt] if isinstance(prompt, str) else list(prompt)
        if not prompts:
            raise ValueError("no prompt: give one text, or an empty one to start from nothing")
        if num_samples < 1:
            raise ValueError(f"num_samples must be at least 1, got {num_samples}")
        sampler, canvas, config = self.prepare(prompts, control, settings)
        firsts = first_seeds(seed, len(prompts), generator)
        jobs = [(text, own + i) for text, own in zip(prompts, firsts, strict=True) for i in range(num_samples)]
        canvas = canvas.repeat(num_samples * config.candidates)
        stream = None if streamer is None else DraftStream(streamer, canvas)
        callback = self._callback(callback_on_step_end, stream)
        output = self._run(sampler, canvas, jobs, config, callback, return_trace)
        if stream is not None:
            stream.finish(output.sequences)
        return output

    def rewrite(
        self,
        text: str,
        time: float | Sequence[float],
        control: Controls = None,
        num_samples: int = 1,
        seed: int | None = None,
        return_trace: bool = False,
        callback_on_step_end: Callable[[TTAPipeline, int, float, StepInfo], None] | None = None,
        **settings: Any,
    ) -> TTAOutput:
        """Goes on from a given text: token i is put at time u_i and may change the more, the larger it is.

        Args:
            text: what to rewrite.
            time: one time in (0, 1] for all tokens, or one for each token of the text; 0 keeps a token for good.
        """
        if num_samples < 1:
            raise ValueError(f"num_samples must be at least 1, got {num_samples}")
        sampler, canvas, start, config = self._draft(text, time, control, settings)
        (first,) = first_seeds(seed, 1)
        jobs = [(text, first + i) for i in range(num_samples)]
        rows = num_samples * config.candidates
        start = State(start.ids.repeat(rows, 1), start.times.repeat(rows, 1))
        callback = self._callback(callback_on_step_end, None)
        return self._run(sampler, canvas.repeat(rows), jobs, config, callback, return_trace, start)

    def check(self, prompts: Sequence[str], control: Controls = None, **settings: Any) -> GenerationConfig:
        """All settings of a call; raises what it would raise before its first step, without taking one."""
        return self.prepare(list(prompts), control, settings)[-1]

    def check_rewrite(
        self, text: str, time: float | Sequence[float], control: Controls = None, **settings: Any
    ) -> GenerationConfig:
        """All settings of a rewriting; raises what it would raise before its first step, without taking one."""
        return self._draft(text, time, control, settings)[-1]

    def prepare(
        self, prompts: list[str], control: Controls, settings: dict[str, Any]
    ) -> tuple[Sampler, Canvas, GenerationConfig]:
        """The sampler of a call, one sheet for each prompt, and all settings."""
        sampler, config = self._sampler(control, settings)
        if config.max_length is None and (asked := self._asked(sampler)) > self.denoiser.config.length:
            config = replace(config, max_length=asked)
        if blocks := self.blocks(config):
            check_long(blocks, sampler)
            if config.min_length and "min_length" not in settings:  # as far from the end as in a short text
                config = replace(config, min_length=config.min_length + self.length(config) - blocks.window)
        canvas = self._canvas(prompts, config)
        if (least := settings.get("min_length", 0)) > (room := canvas.ids.shape[1]):  # a model's own gives way
            raise ValueError(f"min_length must be at most {room}, the tokens on the sheet, got {least}")
        return sampler, sampler.guidance.prepare(canvas) if sampler.guidance else canvas, config

    def _sampler(self, control: Controls, settings: dict[str, Any]) -> tuple[Sampler, GenerationConfig]:
        config = self.defaults.override(settings)
        if int(settings.get("steps", config.steps)) != config.steps:
            raise ValueError(
                f"steps={settings['steps']}, but the grid is a list of {config.steps} times: leave steps out, or "
                "give a grid by its name"
            )
        labels = labels_used(getattr(self.denoiser.config, "labels", {}), config.guidance_form)
        objectives = parse_controls(control, replace(self.library, labels=labels))
        for objective, _ in objectives:
            if isinstance(model := getattr(objective, "model", None), torch.nn.Module):
                model.to(self.denoiser.device)
        sampler = make_sampler(self.denoiser, objectives, config)
        if config.candidates > 1 and not (sampler.guidance and sampler.guidance.judging):
            raise ValueError(
                f"candidates={config.candidates}, but no control judges the texts, so there is nothing to choose by: "
                "add one (such as sentiment=positive), or ask for several texts (num_samples)"
            )
        return sampler, replace(config, allocation=str(sampler.allocation))  # what runs is what is said

    def _asked(self, sampler: Sampler) -> int:
        """Tokens on a sheet that has room for the length that a control asks for."""
        return sampler.guidance.room + (self.special.start is not None) if sampler.guidance else 0

    def length(self, config: GenerationConfig) -> int:
        """Tokens on the sheet."""
        length = self.denoiser.config.length if config.max_length is None else config.max_length
        most = self.denoiser.max_length if self.from_source else MOST_TOKENS
        if not 1 <= length <= most:
            raise ValueError(f"max_length must be between 1 and {most}, got {length}")
        return length

    def blocks(self, config: GenerationConfig) -> Blocks | None:
        """How a sheet is cut that is longer than the window; None: it is written at once."""
        if (window := config.window or self.denoiser.config.length) > self.denoiser.max_length:
            raise ValueError(f"window must be at most {self.denoiser.max_length}, the model's positions, got {window}")
        if self.from_source or self.length(config) <= window:
            return None
        size = config.block or max(1, window // 2)
        opening = min(window // 5, max(0, window - size - 1)) if config.opening is None else config.opening
        return Blocks(window, size, opening)

    def _canvas(self, prompts: list[str], config: GenerationConfig) -> Canvas:
        length = self.length(config)
        canvas = Canvas.blank(len(prompts), length, self.special)
        lead = [] if self.special.start is None else [self.special.start]
        for row, text in enumerate(prompts):
            tokens = lead + self.library.tokenise(text) + (lead if self.from_source else [])
            if len(tokens) >= length:
                way_out = "shorten it" if self.from_source else "shorten it, or ask for a longer one"
                raise ValueError(
                    f"the prompt has {len(tokens) - len(lead)} tokens, but the text at most {length - len(lead)}, "
                    f"prompt included: {way_out}"
                )
            begins = len(tokens) if self.from_source else len(lead)
            canvas = canvas.pin(row, 0, tokens).forbid_end(row, config.min_length + begins)
        return canvas

    def _draft(
        self, text: str, time: float | Sequence[float], control: Controls, settings: dict[str, Any]
    ) -> tuple[Sampler, Canvas, State, GenerationConfig]:
        """The sampler of a rewriting, its sheet, the state it goes on from, and all settings."""
        sampler, config = self._sampler(control, settings)
        tokens, own = self.library.tokenise(text), config.window or self.denoiser.config.length
        length = min(self.length(config), own)
        if not self.from_source:  # a longer text has a longer sheet, unless max_length forbids it
            wanted = max(len(tokens) + (self.special.start is not None), self._asked(sampler))
            length = max(length, min(wanted, config.max_length or wanted))
        config = replace(config, min_length=0, max_length=length)  # the given text says how long
        canvas, start = drafted(self._canvas([""], config), tokens, time)
        if blocks := self.blocks(config):
            check_long(blocks, sampler)
            canvas = canvas.forbid_end(0, length - blocks.window)  # its end is not forgotten on the way
        return sampler, sampler.guidance.prepare(canvas) if sampler.guidance else canvas, start, config

    def _callback(
        self, user: Callable[[TTAPipeline, int, float, StepInfo], None] | None, stream: DraftStream | None
    ) -> StepCallback | None:
        if user is None and stream is None:
            return None

        def call(info: StepInfo) -> None:
            if user is not None:
                user(self, info.step, info.u, info)
            if stream is not None:
                stream.draft(info.ids)

        return call

    def _run(
        self,
        sampler: Sampler,
        canvas: Canvas,
        jobs: list[tuple[str, int]],
        config: GenerationConfig,
        callback: StepCallback | None,
        trace: bool,
        start: State | None = None,
    ) -> TTAOutput:
        device, blocks = self.denoiser.device, self.blocks(config)
        if trace and blocks:
            raise ValueError(f"a trace holds {blocks.window} tokens, the model's window: shorten the text to that")
        sequences, steps, traces, scores = [], [], [], []
        rows = [(text, seed, candidate) for text, seed in jobs for candidate in range(config.candidates)]
        peers = Peers.of([text for text, *_ in rows], config.variety, device) if config.variety else None
        for low in range(0, len(rows), config.batch_size):
            high = min(low + config.batch_size, len(rows))
            seeds = [sequence_seed(*row) for row in rows[low:high]]
            begin = start and State(start.ids[low:high].to(device), start.times[low:high].to(device))
            sheet, randomness = canvas.rows(low, high).to(device), Randomness.from_seeds(seeds, device)
            if config.ends == "drawn" and start is None:
                sheet = sheet.end_drawn(randomness.draws(0, ENDING, 1)[:, 0])
            here = peers.rows(low, high) if peers else None
            if blocks is None:
                begun = begin and sampler.process.begin(begin.ids, begin.times)
                output = sampler.sample(sheet, randomness, begun, callback, trace, here)
            else:
                output = write_in_blocks(sampler, blocks, sheet, randomness, self.spelling, begin, callback, here)
            if peers and here:
                peers = replace(peers, finished=here.remember(output.ids, sheet))
            sequences.append(output.ids.cpu())
            steps += output.steps
            traces += output.traces or []
            if config.candidates > 1 and sampler.guidance:
                of_sheets = partial(scores_in_blocks, sampler.guidance, blocks) if blocks else sampler.guidance.scores
                scores.append(of_sheets(output.ids, sheet, self.denoiser.config.vocab_size).cpu())
        ids = torch.cat(sequences)
        if scores:
            kept = best_of_each(torch.cat(scores), config.candidates)
            ids, steps = ids[kept], [steps[i] for i in kept]
            traces = [traces[i] for i in kept] if trace else []
        texts = [self.decode(row) for row in ids]
        for one, text, (prompt, seed) in zip(traces, texts, jobs, strict=False):
            one.text, one.prompt, one.seed = text, prompt, seed
            one.settings = {"steps": len(one.u), "allocation": str(sampler.allocation)}
        describe_tokens(traces, lambda i: str(self.tokenizer.decode([i])))
        prompts, seeds = [text for text, _ in jobs], [seed for _, seed in jobs]
        return TTAOutput(texts, ids, prompts, seeds, steps, config, traces if trace else None)

    def decode(self, ids: Tensor) -> str:
        """The text up to its end token."""
        row = ids.tolist()
        skip = 0 if self.special.start is None else 1
        if self.from_source:
            skip = int(text_begins(ids[None], self.special.start))
        ends = (self.special.end, self.special.pad)
        stop = next((i for i, t in enumerate(row) if i >= skip and t in ends), len(row))
        return str(self.tokenizer.decode(row[skip:stop], skip_special_tokens=True))


def best_of_each(scores: Tensor, candidates: int) -> list[int]:
    """Of every `candidates` rows of scores (N * candidates,) the row with the highest; the first of equals."""
    firsts = torch.arange(0, len(scores), candidates)
    return (firsts + scores.view(-1, candidates).argmax(-1)).tolist()


def _quieten() -> None:
    """transformers says errors alone: now, or where it is imported later, which may never be."""
    if "transformers" in sys.modules:
        from transformers.utils import logging

        logging.set_verbosity_error()
        logging.disable_progress_bar()
    else:
        os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
        os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")


def load_pipeline(model: str, device: str = "auto", dtype: str | None = None) -> TTAPipeline:
    """A pipeline from names that a user gave, without the chatter of the libraries below it."""
    kind = find_dtype(dtype)
    _quieten()
    return TTAPipeline.from_pretrained(model, find_device(device), kind)
