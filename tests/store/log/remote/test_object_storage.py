"""The copy of a run on a real S3 server that is overloaded, slow, forgetful and torn off.

The server is moto's, in an environment of its own (`make test-s3`). Between it and pyarrow stands a
proxy that answers 503, waits, cuts connections in the middle of an upload, or repeats old listings.
"""

from __future__ import annotations

import http.client
import random
import re
import socket
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.request import Request, urlopen

import pytest
from equal_runs import assert_equal_runs
from made_run import add_steps, make_run, open_writer
from s3_server import s3_server

from echoscope.store.checkpoints import checkpoint_path, write_checkpoint_manifest
from echoscope.store.errors import NotARunError
from echoscope.store.log.remote import bucket, pulling, pushing
from echoscope.store.log.remote.bucket import Bucket, BucketError
from echoscope.store.log.remote.pulling import RemoteRoot, bring_home, local_folder
from echoscope.store.log.remote.pushing import Copier, Pushing
from echoscope.store.log.verify import verify
from echoscope.store.query.listing import RunList
from echoscope.store.reader import open_run

pytestmark = pytest.mark.s3


@pytest.fixture(scope="session")
def server() -> Iterator[str]:
    """Address of an S3 server on loopback."""
    with s3_server() as address:
        yield address


@dataclass
class Faults:
    """What goes wrong between a client and the server, drawn from a seed."""

    draw: random.Random
    overloaded: float = 0.0
    torn: float = 0.0
    slow: float = 0.0
    old_listings: bool = False
    listings: dict[str, bytes] = field(default_factory=dict)
    num_overloaded: int = 0
    num_torn: int = 0
    num_old: int = 0


