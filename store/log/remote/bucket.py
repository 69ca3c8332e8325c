"""A folder on object storage: whole objects, written, listed, read and removed by name.

The file systems are pyarrow's: S3 and what speaks its protocol, Google Cloud Storage, Azure. What
fails on the way is tried again; what cannot succeed is said at once.
"""

from __future__ import annotations

import os
import re
import shutil
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property, wraps
from pathlib import Path
from typing import Any, Concatenate, ParamSpec, TypeVar
from urllib.parse import parse_qsl, urlsplit

import pyarrow as pa

from ...errors import StoreError
from ..durable import new_id

_ADDRESS = re.compile(r"(s3|gs|gcs|abfss?|file):/+(\S.*)")
_PAUSES_S = (0.2, 0.5, 1.0, 2.0, 4.0)
"""Before each further attempt; the libraries below have made some of their own by then."""
_FOR_GOOD = re.compile(
    r"ACCESS_DENIED|NO_SUCH_BUCKET|INVALID_ACCESS_KEY|SIGNATURE_DOES_NOT_MATCH|INVALID_TOKEN"
    r"|Permission|Unauthor|Forbidden|HTTP status 40[13]"
)
_ANSWER = re.compile(
    r"AWS Error (\w+(?: \(HTTP status \d+\))?) during \w+ operation: ?"
    r"(.*?)(?: \(Request ID|; Details|$)"
)
_COPY_BYTES = 4_000_000
_CONNECT_S, _REQUEST_S = 5, 60


class BucketError(StoreError):
    """The object storage does not answer, or refuses; what was under way may be tried later."""


def remote_address(path: str | Path) -> str | None:
    """The address on object storage that a text says, or a path that was made of it.

    >>> remote_address(Path("s3://team/runs")), remote_address("runs/s3")
    ('s3://team/runs', None)
    """
    match = _ADDRESS.fullmatch(str(path).rstrip("/"))
    slashes = "///" if match and match[1] == "file" else "//"
    return f"{match[1]}:{slashes}{match[2]}" if match else None


_P = ParamSpec("_P")
_T = TypeVar("_T")


def _patiently(
    work: Callable[Concatenate[Bucket, str, _P], _T],
) -> Callable[Concatenate[Bucket, str, _P], _T]:
    """Work on an object of a bucket that is tried again where it fails on the way."""

    @wraps(work)
    def patient_work(bucket: Bucket, name: str, /, *args: _P.args, **kwargs: _P.kwargs) -> _T:
        for pause_s in (*_PAUSES_S, None):
            try:
                return work(bucket, name, *args, **kwargs)
            except (FileNotFoundError, BucketError):
                raise
            except (OSError, pa.ArrowException) as error:
                if pause_s is None or _FOR_GOOD.search(str(error)):
                    raise BucketError(f"{bucket.url}/{name}: {_line(error)}") from error
                time.sleep(pause_s)
        raise AssertionError("unreachable")

    return patient_work


