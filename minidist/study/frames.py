"""Pages to touch: HTML that needs nothing else, shown in a notebook within a frame, with a still picture for want of it.

    ╭─ <iframe sandbox srcdoc> ───────╮    The page (data, drawing, style) loads nothing: it works offline, in
    │ a page, packed                  │    JupyterLab, without a kernel, and in what nbconvert or Sphinx make of a
    │ ╭─ <img alt> ─────────────────╮ │    notebook. The frame keeps page and notebook from disturbing each other.
    │ │ the still picture           │ │    Where a notebook is not trusted, the frame is taken away and the picture
    │ ╰─────────────────────────────╯ │    inside of it stays, with its twin in words as the alternative text.
    ╰─────────────────────────────────╯

In a notebook the page is packed (deflate, base64), which a line of JavaScript undoes: most pages are more script than
data, and each output must have its own copy, because frames of an untrusted origin share nothing. The same data gives
the same bytes each time.
"""

from __future__ import annotations

import base64
import json
import zlib
from collections.abc import Sequence
from functools import cached_property
from html import escape
from pathlib import Path
from string import Template
from typing import Any

from minidist.study.picture import CARD, EDGE, FAINT, INK, MUTED, WAIT, Picture, ending

PAGE = Path(__file__).parent / "page"
LIGHT = {
    "card": CARD,
    "edge": EDGE,
    "ink": INK,
    "muted": MUTED,
    "faint": FAINT,
    "wait": WAIT,
    "mark": "#B84A00",
}
DARK = {
    "card": "#1B1E23",
    "edge": "#3D424B",
    "ink": "#EDEBE5",
    "muted": "#A6ACB6",
    "faint": "#2C3037",
    "wait": "#4A4F58",
    "mark": "#FF8A3D",
}
"""The card of a page that follows the reader's choice of light or dark; the hues stay."""

POLICY = (
    '<meta http-equiv="Content-Security-Policy" '
    "content=\"default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'\">"
)
UNPACK = """<script>
new Response(new Blob([Uint8Array.from(atob("{packed}"), (c) => c.charCodeAt())]).stream()
  .pipeThrough(new DecompressionStream("deflate"))).text()
  .then((page) => {{ document.open(); document.write(page); document.close(); }});
</script>"""


class Framed:
    """What a notebook shows as a page: `page` (HTML), `picture` (the still one), `text`, `save(path)`.

    A subclass says what its `page`, `picture` and `heights` are: CSS pixels of the page in a notebook, on a
    narrow screen and on one of 1,100 and more.
    """

    title: str
    heights: tuple[int, int]

    @cached_property
    def page(self) -> str:
        """The whole page: an HTML document that needs nothing else."""
        raise NotImplementedError

    @cached_property
    def picture(self) -> Picture:
        """The same, drawn once and still."""
        raise NotImplementedError

    @property
    def text(self) -> str:
        """The same in words and numbers."""
        return self.picture.text

    def save(self, path: str | Path) -> None:
        """Write the page to `path`, which must end in .html (ValueError)."""
        Path(ending(path, ".html")).write_text(self.page, encoding="utf-8", newline="\n")

    def __repr__(self) -> str:
        return self.text

    def _repr_html_(self) -> str:
        tall, low = self.heights
        height = f"clamp({low}px,(1100px - 100vw)*999,{tall}px)"
        size = f"width:100%;height:{height};border:0"
        page = packed(self.page).replace("&", "&amp;").replace("'", "&#39;")
        return (
            f'<iframe title="{escape(self.title)}" sandbox="allow-scripts" style="{size}" srcdoc=\'{page}\'>'
            f"{self.picture._repr_html_()}</iframe>"
        )


def packed(page: str) -> str:
    """A page that unpacks `page` and becomes it."""
    data = base64.b64encode(zlib.compress(page.encode(), 9)).decode()
    return f'<!DOCTYPE html><meta charset="utf-8">{POLICY}{UNPACK.format(packed=data)}'


def document(
    name: str, scripts: Sequence[str], data: Any, *, title: str, summary: str, limits: str = ""
) -> str:
    """The page `name`.html of the folder `page`, with its styles and `scripts`, and `data` as the JSON `run`.

    summary: what is read out instead of the picture.  limits: HTML that says what is left out.
    """
    light, dark = (
        "".join(f"--{key}:{color};" for key, color in theme.items()) for theme in (LIGHT, DARK)
    )
    css = f":root{{color-scheme:light dark;{light}}}\n"
    css += f"@media (prefers-color-scheme:dark){{:root{{{dark}}}}}\n"
    own = PAGE / f"{name}.css"
    css += read("page.css") + (read(own.name) if own.exists() else "")
    # as JSON without spaces, safe inside a <script> element
    run = json.dumps(data, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    return Template(read(f"{name}.html")).substitute(
        policy=POLICY,
        title=escape(title),
        summary=escape(summary),
        css=css,
        run=run.replace("<", "\\u003c"),
        limits=limits,
        scripts="\n".join(f"<script>\n{read(script)}</script>" for script in scripts),
    )


def read(name: str) -> str:
    """A file of the folder `page`."""
    return (PAGE / name).read_text(encoding="utf-8")