def proxy_of(server: str, faults: Faults) -> ThreadingHTTPServer:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *_: object) -> None:
            pass

        def handle_one(self) -> None:
            length = int(self.headers.get("Content-Length", 0))
            if faults.draw.random() < faults.slow:
                time.sleep(0.3)
            is_chunked = self.headers.get("Transfer-Encoding", "") == "chunked"
            if (length or is_chunked) and faults.draw.random() < faults.torn:
                self.rfile.read(min(length // 2, 10))
                faults.num_torn += 1
                self.close_connection = True
                self.connection.shutdown(socket.SHUT_RDWR)
                return
            body = self.chunks() if is_chunked else self.rfile.read(length)
            if faults.draw.random() < faults.overloaded:
                faults.num_overloaded += 1
                self.answer(503, b"<Error><Code>SlowDown</Code></Error>", {})
                return
            is_listing = self.command == "GET" and "list-type=2" in self.path
            if is_listing and faults.old_listings and self.path in faults.listings:
                faults.num_old += 1
                self.answer(200, faults.listings[self.path], {"Content-Type": "application/xml"})
                return
            upstream = http.client.HTTPConnection(server, timeout=30)
            drop = ("expect", "transfer-encoding", "content-length")
            headers = {k: v for k, v in self.headers.items() if k.lower() not in drop}
            upstream.request(self.command, self.path, body or None, headers)
            reply = upstream.getresponse()
            data = reply.read()
            if is_listing:
                faults.listings[self.path] = data
            self.answer(reply.status, data, dict(reply.getheaders()))
            upstream.close()

        def chunks(self) -> bytes:
            data = b""
            while size := int(self.rfile.readline().split(b";")[0], 16):
                data += self.rfile.read(size)
                self.rfile.readline()
            self.rfile.readline()
            return data

        def answer(self, status: int, data: bytes, headers: dict[str, str]) -> None:
            self.send_response(status)
            for name, value in headers.items():
                if name.lower() not in ("content-length", "connection", "transfer-encoding"):
                    self.send_header(name, value)
            size = headers.get("Content-Length", "0") if self.command == "HEAD" else len(data)
            self.send_header("Content-Length", str(size))
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(data)

        do_GET = do_PUT = do_POST = do_DELETE = do_HEAD = handle_one

    proxy = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=proxy.serve_forever, daemon=True).start()
    return proxy


@pytest.fixture
def faults(server: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Faults]:
    """No faults yet; all requests of this test go through them."""
    faults = Faults(random.Random(0))
    proxy = proxy_of(server, faults)
    for name, value in {
        "AWS_ENDPOINT_URL": f"http://127.0.0.1:{proxy.server_port}",
        "AWS_ACCESS_KEY_ID": "key",
        "AWS_SECRET_ACCESS_KEY": "secret",
        "AWS_REGION": "us-east-1",
        "ECHOSCOPE_CACHE": str(tmp_path / "cache"),
    }.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(pulling, "EVERY_S", 0.0)
    monkeypatch.setattr(bucket, "_PAUSES_S", (0.05,) * 8)
    yield faults
    proxy.shutdown()
    proxy.server_close()


@pytest.fixture
def url(server: str, faults: Faults, tmp_path: Path) -> str:
    """A root in a bucket of its own."""
    name = re.sub("[^a-z0-9]", "", tmp_path.name.lower())
    urlopen(Request(f"http://{server}/{name}", method="PUT"), timeout=10).close()
    return f"s3://{name}/team/runs"


def test_a_run_is_copied_while_it_is_written_through_all_that_goes_wrong(
    tmp_path: Path, url: str, faults: Faults, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever reads meanwhile sees steps in their order and nothing that is damaged."""
    monkeypatch.setattr(pushing, "EVERY_S", 0.05)
    faults.overloaded, faults.torn, faults.slow = 0.15, 0.1, 0.05
    path = tmp_path / "runs" / "a"
    writer = open_writer(path, rotate_every=5)
    add_steps(writer, "a", range(1))
    messages: list[str] = []
    copier = Copier(path, url, messages.append)
    seen: list[int] = []
    for step in range(1, 25):
        add_steps(writer, "a", range(step, step + 1))
        if step % 4 == 0:
            try:
                far = open_run(f"{url}/a")
            except (BucketError, NotARunError):  # too much went wrong, or nothing is there yet
                continue
            last = far.info().last_step
            steps = [row["step"] for row in far.sql("SELECT step FROM steps").to_pylist()]
            assert sorted(steps) == list(range(len(steps)))
            assert len(steps) > last
            assert far.warnings == []
            seen.append(last)
    writer.close(status="finished")
    copier.close()
    assert seen == sorted(seen)
    assert_equal_runs(path, f"{url}/a")
    assert verify(local_folder(f"{url}/a")).problems == ()
    assert faults.num_overloaded > 5
    assert faults.num_torn > 2


def test_a_server_that_only_refuses_is_named(
    tmp_path: Path, url: str, faults: Faults, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bucket, "_PAUSES_S", (0.01,))
    faults.overloaded = 1.0
    with pytest.raises(BucketError, match=r"SLOW_DOWN|503"):
        Pushing(make_run(tmp_path / "runs" / "a", 1), url).push()


def test_a_bucket_that_does_not_exist_is_not_asked_twice(
    tmp_path: Path, url: str, faults: Faults, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bucket, "_PAUSES_S", (100.0,))
    with pytest.raises(BucketError, match="The specified bucket does not exist"):
        Pushing(make_run(tmp_path / "runs" / "a", 1), "s3://nowhere/runs").push()


def test_old_listings_hide_new_runs_for_a_while_and_break_nothing(
    tmp_path: Path, url: str, faults: Faults
) -> None:
    Pushing(make_run(tmp_path / "runs" / "a", 2), url).push()
    folder = local_folder(url)
    faults.old_listings = True
    later = Pushing(make_run(tmp_path / "runs" / "b", 2), url)
    later.push()
    root = RemoteRoot.of(folder)
    assert root is not None
    root.follow()
    assert [row.run_id for row in RunList(folder).rows()] == ["a"]
    assert open_run(f"{url}/b").info().last_step == 1, "by its name it is there at once"
    faults.old_listings = False
    root.follow()
    assert {row.run_id for row in RunList(folder).rows()} == {"a", "b"}
    assert faults.num_old > 0


def test_a_checkpoint_of_many_parts_comes_home(tmp_path: Path, url: str, faults: Faults) -> None:
    """Larger than what goes in one request."""
    faults.overloaded = 0.1
    path = make_run(tmp_path / "runs" / "a", 2, status="stopped")
    folder = checkpoint_path(path, 1)
    folder.mkdir(parents=True)
    weights = random.Random(1).randbytes(23_000_000)
    (folder / "model.safetensors").write_bytes(weights)
    (folder / "state.json").write_text("{}")
    write_checkpoint_manifest(folder, step=1, run_id="a")
    Pushing(path, url, takes_checkpoints=True).push()
    home = bring_home(f"{url}/a", tmp_path / "home", lambda done, of: None)
    assert (checkpoint_path(home, 1) / "model.safetensors").read_bytes() == weights
    assert verify(home).problems == ()


def test_an_address_may_name_its_server(
    tmp_path: Path, url: str, server: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("AWS_ENDPOINT_URL")
    address = f"{url}?endpoint_override={server}&scheme=http"
    Pushing(make_run(tmp_path / "runs" / "a", 1), address).push()
    assert set(Bucket(address).names(".runs")) == {"a.json"}
    root, _, query = address.partition("?")
    assert open_run(f"{root}/a?{query}").info().last_step == 0
