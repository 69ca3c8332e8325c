"""moto's S3 server on loopback, from an environment of its own (`make test-s3`)."""

from __future__ import annotations

import os
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from urllib.request import urlopen

import pytest

SERVER = os.environ.get("ECHOSCOPE_S3_SERVER", "")
"""Python of the environment that has moto."""


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextmanager
def s3_server() -> Iterator[str]:
    """The address of a server that is stopped in the end."""
    if not SERVER:
        pytest.skip("make test-s3 starts the server")
    port = free_port()
    code = f"from moto.server import main; main(['-H', '127.0.0.1', '-p', '{port}'])"
    process = subprocess.Popen([SERVER, "-c", code], stderr=subprocess.DEVNULL)
    try:
        deadline = time.monotonic() + 60
        while True:
            try:
                urlopen(f"http://127.0.0.1:{port}/moto-api/data.json", timeout=5).close()
                break
            except OSError:
                assert time.monotonic() < deadline
                time.sleep(0.2)
        yield f"127.0.0.1:{port}"
    finally:
        process.terminate()
        process.wait()
