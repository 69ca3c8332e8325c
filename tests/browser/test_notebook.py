"""Cards of a notebook in a real Chromium: readable in light and dark; hostile text does nothing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from made_run import make_run, make_trajectory, step_metrics

from echoscope import Run
from echoscope.store.records import Turn
from echoscope.store.writer import RunWriter

pytestmark = pytest.mark.browser

HOSTILE = "<script>window.hit=1</script><img src=x onerror='window.hit=1'>\x1b[31m\" onclick=x"
PAGE = (
    '<!doctype html><html><head><meta charset="utf-8"></head>'
    '<body data-jp-theme-light="{is_light}" style="background:{paper};color:{ink}">{body}</body>'
    "</html>"
)
THEMES = {"true": ("#ffffff", "#1f1f1f"), "false": ("#111111", "#f0f0f0")}
CONTRAST = """
(cards) => {
  const light = c => {
    const f = c.map(v => v / 255).map(v => v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4);
    return 0.2126 * f[0] + 0.7152 * f[1] + 0.0722 * f[2];
  };
  const channels = text => {
    const found = text.match(/[\\d.]+/g).map(Number);
    const scale = text.startsWith("color(srgb") ? 255 : 1;
    const [r, g, b, a] = [found[0] * scale, found[1] * scale, found[2] * scale, found[3] ?? 1];
    return [r, g, b, a];
  };
  const over = (top, below) => [0, 1, 2].map(i => top[i] * top[3] + below[i] * (1 - top[3]));
  const papers = e => {
    const chain = [];
    for (let at = e; at; at = at.parentElement) chain.unshift(at);
    let paper = [255, 255, 255], opacity = 1;
    for (const at of chain) {
      const style = getComputedStyle(at);
      paper = over(channels(style.backgroundColor), paper);
      opacity *= Number(style.opacity);
    }
    return [paper, opacity];
  };
  const out = [];
  for (const card of cards) for (const e of card.querySelectorAll("*")) {
    const own = [...e.childNodes].some(n => n.nodeType === 3 && n.textContent.trim());
    if (!own || !e.checkVisibility() || e.closest("svg")) continue;
    const [paper, opacity] = papers(e);
    const ink = channels(getComputedStyle(e).color);
    const shown = over([...ink.slice(0, 3), ink[3] * opacity], paper);
    const [a, b] = [light(shown), light(paper)].sort((x, y) => y - x);
    out.push([(a + 0.05) / (b + 0.05), e.className + ": " + e.textContent.slice(0, 40)]);
  }
  return out;
}
"""
"""Contrast of each text with what is behind it, by the formula of WCAG 2."""
LEAST = 4.5


@pytest.fixture(scope="module")
def cards(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A run that collapsed, its verdict, and an episode, all with hostile texts."""
    folder = tmp_path_factory.mktemp("runs")
    writer = RunWriter.create(
        folder / "bad",
        run_id="bad",
        config={"imported": {"trainer": HOSTILE}},
        base_model=HOSTILE,
        is_packing=False,
    )
    turn = Turn(index=0, observation=HOSTILE, response=HOSTILE, actions=(HOSTILE,), reward=0.5)
    for step in range(60):
        values = {"rollout/success_rate": 0.6 if step < 40 else 0.1}
        values["rollout/action_valid_frac"] = 0.95 if step < 40 else 0.2
        writer.commit_step(
            metrics=[step_metrics("bad", step, values)],
            trajectories=[make_trajectory(turn, step=step, tag=HOSTILE, is_success=False)],
            outcomes=[],
        )
    writer.close(status="finished")
    make_run(folder / "good", 9)
    run = Run(folder / "bad")
    drawn = [run, run.diagnose(), run.episode("t00000059-00000"), Run(folder / "good")]
    return "".join(card._repr_html_() for card in drawn)


@pytest.mark.parametrize("is_light", ["true", "false"])
def test_cards_are_readable_and_hostile_text_does_nothing(
    browser: Any, cards: str, is_light: str, tmp_path: Path
) -> None:
    paper, ink = THEMES[is_light]
    file = tmp_path / "cards.html"
    body = PAGE.format(is_light=is_light, paper=paper, ink=ink, body=cards)
    file.write_text(body, encoding="utf-8", errors="surrogatepass")
    page = browser.new_page(viewport={"width": 1000, "height": 800})
    page.goto(file.as_uri())
    contrasts = page.locator(".es-nb").evaluate_all(CONTRAST)
    assert len(contrasts) > 60
    too_faint = [(round(ratio, 2), text) for ratio, text in contrasts if ratio < LEAST]
    assert too_faint == []
    assert page.evaluate("window.hit") is None
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    page.close()
