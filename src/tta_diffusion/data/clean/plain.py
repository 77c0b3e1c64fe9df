"""Text that is clean already: only characters and white space are made uniform."""

from __future__ import annotations

from tta_diffusion.data.clean.common import CLEANERS, normalise


@CLEANERS.register("plain")
def clean_plain(text: str) -> str | None:
    return normalise(text) or None
