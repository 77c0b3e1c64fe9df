"""Drafts of one text for a streamer of transformers: the prompt, then every draft of the rest, then the rest itself."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from tta_diffusion.tokens.canvas import Canvas


class DraftStream:
    """Calls `put(prompt)`, `put_draft(draft)` after each step (where the streamer has it), `put(text)` and `end()`."""

    def __init__(self, streamer: Any, canvas: Canvas) -> None:
        if len(canvas.ids) > 1:
            raise ValueError(f"a streamer shows one text, but {len(canvas.ids)} were asked for, candidates counted")
        self.streamer, self.canvas = streamer, canvas
        self.given = int(canvas.pinned[0].long().cumprod(0).sum())  # the leading given tokens are the prompt
        streamer.put(canvas.ids[0, : self.given].cpu())

    def draft(self, ids: Tensor) -> None:
        if hasattr(self.streamer, "put_draft"):
            self.streamer.put_draft(self._rest(ids))

    def finish(self, ids: Tensor) -> None:
        self.streamer.put(self._rest(ids))
        self.streamer.end()

    def _rest(self, ids: Tensor) -> Tensor:
        """What follows the prompt, up to the end of the text."""
        row = ids[:1].cpu()
        return row[0, self.given : int(self.canvas.inside_text(row).sum())]
