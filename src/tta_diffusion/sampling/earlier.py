"""What a text that is written block by block (see `blocks`) has said before, and saying it again lowered.

With P = `local_repetition_penalty`, a token w at a place i of a later block has its logit lowered

    by P           if it stands close in front, or repeats a pair of its text, in this block or before (`repetition`)
    by 3/2 P       if it repeats three tokens of an earlier block
    by P/2 log r   if it is said too often:   r = n_w / max(c, N p_w) > 1

n_w is how often w is among the N tokens that the text itself wrote before this block, p_w its share in any text: the
network's prediction where nothing is known, on a sheet of noise, mean over the places. So "the" may come as often as
ever, while the seventh "pearl" needs more reason than the second. c is 1 for digits and what begins a word, and 4 for
marks and what goes on with a word. There is one way to spell a name: what goes on with a word is free to repeat pairs
and threes.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from tta_diffusion.common.randomness import mix
from tta_diffusion.sampling.repetition import NOBODY, ends, front_keys, repeats, repeats_locally, stands_close
from tta_diffusion.tokens.canvas import Canvas
from tta_diffusion.tokens.logits import Logits
from tta_diffusion.tokens.spelling import Spelling

THREES = 1.5  # how much more three tokens of an earlier block weigh than a pair
OFTEN = 0.5  # how much less a token that is e times as frequent as in any text does
FEW = 4  # c of marks and of what goes on with a word


@dataclass(frozen=True)
class Earlier:
    """What texts have said before the sheet at hand."""

    texts: Tensor  # (B,) a number for each text
    written: Tensor  # (B, L) True at tokens of the sheet that an earlier block wrote
    threes: Tensor  # (F,) hashes of three tokens in a row, the last of which an earlier block wrote
    often: Tensor  # (B, V) log r
    goes_on: Tensor  # (V,)

    @classmethod
    def of(cls, ids: Tensor, own: Tensor, written: Tensor, spelling: Spelling, share: Tensor) -> Earlier:
        """From all tokens before the block (B, n), those among them that the texts wrote, and those of the sheet.

        `share` (V,) is that of every token in any text.
        """
        texts = torch.arange(len(ids), device=ids.device)
        keys = mix(front_keys(texts, ids) + ids)[own & (torch.arange(ids.shape[1], device=ids.device) >= 2)]
        counts = torch.zeros(len(ids), len(share), device=ids.device).scatter_add_(1, ids, own.float())
        usual = (counts.sum(-1, keepdim=True) * share).maximum(torch.where(spelling.begins, 1, FEW))
        often = (counts / usual).clamp_min(1).log()
        return cls(texts, written, keys, often, spelling.goes_on)

    def rows(self, start: int, stop: int) -> Earlier:
        rows = slice(start, stop)
        return replace(self, texts=self.texts[rows], written=self.written[rows], often=self.often[rows])

    def lower(self, logits: Logits, draft: Tensor, canvas: Canvas, nats: float) -> Logits:
        """The logits with what the draft (B, L) or an earlier block has said lowered."""
        front = front_keys(self.texts, draft)
        nobody = torch.full_like(front, NOBODY)
        length = draft.shape[1]

        def said(tokens: Tensor, places: Tensor) -> Tensor:
            local = repeats_locally(tokens, places, draft, canvas, self.written)
            threes = repeats(front, tokens, places, nobody, self.threes)
            close = stands_close(tokens, places, draft).float()
            found = torch.where(self.goes_on[tokens], close, local + THREES * threes)
            found = found + OFTEN * self.often[places[:, None] // length, tokens]
            return found.masked_fill(ends(tokens, canvas), 0)

        return logits.lowered(said, nats)
