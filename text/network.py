"""Addresses of machines and servers, and which errors of a server are worth another attempt."""

from __future__ import annotations

import ipaddress
from urllib.parse import urlsplit

STATUSES_WORTH_A_RETRY = frozenset({408, 425, 429, 500, 502, 503, 504})
"""Of a server that is overloaded, late or starting. Every other error would come again."""


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
