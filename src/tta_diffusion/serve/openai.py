"""Answers in the shape of OpenAI's completions, so that its clients understand them.

A diffusion model does not write from left to right. In a stream, a chunk with an empty `text` carries the draft of a
step in the field `draft`, and one chunk at the end has the whole text: a client that joins the texts gets it, and one
that knows drafts can show them.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from starlette.responses import JSONResponse

from tta_diffusion.serve.events import DONE, message
from tta_diffusion.serve.schema import Asked, Completion
from tta_diffusion.serve.work import Written

_TYPES = {400: "invalid_request_error", 401: "authentication_error", 403: "permission_error", 404: "not_found_error"}


@dataclass(frozen=True)
class Shape:
    """The frame of one answer."""

    asked: Asked
    model: str
    number: str  # of the request
    created: int = field(default_factory=lambda: int(time.time()))

    def answer(self, texts: list[Written]) -> dict[str, Any]:
        """The whole answer at once."""
        choices = [self.choice(place, text) for place, text in enumerate(texts)]
        return self._frame(choices) | {"usage": usage(texts)}

    def drafts(self, texts: list[tuple[int, dict[str, Any]]]) -> str:
        """An event with the drafts of one step."""
        return message(
            self._frame([{"index": i, "text": "", "finish_reason": None, "draft": draft} for i, draft in texts])
        )

    def end(self, texts: list[Written]) -> Iterator[str]:
        """The events that end a stream."""
        yield message(self._frame([self.choice(place, text) for place, text in enumerate(texts)]))
        if isinstance(self.asked, Completion) and self.asked.stream_options and self.asked.stream_options.include_usage:
            yield message(self._frame([]) | {"usage": usage(texts)})
        yield message(DONE)

    def choice(self, place: int, written: Written) -> dict[str, Any]:
        text, ended = written.text, written.ended
        if isinstance(self.asked, Completion):
            text, stopped = cut(written.behind, self.asked.stop)
            ended = ended or stopped
            text = written.text[: len(written.text) - len(written.behind)] + text if self.asked.echo else text
        more = {} if written.molecule is None else {"molecule": written.molecule}
        return {
            "index": place,
            "text": text,
            "logprobs": None,
            "finish_reason": "stop" if ended else "length",
            "full_text": written.text,
            "seed": written.seed,
            "steps": written.steps,
            "pieces": written.pieces,
            "p": written.p,
            **more,
        }

    def _frame(self, choices: list[dict[str, Any]]) -> dict[str, Any]:
        return {
            "id": f"cmpl-{self.number}",
            "object": "text_completion",
            "created": self.created,
            "model": self.model,
            "choices": choices,
        }


def usage(texts: list[Written]) -> dict[str, int]:
    read, wrote = sum(text.prompt_tokens for text in texts), sum(text.tokens for text in texts)
    return {"prompt_tokens": read, "completion_tokens": wrote, "total_tokens": read + wrote}


def cut(text: str, stop: str | list[str] | None) -> tuple[str, bool]:
    """The text up to the first of some words, and whether one of them stood in it."""
    words = [stop] if isinstance(stop, str) else stop or []
    places = [place for word in words if word and (place := text.find(word)) >= 0]
    return (text[: min(places)], True) if places else (text, False)


def problem(status: int, sentence: str) -> dict[str, Any]:
    kind = _TYPES.get(status, "server_error" if status >= 500 else "invalid_request_error")
    sentence = sentence.encode(errors="replace").decode()  # a name in the request may be no valid UTF-8
    return {"error": {"message": sentence, "type": kind, "param": None, "code": status}}


def refuse(status: int, sentence: str) -> JSONResponse:
    """An error in OpenAI's shape."""
    headers = {401: {"WWW-Authenticate": "Bearer"}, 429: {"Retry-After": "5"}, 503: {"Retry-After": "30"}}
    return JSONResponse(problem(status, sentence), status, headers.get(status))
