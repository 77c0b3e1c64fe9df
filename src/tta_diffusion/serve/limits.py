"""The most that a request may ask for, and that the server holds."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Limits:
    n: int = 16  # texts of a prompt
    prompts: int = 32
    texts: int = 64  # n times prompts
    steps: int = 1000
    candidates: int = 8
    iterations: int = 10
    work: int = 50_000  # texts times candidates times steps, of every block of a long text
    tokens: int = 1024  # of a text, prompt included
    characters: int = 4000  # of a prompt, a text or a template
    controls: int = 8
    control_characters: int = 500  # of one control
    body: int = 65_536  # bytes of a request
    queue: int = 256  # requests that wait
    seconds: float = 300.0  # from the request to its last text

    def check(self, **asked: int) -> None:
        """Raises a sentence about the first number above its limit; names are those of the fields."""
        for name, value in asked.items():
            if value > (most := getattr(self, name)):
                raise ValueError(f"{_WORDS.get(name, name)} must be at most {most}, got {value}")


_WORDS = {
    "prompts": "the number of prompts",
    "texts": "the number of texts (n times prompts)",
    "work": "texts times candidates times steps (of every block of a long text)",
    "tokens": "the tokens of a text, prompt included,",
    "characters": "the characters of a prompt or text",
    "controls": "the number of controls",
    "control_characters": "the characters of a control",
}
