"""`tree=(S (NP * *) (VP *))`, `span=5-8:PP`, `pos=DET NOUN VERB`: targets by name, judged by the networks that come
with a model (`controls/spans`, `controls/tags`)."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from tta_diffusion.common.registry import Registry
from tta_diffusion.control.classifier import check_vocabulary
from tta_diffusion.control.lexical.network import SPANS, TAGS, LexicalNetwork
from tta_diffusion.control.lexical.objectives import LexicalObjective, SpanObjective, TagObjective, TreeObjective
from tta_diffusion.control.lexical.trees import parse_span, read_target

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


class Library(Protocol):
    """Where the networks of one denoiser lie (`control.parse.ControlLibrary`)."""

    tokenizer: PreTrainedTokenizerBase
    directory: Path | None
    networks: dict[str, LexicalNetwork]  # loaded already


LexicalControl = Callable[[str, LexicalNetwork], LexicalObjective]
LEXICAL_CONTROLS: Registry[tuple[str, LexicalControl]] = Registry("control")  # with the kind of network that it needs


def _tree(value: str, network: LexicalNetwork) -> LexicalObjective:
    return TreeObjective("tree", network, read_target(value))


def _span(value: str, network: LexicalNetwork) -> LexicalObjective:
    return SpanObjective("span", network, parse_span(value))


def _pos(value: str, network: LexicalNetwork) -> LexicalObjective:
    return TagObjective("pos", network, tuple(value.split()))


LEXICAL_CONTROLS.register("tree")((SPANS, _tree))
LEXICAL_CONTROLS.register("span")((SPANS, _span))
LEXICAL_CONTROLS.register("pos")((TAGS, _pos))


def parse_lexical(name: str, value: str, library: Library) -> LexicalObjective:
    """The objective of `name=value`."""
    kind, make = LEXICAL_CONTROLS.get(name)
    return make(value, _network(name, kind, library))


def _network(name: str, kind: str, library: Library) -> LexicalNetwork:
    """The network of a model, loaded once."""
    if kind not in library.networks:
        path = library.directory / kind if library.directory else None
        if path is None or not path.is_dir():
            raise ValueError(
                f"this model brings no network for '{name}': train one with `tta lexical train` and put it into the "
                f"model's directory as controls/{kind} (docs/lexical.md)"
            )
        network = LexicalNetwork.load(path)
        if network.config.kind != kind:
            raise ValueError(f"'{path}' holds a network of {network.config.kind}, not of {kind}")
        if any(path.glob("tokenizer*")):
            from transformers import AutoTokenizer

            own = AutoTokenizer.from_pretrained(path, trust_remote_code=False)
            check_vocabulary(own, library.tokenizer, str(path))
        library.networks[kind] = network
    return library.networks[kind]
