"""docs/pictures/worlds.png: one frame of every installed world, drawn as the page Replay draws it.

    python benchmarks/world_pictures.py [--out docs/pictures/worlds.png] [--dark]

Seed 0, after half of the expert's actions (random legal ones where there is no expert).
"""

from __future__ import annotations

import io
import sys
from html import escape
from pathlib import Path
from typing import Any

from common import read_options
from outside_parts import CAPTIONS, outside_parts
from PIL import Image

from echoscope.dashboard.replay.boards import board_html
from echoscope.envs import registry
from echoscope.envs.base import EnvError
from echoscope.envs.checks.episodes import typical_actions

HOME = Path(__file__).parents[1]
sys.path.insert(0, str(HOME / "tests" / "shared"))

from browsing import find_chromium  # noqa: E402

PICTURE = HOME / "docs" / "pictures" / "worlds.png"
COLOURS = 256
WIDTH = 1240
STYLE = """
body{margin:0;padding:14px;columns:4;column-gap:14px;font:14px system-ui,sans-serif;
background:#fff;color:#1d232b}
figure{margin:0 0 14px;padding:8px;border:1px solid #b9bec6;border-radius:6px;break-inside:avoid}
figcaption{font-weight:600;margin-bottom:6px}
@media (prefers-color-scheme:dark){body{background:#14181f;color:#e8ebf0}}
"""


def frame_of(env_id: str, params: dict[str, Any]) -> str | None:
    """A state in the middle of an episode; the last one where an episode is a single action."""
    env = registry.make(env_id, **params)
    frame = env.reset(0, 0).frame
    actions = typical_actions(env, 0)
    for action in actions[: max(1, len(actions) // 2)]:
        result = env.step(action)
        frame = result.observation.frame or frame
        if result.terminated:
            break
    env.close()
    return frame


def contact_sheet() -> str:
    """All worlds as one page of HTML; without a server, as the drawings need none."""
    figures = []
    with outside_parts() as params:
        missing = registry.unavailable()
        for env_id in registry.BUILTIN:
            try:
                is_missing = env_id in missing and env_id not in params
                frame = None if is_missing else frame_of(env_id, params.get(env_id, {}))
            except EnvError as error:
                print(f"{env_id}: {error}")
                continue
            if frame is None:
                print(f"{env_id}: {missing.get(env_id, 'has no frame')}")
                continue
            board = board_html(frame, max_width=270)
            caption = escape(CAPTIONS.get(env_id, env_id))
            figures.append(f"<figure><figcaption>{caption}</figcaption>{board}</figure>")
    return f"<!doctype html><meta charset=utf-8><style>{STYLE}</style>{''.join(figures)}"


def main() -> None:
    from playwright.sync_api import sync_playwright

    options = read_options(__doc__, out=PICTURE, dark=(False, "as the dark theme draws them"))
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=find_chromium(), args=["--no-sandbox"])
        page = browser.new_page(
            viewport={"width": WIDTH, "height": 600},
            device_scale_factor=1.25,
            color_scheme="dark" if options.dark else "light",
        )
        page.set_content(contact_sheet(), wait_until="load")
        image = Image.open(io.BytesIO(page.screenshot(full_page=True))).convert("RGB")
        browser.close()
    image.quantize(COLOURS, dither=Image.Dither.NONE).save(options.out, optimize=True)
    print(f"{options.out}: {options.out.stat().st_size / 1000:.0f} kB")


if __name__ == "__main__":
    main()
