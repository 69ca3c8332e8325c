"""Addresses of machines and servers, ports, and which errors of a server are worth a retry."""

from __future__ import annotations

import ipaddress
import socket
from urllib.parse import urlsplit

STATUSES_OF_A_PROXY = frozenset({502, 503, 504, *range(520, 531)})
"""What stands before a server says them where the server is away; from 520 on Cloudflare does."""
STATUSES_WORTH_A_RETRY = STATUSES_OF_A_PROXY | {408, 425, 429, 500}
"""Of a server that is overloaded, late, starting or away. Every other error would come again."""

_BACKLOG = 512


def is_http_url(url: str) -> bool:
    """Whether a text is the address of a server, or of an endpoint of one."""
    try:
        parts = urlsplit(url)
        return parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        return False


def is_loopback(address: str) -> bool:
    """Whether an address reaches this machine only.

    >>> is_loopback("localhost"), is_loopback("127.0.0.2"), is_loopback("0.0.0.0")
    (True, True, False)
    """
    try:
        return address == "localhost" or ipaddress.ip_address(address).is_loopback
    except ValueError:
        return False


def host_in_url(address: str) -> str:
    """A host that clients can write for the address that a server listens on."""
    if address in ("0.0.0.0", "::"):  # all addresses of this machine, which is none to connect to
        return socket.gethostname()
    return f"[{address}]" if ":" in address else address


def listening(address: str, port: int) -> socket.socket:
    """A socket that listens.

    Raises:
        OSError: the port is taken, or the address is not of this machine.
    """
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    # Named, or asyncio does not know it for TCP and leaves Nagle's delay on: 40 ms an answer.
    opened = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    opened.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        opened.bind((address, port))
        opened.listen(_BACKLOG)
    except OSError as error:
        opened.close()
        reason = error.strerror or error
        raise OSError(f"cannot listen on {address} port {port}: {reason}") from None
    opened.setblocking(False)
    return opened
