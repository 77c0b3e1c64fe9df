"""Everything a classifier run is made of. One YAML under configs/classifiers/ is one of these."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

from tta_diffusion.common.registry import closest
from tta_diffusion.control.alike import check_kinds
from tta_diffusion.diffusion.noise import ENGINES
from tta_diffusion.diffusion.schedule import get_schedule

PROCESSES = ("simplex", "uniform")


@dataclass(frozen=True)
class ModelSettings:
    """`start` (a denoiser directory, or the hub name or directory of any encoder), or a fresh `backbone`."""

    start: str | None = None
    backbone: dict[str, Any] = field(default_factory=dict)  # Hugging Face config; with `start`, changes to its config


@dataclass(frozen=True)
class SoftSettings:
    """Inputs as they occur while a text is being written (see `soft`): shares of the sequences of a batch."""

    process: str = "simplex"  # of the noise: simplex, or uniform for denoisers of tokens that others replace
    noisy: float = 0.2  # a noisy text of that process
    mixture: float = 0.3  # the true token mixed with others
    replaced: float = 0.1  # some tokens replaced
    predicted: float = 0.0  # as the denoiser in `denoiser` predicts it from a noisy text
    nonsense: float = 0.0  # rows of words without sense, as a share of the batch beside it, to be found undecided
    frames: float = 0.0  # rows that lost their telling words, likewise
    denoiser: str | None = None  # directory of a model on the vocabulary of the data
    times: tuple[float, float] = (0.0, 0.7)  # of the noise; later ones than 0.7 leave nothing of a text on the simplex
    schedule: str = "cosine"
    scale: float = 5.0  # K of the simplex
    engine: str = "auto"  # of the noise: dense, tail, or dense on a GPU and tail elsewhere
    prefix: float = 0.5  # share of the soft sequences whose beginning is clean, like a prompt
    evaluate: tuple[float, ...] = (0.15, 0.3, 0.45)  # times that the report shows

    @property
    def whole_sheet(self) -> bool:
        """Whether padding is read, too: the uniform process replaces it like any token, so no text shows its end."""
        return self.process == "uniform"

    @property
    def shares(self) -> dict[str, float]:
        """Which share of the sequences of a batch is softened in each way; the rest is clean."""
        return {name: getattr(self, name) for name in ("noisy", "mixture", "predicted", "replaced")}


@dataclass(frozen=True)
class OptimSettings:
    """AdamW with warm-up and cosine decay."""

    steps: int = 3000
    batch: int = 256
    lr: float = 5e-4
    warmup: int = 200
    final_lr: float = 0.02  # as a fraction of lr
    weight_decay: float = 0.05
    betas: tuple[float, float] = (0.9, 0.98)
    clip: float = 1.0
    ema: float = 0.998  # 0: off
    label_smoothing: float = 0.0
    balanced: bool = True  # every class as often as every other, in training and in the measures
    undecided: float = 0.2  # balanced, and a teacher found some rows to be of no class: their share of a batch
    given: float = 0.5  # balanced, and a teacher labelled rows of a class: the share of the class's own data set
    cut: float = 0.3  # share of the sequences cut to a random beginning


@dataclass(frozen=True)
class RunSettings:
    """Seed, precision, device, and how often it logs and measures."""

    seed: int = 0
    precision: str = "bf16"  # on a GPU; bf16 or fp32
    compile: bool = False
    device: str = "auto"
    log_every: int = 50
    eval_every: int = 500
    eval_rows: int = 4096  # at most
    eval_batch: int = 256
    keep_best: bool = True  # the weights with the lowest validation loss, not the last ones


@dataclass(frozen=True)
class ClassifierConfig:
    """A run on the directory of prepared `data` into `out`."""

    data: str
    out: str
    model: ModelSettings = field(default_factory=ModelSettings)
    soft: SoftSettings = field(default_factory=SoftSettings)
    optim: OptimSettings = field(default_factory=OptimSettings)
    run: RunSettings = field(default_factory=RunSettings)
    overwrite: bool = False
    alike: tuple[str, ...] = ()  # marks, function-words: guidance is not to be drawn to them (see `control.alike`)

    def __post_init__(self) -> None:
        if self.model.start is None and "model_type" not in self.model.backbone:
            raise ValueError("model: give 'start' (an encoder to go on from) or 'backbone' with a 'model_type'")
        check_kinds(self.alike)
        soft = self.soft
        get_schedule(soft.schedule)
        if soft.process not in PROCESSES:
            raise ValueError(f"Unknown soft.process '{soft.process}'.{closest(soft.process, list(PROCESSES))}")
        if soft.engine != "auto":
            ENGINES.get(soft.engine)
        if min(soft.shares.values()) < 0 or sum(soft.shares.values()) > 1 + 1e-9:
            names = ", ".join(f"soft.{name}" for name in soft.shares)
            raise ValueError(f"{names} are shares of one whole, got {soft.shares}")
        if soft.predicted and soft.denoiser is None:
            raise ValueError("soft.predicted needs a denoiser: give soft.denoiser, the directory of a model")
        for name in ("nonsense", "frames"):
            if not 0 <= getattr(soft, name) <= 1:
                raise ValueError(f"soft.{name} must lie between 0 and 1, got {getattr(soft, name)}")
        if not 0 <= soft.times[0] <= soft.times[1] <= 1:
            raise ValueError(f"soft.times needs two rising times between 0 and 1, got {list(soft.times)}")
        if self.optim.steps < 1 or self.optim.batch < 1:
            raise ValueError(
                f"optim.steps and optim.batch must be 1 or more, got {self.optim.steps} and {self.optim.batch}"
            )
        if not self.optim.clip > 0:
            raise ValueError(f"optim.clip must be above 0 (.inf: no limit), got {self.optim.clip}: nothing is learnt")
        for name in ("cut", "label_smoothing"):
            if not 0 <= getattr(self.optim, name) <= 1:
                raise ValueError(f"optim.{name} must lie between 0 and 1, got {getattr(self.optim, name)}")
        if not 0 <= self.optim.ema < 1:
            raise ValueError(f"optim.ema must be 0 (off) or more and below 1, got {self.optim.ema}")
        for name in ("log_every", "eval_every", "eval_rows", "eval_batch"):
            if getattr(self.run, name) < 1:
                raise ValueError(f"run.{name} must be 1 or more, got {getattr(self.run, name)}")
        if not 0 <= self.optim.undecided < 1:
            raise ValueError(f"optim.undecided must be 0 or more and below 1, got {self.optim.undecided}")
        if not 0 <= self.optim.given <= 1:
            raise ValueError(f"optim.given must lie between 0 and 1, got {self.optim.given}")
        if self.run.precision not in ("bf16", "fp32"):
            raise ValueError(f"run.precision must be bf16 or fp32, got '{self.run.precision}'")

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)
