"""What requests may say. Types are checked here, sizes in `plan` against the server's limits."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, model_validator

from tta_diffusion.common.registry import closest

# Fields of OpenAI's completions that mean nothing here, with the values that ask for nothing.
NEUTRAL: dict[str, tuple[Any, ...]] = {
    "best_of": (1,),
    "frequency_penalty": (0,),
    "presence_penalty": (0,),
    "logit_bias": ({},),
    "logprobs": (0, False),
    "suffix": ("",),
}
IGNORED = ("user",)
# Far beyond what any setting means, and still numbers that every library can hold.
Count = Annotated[int, Field(ge=0, le=10**6)]
Number = Annotated[float, Field(ge=-1e9, le=1e9)]
Name = Annotated[str, Field(max_length=200)]


class Asked(BaseModel):
    """What all requests share; a setting that is left out is the model's own."""

    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)

    model: Name | None = None
    control: str | list[str] = Field(default=[], description="name=value, such as sentiment=negative or length=20")
    n: int = Field(default=1, ge=1)
    seed: int | None = Field(default=None, ge=-(2**63), lt=2**63)
    stream: bool = False
    steps: Count | None = None
    allocation: Name | None = None
    strength: Number | None = None
    iterations: Count | None = None
    enough: Number | None = None
    feedback: Name | Number | None = None
    temperature: Number | None = None
    top_p: Number | None = None
    top_k: Count | None = None
    variety: Number | None = None
    local_repetition_penalty: Number | None = None
    revise: Count | None = None
    candidates: Count | None = None
    min_length: Count | None = None
    ends: Name | None = None
    grid: Name | None = None
    compute: Name | None = None

    @model_validator(mode="before")
    @classmethod
    def _unknown(cls, raw: Any) -> Any:
        """Names the nearest field, and takes OpenAI's own where they ask for nothing; null is a field left out."""
        if not isinstance(raw, dict):
            raise ValueError("the body must be a JSON object")
        kept: dict[str, Any] = {}
        for name, value in raw.items():
            if name in cls.model_fields:
                kept |= {} if value is None else {name: value}
            elif name in NEUTRAL:
                if value is not None and value not in NEUTRAL[name]:
                    raise ValueError(f"'{name}' is not supported: leave it out")
            elif name not in IGNORED:
                raise ValueError(f"Unknown field '{name[:80]}'.{closest(name, list(cls.model_fields))}")
        return kept


class StreamOptions(BaseModel):
    model_config = ConfigDict(extra="ignore", strict=True)

    include_usage: bool = False


class Completion(Asked):
    """OpenAI's completions, and our settings beside them."""

    prompt: str | list[str] = ""
    max_tokens: Count | None = Field(
        default=None,
        ge=1,
        description="tokens behind the prompt, more than the model's window block by block; None: one window",
    )
    echo: bool = False
    stop: str | list[str] | None = None
    stream_options: StreamOptions | None = None


class Rewrite(Asked):
    """A text that is there, noised to `time` and written again; what is kept stays as and where it is."""

    text: str
    time: float = Field(default=0.3, gt=0, le=1)
    keep: list[str | list[int]] = Field(default=[], description="words, or [start, end) in characters")


class Infill(Asked):
    """`The pizza [4] but [6].`: gaps of 4 and 6 tokens are written."""

    template: str
    prompt: str = ""


SETTINGS = tuple(name for name in Asked.model_fields if name not in ("model", "control", "n", "seed", "stream"))
