"""Everything a training run is made of. One YAML under configs/ is one of these."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

from tta_diffusion.diffusion.grid import GRIDS

REDUCTION_FORMS = ("forward", "rollout")
CHOICES = {
    "optim.name": ("adamw", "muon"),
    "optim.schedule": ("cosine", "linear", "constant"),
    "time.sampler": ("uniform", "grid", "loss-aware"),
    "run.precision": ("bf16", "fp32"),
    "run.sharding": ("ddp", "fsdp"),
}
AT_LEAST_ONE = (
    *("optim.steps", "optim.batch", "optim.micro_batch"),
    *("run.save_every", "run.keep", "run.eval_every", "run.eval_batches", "run.sample_steps", "run.log_every"),
)
NOT_NEGATIVE = ("optim.warmup", "condition.pad_weight", "run.samples")
SHARES = (
    "time.allocation_share",
    "time.independent_share",
    "time.settled_share",
    "time.loss_aware_share",
    "condition.prefix_share",
    "condition.self_condition",
    "condition.rollout",
    "condition.label_dropout",
)
LABELLED = ("uniform", "masked")  # regimes whose networks can be told labels


@dataclass(frozen=True)
class ModelSettings:
    """What is trained: `start` (a denoiser directory, a hub name or directory of a masked or causal LM) or `backbone`
    (a Hugging Face config with `model_type`, trained from scratch; `vocab_size` comes from the data)."""

    start: str | None = None
    backbone: dict[str, Any] | None = None
    regime: str = "simplex"  # which diffusion it is trained for (see `training.regimes`)
    length: int | None = None  # None: the length of the prepared sequences
    schedule: str = "cosine"
    scale: float = 5.0
    embedding_width: int = 128  # of the gaussian regime
    reading: str = "layers"  # gaussian: of noisy embeddings by layers of its own, or by the `likelihood` of tokens
    self_conditioning: str = "mean"
    time_conditioning: str = "token"
    timed: bool = True  # False: the network is told no time (a masked language model knows none)
    labels: bool = False  # uniform, masked: the network is told the labels of the corpus (guidance_form=cfg)
    tied_input: bool = True
    sampling: dict[str, Any] = field(default_factory=dict)  # what a call uses where it gives nothing else
    shift: bool | None = None  # predict each token one position before it; None: as a causal start was trained


@dataclass(frozen=True)
class OptimSettings:
    """Steps, batch and optimizer. A step is one update over `batch` sequences, in pieces of `micro_batch`."""

    steps: int = 10_000
    batch: int = 512
    micro_batch: int = 512  # sequences a forward pass; noise is drawn for one at a time
    name: str = "adamw"  # adamw, or muon for the matrices of the layers (adamw for all else)
    lr: float = 6e-4
    warmup: int = 1_000
    schedule: str = "cosine"  # cosine, linear or constant
    final_lr: float = 0.05  # as a fraction of lr
    weight_decay: float = 0.05
    betas: tuple[float, float] = (0.9, 0.98)
    clip: float = 1.0
    ema: float = 0.999  # 0: off


@dataclass(frozen=True)
class TimeSettings:
    """Which times u a sequence is trained at (see `training.times`)."""

    sampler: str = "uniform"  # uniform, grid or loss-aware
    grid: int | tuple[int, ...] | None = None  # T of the grid; of several, the rows of a batch take turns
    spacing: str = "uniform"  # of the times of a grid (see `grid`): uniform is u = k / T
    low_discrepancy: bool = True
    low: float = 0.0  # times are drawn from [low, 1]
    allocation_share: float = 0.5  # share of sequences whose tokens get times of their own
    independent_share: float = 0.0  # of those: every token at a time of its own, whatever the shared one
    settled_share: float = 0.0  # of those: a drawn share of the tokens at time 0, the rest at the shared one
    loss_aware_share: float = 0.7  # share of the density that follows the slope of the loss

    @property
    def grids(self) -> tuple[int, ...]:
        return self.grid if isinstance(self.grid, tuple) else (self.grid,) if self.grid else ()


@dataclass(frozen=True)
class ConditionSettings:
    """What the model may see of the truth and of itself."""

    prefix: tuple[int, int] = (2, 10)  # clean tokens at the start, drawn evenly
    prefix_share: float = 0.9  # of sequences; the others have none but the start token
    self_condition: float = 0.5  # share of steps with a first prediction fed back
    rollout: float = 0.0  # share of steps trained on the sampler's own output
    pad_weight: float = 1.0  # weight of padding in the loss
    label_dropout: float = 0.1  # share of sequences whose label is not told


@dataclass(frozen=True)
class RunSettings:
    """How it runs: precision, compilation, parallelism, checkpoints, logs."""

    seed: int = 0
    precision: str = "bf16"  # bf16 or fp32
    compile: bool = False
    sharding: str = "ddp"  # ddp or fsdp
    save_every: int = 1_000
    keep: int = 2
    eval_every: int = 1_000
    eval_batches: int = 8
    samples: int = 4  # texts written at each evaluation
    sample_steps: int = 50
    log_every: int = 50
    report_to: str | None = None  # a tracker that accelerate knows, such as wandb
    minutes: float | None = None  # stop (with a checkpoint) after so much time


@dataclass(frozen=True)
class Stage:
    """One stage of progressive step reduction: go on from the last one on a grid of T times, or on several."""

    grid: int | tuple[int, ...]
    steps: int
    lr: float | None = None
    form: str = "forward"
    spacing: str = "uniform"

    @property
    def name(self) -> str:
        grids = self.grid if isinstance(self.grid, tuple) else (self.grid,)
        return f"reduced-{'-'.join(map(str, grids))}-{self.form}"

    def __post_init__(self) -> None:
        if self.form not in REDUCTION_FORMS:
            raise ValueError(f"the form of a stage is one of {', '.join(REDUCTION_FORMS)}, got '{self.form}'")


@dataclass(frozen=True)
class ShortSettings:
    """A second corpus of shorter sequences, for a share of the steps (see `training.lengths`)."""

    data: str
    share: float = 0.3
    weights: dict[str, float] | None = None  # shares of its sources


@dataclass(frozen=True)
class TrainConfig:
    """A run over the prepared corpus `data` into the directory `out`."""

    data: str
    out: str
    weights: dict[str, float] | None = None  # shares of the sources; None: those of the corpus
    model: ModelSettings = field(default_factory=ModelSettings)
    optim: OptimSettings = field(default_factory=OptimSettings)
    time: TimeSettings = field(default_factory=TimeSettings)
    condition: ConditionSettings = field(default_factory=ConditionSettings)
    run: RunSettings = field(default_factory=RunSettings)
    stages: tuple[dict[str, Any], ...] = ()  # progressive step reduction, after the base run
    short: ShortSettings | None = None

    def __post_init__(self) -> None:
        if (self.model.start is None) == (self.model.backbone is None):
            raise ValueError("model: give either 'start' (weights to go on from) or 'backbone' (a config)")
        for path, known in CHOICES.items():
            if (value := self._setting(path)) not in known:
                raise ValueError(f"{path} must be one of {', '.join(known)}, got '{value}'")
        for path in AT_LEAST_ONE:
            if (value := self._setting(path)) < 1:
                raise ValueError(f"{path} must be at least 1, got {value}")
        for path in NOT_NEGATIVE:
            if (value := self._setting(path)) < 0:
                raise ValueError(f"{path} must be 0 or more, got {value}")
        if not 0 <= self.optim.ema < 1:
            raise ValueError(f"optim.ema must be 0 (off) or more and below 1, got {self.optim.ema}")
        if not self.optim.clip > 0:
            raise ValueError(f"optim.clip must be above 0 (.inf: no limit), got {self.optim.clip}: nothing is learnt")
        if self.optim.batch % self.optim.micro_batch:
            raise ValueError(
                f"optim.batch ({self.optim.batch}) must be a multiple of optim.micro_batch ({self.optim.micro_batch})"
            )
        low, high = self.condition.prefix
        if not 0 <= low <= high:
            raise ValueError(f"condition.prefix must be two rising numbers of tokens, got {low} and {high}")
        if not 0 <= self.time.low < 1:
            raise ValueError(f"time.low must lie between 0 and 1, got {self.time.low}")
        for path in SHARES:
            if not 0 <= (value := self._setting(path)) <= 1:
                raise ValueError(f"{path} must be between 0 and 1, got {value}")
        if self.model.labels and self.model.regime not in LABELLED:
            raise ValueError(f"model.labels needs one of the regimes {', '.join(LABELLED)}, not '{self.model.regime}'")
        if self.short and not (0 <= self.short.share <= 1 and not self.model.labels):
            raise ValueError("short.share must be between 0 and 1, and short sequences have no labels")
        GRIDS.get(self.time.spacing)
        if self.time.grid is not None and min(self.time.grids, default=0) < 1:
            raise ValueError(f"time.grid must be at least 1 (null: none), or a list of such, got {self.time.grid}")
        if self.time.sampler == "grid" and not self.time.grid:
            raise ValueError("time.sampler 'grid' needs time.grid, the number of steps T")

    def _setting(self, path: str) -> Any:
        group, _, name = path.partition(".")
        return getattr(getattr(self, group), name)

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)
