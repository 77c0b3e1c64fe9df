"""What stands beside a model that writes from a source: the source itself, a decoder trained on the same pairs, and the
most agreed of several texts of a run.

    tta bench paraphrase --method copy
    tta bench paraphrase --method decoder --model DIR          (docs/paraphrase.md says how it is trained)
    tta bench paraphrase --method mbr --file runs/bench/RUN    (a run with several texts of each source)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tta_diffusion.bench.methods.base import METHODS, Method, MethodOptions
from tta_diffusion.bench.methods.tta import device_of_process
from tta_diffusion.bench.store import SampleStore
from tta_diffusion.common.configuration import build
from tta_diffusion.common.devices import find_device, find_float

if TYPE_CHECKING:
    from tta_diffusion.baselines.from_source import SourceWriter


class CopyMethod(Method):
    """The source as it is."""

    batch_size = 10_000

    def prepare(
        self, prompts: Sequence[str], controls: Sequence[str | None], settings: dict[str, Any]
    ) -> dict[str, Any]:
        return {}

    def generate(
        self, prompts: Sequence[str], control: str | None, num_samples: int, seed: int, **settings: Any
    ) -> list[str]:
        return [prompt for prompt in prompts for _ in range(num_samples)]


class ConsensusMethod(Method):
    """Of all texts that a run has for a source, the one most like the others (`evaluation.consensus`)."""

    batch_size = 10_000

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._texts: dict[str, list[str]] = {}
        for _, sample in sorted(SampleStore(directory).read().items()):
            self._texts.setdefault(sample.prompt, []).append(sample.text)

    def prepare(
        self, prompts: Sequence[str], controls: Sequence[str | None], settings: dict[str, Any]
    ) -> dict[str, Any]:
        for prompt in prompts:
            if len(self._texts.get(prompt, ())) < 2:
                raise ValueError(f"'{self._directory}' has no two texts for '{prompt}' to choose from: use --prompts N")
        return {}

    def describe(self) -> dict[str, Any]:
        return {"candidates": max(map(len, self._texts.values()), default=0)}

    def generate(
        self, prompts: Sequence[str], control: str | None, num_samples: int, seed: int, **settings: Any
    ) -> list[str]:
        from tta_diffusion.evaluation.consensus import most_agreed

        if num_samples > 1:
            raise ValueError("one text of each source is the most agreed: say --limit 1")
        return [self._texts[prompt][most_agreed(self._texts[prompt])] for prompt in prompts]


class DecoderMethod(Method):
    """A causal model that was fine-tuned on pairs; its settings are those of decoding, such as top_k=1."""

    def __init__(self, options: MethodOptions) -> None:
        if options.model is None:
            raise ValueError("the method 'decoder' needs a model that was trained on pairs: add --model DIR")
        from tta_diffusion.baselines.causal import load_causal

        device = find_device(device_of_process(options.device))
        self.base = load_causal(options.model, device, find_float(options.dtype))
        self.ours = options.task.settings
        self._writer: SourceWriter | None = None

    def prepare(
        self, prompts: Sequence[str], controls: Sequence[str | None], settings: dict[str, Any]
    ) -> dict[str, Any]:
        from tta_diffusion.baselines.from_source import SourceDecoding, SourceWriter

        own = {field.name for field in fields(SourceDecoding)}
        used = build(SourceDecoding, {k: v for k, v in settings.items() if k in own or k not in self.ours})
        self._writer = SourceWriter(self.base, used)
        self._writer.check(prompts)
        self.batch_size = used.batch_size
        return {name: getattr(used, name) for name in own}

    def describe(self) -> dict[str, Any]:
        return {"parameters": sum(p.numel() for p in self.base.model.parameters())}

    def generate(
        self, prompts: Sequence[str], control: str | None, num_samples: int, seed: int, **settings: Any
    ) -> list[str]:
        assert self._writer is not None
        rows = [(prompt, seed + i) for prompt in prompts for i in range(num_samples)]
        return self._writer([prompt for prompt, _ in rows], [number for _, number in rows])


@METHODS.register("copy")
def make_copy(options: MethodOptions) -> Method:
    return CopyMethod()


@METHODS.register("mbr")
def make_consensus(options: MethodOptions) -> Method:
    if options.file is None:
        raise ValueError("the method 'mbr' chooses among the texts of a run: add --file RUN, its directory")
    return ConsensusMethod(options.file)


@METHODS.register("decoder")
def make_decoder(options: MethodOptions) -> Method:
    return DecoderMethod(options)
