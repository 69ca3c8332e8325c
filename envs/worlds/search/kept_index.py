"""Indexes of large corpora on disk, so that the next process does not build them again.

An index lies in a folder of its own, named by a hash of the texts, under `search` in the user's
cache folder (`$ECHOSCOPE_CACHE`). It can be deleted at any time.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import tempfile
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from echoscope.text.cache_folder import cache_folder

if TYPE_CHECKING:  # an optional package
    import bm25s


def index_folder(texts: Sequence[str], *settings: object) -> Path:
    """Where the index of these texts is kept, built with these settings; it need not exist."""
    digest = hashlib.blake2b(repr(settings).encode(), digest_size=16)
    for text in texts:
        content = text.encode("utf-8", "surrogatepass")
        digest.update(len(content).to_bytes(8, "little"))
        digest.update(content)
    return cache_folder() / "search" / digest.hexdigest()


def load_index(folder: Path, num_texts: int) -> bm25s.BM25 | None:
    """The index of a folder, mapped into memory; None where there is none, or a damaged one."""
    import bm25s

    try:
        index = bm25s.BM25.load(folder, mmap=True, show_progress=False)
        parts = index.scores
        is_whole = parts["num_docs"] == num_texts and len(parts["data"]) == len(parts["indices"])
        is_whole = is_whole and len(parts["data"]) == parts["indptr"][-1]
        return index if is_whole and max(index.vocab_dict.values()) < len(parts["indptr"]) else None
    except (OSError, ValueError, KeyError, TypeError, EOFError, IndexError):
        return None


def keep_index(index: bm25s.BM25, folder: Path) -> None:
    """Write an index, all or nothing; a disk that takes none is a warning."""
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".new-", dir=folder.parent) as made:
            whole = Path(made) / "index"
            index.save(whole, show_progress=False)
            shutil.rmtree(folder, ignore_errors=True)  # a damaged one
            os.replace(whole, folder)
    except OSError as error:
        warnings.warn(
            f"the search index is not kept at {folder.parent}: {error}. Set ECHOSCOPE_CACHE to a "
            "folder with room for it, or it is built again in every process",
            stacklevel=2,
        )