@dataclass(frozen=True)
class Bucket:
    """A folder on object storage.

    Args:
        url: such as `s3://team/runs`, or `file:///mnt/shared/runs` for a disk of many machines. A
            server other than Amazon's comes from the environment variable AWS_ENDPOINT_URL, or from
            the address: `?endpoint_override=127.0.0.1:9000&scheme=http`. Keys come from where
            Amazon's own tools take them.
    """

    url: str

    def within(self, name: str) -> Bucket:
        """The folder of that name in this one."""
        address, question, query = self.url.partition("?")
        return Bucket(f"{address}/{name}{question}{query}")

    def parent(self) -> tuple[Bucket, str]:
        """The folder around this one, and the name of this one in it."""
        address, question, query = self.url.partition("?")
        above, _, name = address.rpartition("/")
        return Bucket(f"{above}{question}{query}"), name

    @cached_property
    def _at(self) -> tuple[Any, str]:
        """The file system, and where this folder is in it."""
        from pyarrow import fs

        try:
            parts = urlsplit(self.url)
            if parts.scheme != "s3":
                files, folder = fs.FileSystem.from_uri(self.url)
                return files, folder
            s3 = s3_place(self.url)
            if s3["region"] is None and s3["endpoint_override"] is None:
                s3["region"] = fs.resolve_s3_region(parts.netloc)
            files = fs.S3FileSystem(
                **s3,
                connect_timeout=_CONNECT_S,
                request_timeout=_REQUEST_S,
                allow_delayed_open=True,  # one request for an object of a few MB, not three
                background_writes=False,
            )
        except (ValueError, OSError, pa.ArrowException) as error:
            raise BucketError(f"{self.url}: {_line(error)}") from error
        return files, f"{parts.netloc}{parts.path}".rstrip("/")

    def put(self, name: str, content: bytes | Path) -> None:
        """Write an object; whoever reads it sees all of it or none.

        Raises:
            FileNotFoundError: the file to be written is gone.
            BucketError: not now, or never.
        """
        if isinstance(content, Path):
            content.stat()
        is_disk = self.url.startswith("file:")  # where half a file is seen, and folders are made
        self._write(name, content, f"{name}.{new_id()}.tmp" if is_disk else name)

    @_patiently
    def _write(self, name: str, content: bytes | Path, temporary: str) -> None:
        files, folder = self._at
        path, target = f"{folder}/{name}", f"{folder}/{temporary}"
        is_disk = path != target
        if is_disk:
            files.create_dir(path.rpartition("/")[0])
        with files.open_output_stream(target, compression=None) as stream:
            if isinstance(content, bytes):
                stream.write(content)
            else:
                with content.open("rb") as file:
                    shutil.copyfileobj(file, stream, _COPY_BYTES)
        if is_disk:
            files.move(target, path)

    @_patiently
    def get(self, name: str) -> bytes:
        """The content of an object.

        Raises:
            FileNotFoundError: there is none.
            BucketError: not now, or never.
        """
        files, folder = self._at
        with files.open_input_stream(f"{folder}/{name}", compression=None) as stream:
            return bytes(stream.read())

    @_patiently
    def download(self, name: str, target: Path) -> None:
        """Write the content of an object into a file; raises as `get`."""
        files, folder = self._at
        with (
            files.open_input_stream(f"{folder}/{name}", compression=None) as stream,
            target.open("wb") as file,
        ):
            shutil.copyfileobj(stream, file, _COPY_BYTES)

    @_patiently
    def names(self, folder: str, *, is_deep: bool = False) -> dict[str, tuple[int, float]]:
        """Objects of a folder by name within it, each with its bytes and the time of its writing.

        Args:
            is_deep: those of folders in it, too.
        """
        from pyarrow import fs

        files, root = self._at
        base = f"{root}/{folder}".rstrip("/")
        selector = fs.FileSelector(base, recursive=is_deep, allow_not_found=True)
        return {
            info.path[len(base) + 1 :]: (info.size or 0, info.mtime_ns / 1e9)
            for info in files.get_file_info(selector)
            if info.type == fs.FileType.File
        }

    @_patiently
    def delete(self, name: str) -> None:
        """Remove an object, if it is there."""
        files, folder = self._at
        with suppress(FileNotFoundError):
            files.delete_file(f"{folder}/{name}")


def s3_place(url: str) -> dict[str, str | None]:
    """The endpoint, scheme and region of an address, from its query or the environment."""
    query = dict(parse_qsl(urlsplit(url).query))
    environ = os.environ
    return {
        "endpoint_override": query.get("endpoint_override") or environ.get("AWS_ENDPOINT_URL"),
        "scheme": query.get("scheme"),
        "region": query.get("region")
        or environ.get("AWS_REGION")
        or environ.get("AWS_DEFAULT_REGION"),
    }


def _line(error: BaseException) -> str:
    """What the storage says, without the request that it was said to."""
    text = " ".join(str(error).split())
    match = _ANSWER.search(text)
    return f"{match[2].rstrip('.') or 'not now'} ({match[1]})" if match else text[:300]
