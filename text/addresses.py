"""Names and numbers of machines."""

from __future__ import annotations

import ipaddress


def is_loopback(address: str) -> bool:
    """Whether an address reaches this machine only.

    >>> is_loopback("localhost"), is_loopback("127.0.0.2"), is_loopback("0.0.0.0")
    (True, True, False)
    """
    try:
        return address == "localhost" or ipaddress.ip_address(address).is_loopback
    except ValueError:
        return False
