"""The frame of a report: HTML and style, no script. Nothing in it comes from a run."""

from __future__ import annotations

POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"
"""No request may leave the page and no script runs in it, whatever stands in it."""

STYLE = """
:root{color-scheme:light dark;--ink:light-dark(#1d232b,#e8ebf0);--paper:light-dark(#fff,#14181f);
--line:light-dark(#d9dce1,#3a414c)}
body{font:15px/1.55 system-ui,sans-serif;color:var(--ink);background:var(--paper);
max-width:1320px;margin:0 auto;padding:1.5rem}
h1{margin:0;font-size:1.7rem;overflow-wrap:anywhere}h2{margin:2.2rem 0 .6rem;font-size:1.25rem}
h3{margin:0 0 .2rem;font-size:1rem}
figure{margin:0;min-width:0}figcaption{font-size:.88rem;opacity:.75}
@media(max-width:640px){body{padding:1rem}}
.grid{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(340px,100%),1fr));gap:1.2rem}
.picture{display:block;width:100%;height:auto;max-width:620px;font-size:11px}
.picture text{fill:currentColor}.picture .title{font-size:13px;font-weight:600}
.picture .unit{font-size:11px;font-weight:400;opacity:.75}.es-facts .es-badge{white-space:normal}
.picture .line{stroke-linejoin:round}
body>details{border:1px solid var(--line);border-radius:.5rem;padding:.6rem 1rem;margin:.8rem 0}
body>details>summary{cursor:pointer;font-weight:600}
.es-talk.es-talk{height:auto;max-height:none;min-height:0}
"""

PAGE = (
    '<!doctype html><html lang="en"><head><meta charset="utf-8">'
    '<meta name="viewport" content="width=device-width, initial-scale=1">'
    f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">'
    '<meta name="referrer" content="no-referrer"><title>{title}</title>'
    "<style>{style}</style>{styles}</head><body>{head}{body}</body></html>"
)
