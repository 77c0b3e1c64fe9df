"""One JSON object a line: time, level, event, and what belongs to it. Texts and prompts are never logged."""

from __future__ import annotations

import json
import logging
import sys
from datetime import UTC, datetime
from typing import Any, TextIO

log = logging.getLogger("tta_diffusion.serve")


class JsonLines(logging.Formatter):
    """`log.info("request", extra={"fields": {...}})` -> one line."""

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, Any] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "event": record.getMessage(),
            **getattr(record, "fields", {}),
        }
        if record.exc_info:
            line["error"] = self.formatException(record.exc_info)
        return json.dumps(line, default=str)


def log_json(stream: TextIO | None = None, level: str = "info") -> None:
    """Sends the server's log, and uvicorn's, to standard error as JSON lines."""
    handler = logging.StreamHandler(stream or sys.stderr)
    handler.setFormatter(JsonLines())
    for name in ("tta_diffusion.serve", "uvicorn.error"):
        logger = logging.getLogger(name)
        logger.handlers, logger.propagate = [handler], False
        logger.setLevel(level.upper() if name == "tta_diffusion.serve" else "WARNING")
