"""Who may ask: the bearer of the token where one is set; else, on this machine alone, requests by its own names.

Without a token, a page of another site could reach a local server under a name of its own that points here (DNS
rebinding): so the name in the request must be one of this machine's.
"""

from __future__ import annotations

import hmac
from dataclasses import dataclass

LOOPBACK = ("127.0.0.1", "localhost", "::1", "[::1]")


@dataclass(frozen=True)
class Access:
    """`refusal` is a status and a sentence for whoever may not; None for who may."""

    token: str | None = None
    local: bool = True  # bound to this machine alone

    def refusal(self, headers: dict[bytes, bytes], public: bool) -> tuple[int, str] | None:
        """`public` is what needs no token: the page itself, and the health of the server."""
        if self.token is None:
            host = headers.get(b"host", b"").decode("latin-1").lower()
            if self.local and host and _name(host) not in LOOPBACK:
                return 403, f"this server answers to localhost, not to '{host[:80]}': set a token to serve other names"
            return None
        if public or hmac.compare_digest(headers.get(b"authorization", b""), f"Bearer {self.token}".encode()):
            return None
        return 401, "this server asks for a token: send it as 'Authorization: Bearer TOKEN'"


def _name(host: str) -> str:
    """`localhost:8000` without its port."""
    name, _, port = host.rpartition(":")
    return name if name and port.isdigit() else host
