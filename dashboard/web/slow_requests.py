"""How long the server waits for a request to become whole."""

from __future__ import annotations

import asyncio

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

REQUEST_S = 15.0
"""Seconds after which a connection is looked at again: one that has sent nothing new since, or only
more of the same unfinished request, is closed."""


class PatientProtocol(H11Protocol):
    """HTTP/1.1 that closes connections whose request does not become whole in twice `REQUEST_S`.

    Uvicorn itself waits for ever for the rest of the headers or of the body. It has no limit of the
    time that an answer takes, and neither has this.
    """

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._seen: object = None
        self.loop.call_later(REQUEST_S, self._look)

    def _look(self) -> None:
        is_ours = self.transport.get_protocol() is self  # or it became a web socket
        if not is_ours or self.transport.is_closing():
            return
        # The request before tells one unfinished request from the next.
        waits_for = (id(self.cycle), self.conn.their_state)
        is_unfinished = self.conn.their_state in (h11.IDLE, h11.SEND_BODY)
        if is_unfinished and waits_for == self._seen:
            self.transport.close()
            return
        self._seen = waits_for if is_unfinished else None
        self.loop.call_later(REQUEST_S, self._look)
