"""Saved views of the page Runs: a name and the parameters of an address, in a file of the root.

`.views.json` is small and can be read and edited: `{"views": {"rates": "group=seeds&sort=lr"}}`.
Whoever writes it holds a lock and replaces the whole file, so that two people who save at once lose
nothing. What stands in the file is hostile, as every file of a root is.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from urllib.parse import parse_qsl, urlencode

from echoscope.store.errors import StoreError
from echoscope.store.log.durable import changing, open_regular, replace_file
from echoscope.store.log.remote.pulling import refuse_copy_of_root

FILE = ".views.json"
PARAMS = ("filter", "sort", "group", "cols", "curve", "curves", "open")
"""What of an address a view keeps."""
MAX_VIEWS = 100
MAX_NAME = 60
MAX_QUERY = 4_000
MAX_BYTES = 1_000_000


def read_views(root: Path) -> dict[str, dict[str, str]]:
    """Name -> parameters, in the order of the names; no file is no view.

    Raises:
        StoreError: the file cannot be read or is damaged.
    """
    path = root / FILE
    try:
        with open_regular(path) as file:
            data = file.read(MAX_BYTES + 1)
    except FileNotFoundError:
        return {}
    except OSError as error:
        raise StoreError(f"{path}: {error.strerror or error}") from error
    try:
        if len(data) > MAX_BYTES:
            raise ValueError(f"more than {MAX_BYTES:,} bytes")
        entries = json.loads(data)["views"]
        views = {
            checked_name(name): _params(str(query))
            for name, query in entries.items()
            if len(str(query)) <= MAX_QUERY
        }
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError, StoreError) as error:
        raise StoreError(f"{path} holds no saved views ({error}); repair or remove it") from error
    return dict(sorted(views.items(), key=lambda item: item[0].lower()))


def save_view(root: Path, name: str, params: Mapping[str, str]) -> None:
    """Keep parameters under a name, in place of those that it has.

    Raises:
        StoreError: the name is not fit, there are too many views, or the disk refuses.
    """
    name = checked_name(name)
    saved_params = {key: value for key, value in params.items() if key in PARAMS and value}
    if len(urlencode(saved_params)) > MAX_QUERY:
        raise StoreError(f"the view {name!r} is too long to be kept; use fewer columns")

    def change(views: dict[str, dict[str, str]]) -> None:
        if name not in views and len(views) >= MAX_VIEWS:
            raise StoreError(f"there are {MAX_VIEWS} saved views already; delete one first")
        views[name] = saved_params

    _change(root, change)


def delete_view(root: Path, name: str) -> None:
    """Remove a view; one that is not there is no error."""
    _change(root, lambda views: views.pop(name, None))


def checked_name(name: str) -> str:
    """Raises StoreError where a name is not fit to be shown and typed."""
    name = name.strip()
    if not name or len(name) > MAX_NAME or not name.isprintable():
        raise StoreError(
            f"{name[:MAX_NAME]!r} is no name for a view: it takes 1 to {MAX_NAME} printable "
            "characters"
        )
    return name


def _params(query: str) -> dict[str, str]:
    return {key: value for key, value in parse_qsl(query) if key in PARAMS}


def _change(root: Path, change: Callable[[dict[str, dict[str, str]]], object]) -> None:
    refuse_copy_of_root(root)
    with changing(root / FILE):
        views = read_views(root)
        change(views)
        entries = {name: urlencode(params) for name, params in sorted(views.items())}
        text = json.dumps({"views": entries}, indent=1, ensure_ascii=False)
        replace_file(root / FILE, text.encode())
