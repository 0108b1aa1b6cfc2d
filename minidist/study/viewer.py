"""A run to look into: its timeline on a page of its own, to zoom, point at, click and search.

The page holds everything (data, drawing, style) and loads nothing: it works offline, in JupyterLab, and
in what nbconvert or Sphinx make of a notebook. In a notebook it lives in an <iframe srcdoc>, so that
neither can disturb the other. Where a notebook is not trusted, the frame is taken away and the static
picture inside it stays. The same run gives the same bytes each time.
"""

from __future__ import annotations

import base64
from collections.abc import Sequence
from functools import cached_property
from html import escape
from pathlib import Path
from string import Template

from minidist.comm.trace import Results, Trace
from minidist.study import line
from minidist.study.areas import highest
from minidist.study.columns import Part, columns, memory_columns, part, text
from minidist.study.gantt import MOST_ARROWS, Chart, picture
from minidist.study.picture import Picture
from minidist.study.rows import bars_of, kinds_of, rows_of

PAGE = Path(__file__).parent / "page"
SCRIPTS = ("data.js", "paint.js", "memory.js", "act.js")
# CSS pixels: of a rank, of a lane under it, of all rows at least and at most
ROW = 52
LANE = 34
LOW = 170
HIGH = 560
AROUND, MEMORY = 150, 180  # what is above and below the rows; memory where there is some


def viewer(
    run: Results | Trace,
    *,
    title: str = "Timeline",
    ranks: Sequence[int] | None = None,
    between: tuple[float, float] | None = None,
    most: int = 20_000,
) -> Viewer:
    """Look into a run: who computed, waited, sent and received, when, and what memory held meanwhile.

    run: what `World.run` or `launch` returned, or its trace. ranks: only these, in this order. between: only
    what happens between these two times, in seconds. most: at most so many messages, and so many spans;
    whatever is left out is said above the picture.
    Errors: ValueError for an unknown rank, an empty trace, a run that takes no time.
    """
    trace = run.trace if isinstance(run, Results) else run
    return Viewer(trace, part(trace, ranks, between, most), title)


class Viewer:
    """A page to look into a run: `page` (HTML), `picture` (the static one), `text`, `save(path)`."""

    def __init__(self, trace: Trace, shown: Part, title: str):
        self._shown, self._title = shown, title
        self._memory = {r: line for r, line in trace.memory.items() if len(line.times)}
        spans, sends = (
            {s.kind for s in shown.spans},
            {"send", "receive"} if shown.messages else set(),
        )
        self._kinds = kinds_of(spans | sends)

    @cached_property
    def picture(self) -> Picture:
        """The same, drawn once and still."""
        shown = self._shown
        bars = bars_of(shown.messages, shown.spans, set(shown.ranks))
        rank = highest(self._memory, shown.ranks)
        arrows = shown.messages if len(shown.messages) <= MOST_ARROWS else []
        limits = list(shown.limits)
        if not arrows and shown.messages:
            limits.append(
                f"no arrows: {len(shown.messages):,} messages, and {MOST_ARROWS} can be told apart"
            )
        memory = None if rank is None else (rank, self._memory[rank])
        chart = Chart(bars, shown.ranks, rows_of(bars, shown.ranks), arrows, memory)
        return picture(self._title, {"": chart}, shown.start, shown.end, limits)

    @property
    def text(self) -> str:
        return self.picture.text

    @cached_property
    def _data(self) -> tuple[dict, list[str]]:
        shown = self._shown
        run = columns(shown, self._kinds, line.ink_on)
        memory, said = memory_columns(self._memory, shown, run["tick"])
        return run | {"memory": memory}, shown.limits + said

    @cached_property
    def page(self) -> str:
        """The whole page: an HTML document that needs nothing else."""
        run, limits = self._data
        theme = (
            "".join(f"--{name}:{color};" for name, color in colors.items())
            for colors in (line.LIGHT, line.DARK)
        )
        css = ":root{{color-scheme:light dark;{}}}\n@media (prefers-color-scheme:dark){{:root{{{}}}}}\n".format(
            *theme
        )
        counts = f"{len(run['ranks'])} ranks, {run['messages']['count']:,} messages, {run['spans']['count']:,} spans"
        about = f"{self._title}: {counts}. Plus and minus zoom, arrows move, n and p go through the messages."
        return Template((PAGE / "page.html").read_text(encoding="utf-8")).substitute(
            title=escape(self._title or "Timeline"),
            label=escape(about),
            summary=escape(self.text),
            css=css + (PAGE / "page.css").read_text(encoding="utf-8"),
            run=text(run),
            limits="".join(
                f'<p class="limits" role="note">Shown: {escape(words)}</p>\n' for words in limits
            ),
            scripts="\n".join(
                f"<script>\n{(PAGE / s).read_text(encoding='utf-8')}</script>" for s in SCRIPTS
            ),
        )

    @property
    def height(self) -> int:
        """CSS pixels of the page in a notebook."""
        rows, limits = self._data[0]["rows"], self._data[1]
        tall = sum(LANE if lane else ROW for _, lane in rows)
        memory = MEMORY * (self._data[0]["memory"] is not None)
        return AROUND + min(HIGH, max(LOW, tall)) + memory + 26 * len(limits)

    def save(self, path: str | Path) -> None:
        """Write the page to `path`, which must end in .html (ValueError)."""
        if Path(path).suffix.lower() != ".html":
            raise ValueError(
                f"a page is saved as .html, not as {Path(path).suffix or 'a name without ending'!r}"
            )
        Path(path).write_text(self.page, encoding="utf-8", newline="\n")

    def __repr__(self) -> str:
        return self.text

    def _repr_html_(self) -> str:
        still = base64.b64encode(self.picture.png).decode()
        size = f"width:100%;height:{self.height}px;border:0"
        page = self.page.replace("&", "&amp;").replace("'", "&#39;")
        return (
            f'<iframe title="{escape(self._title)}" sandbox="allow-scripts" style="{size}" srcdoc=\'{page}\'>'
            f'<img alt="{escape(self.text)}" width="{self.picture.width}" src="data:image/png;base64,{still}"></iframe>'
        )

    def _repr_png_(self) -> bytes:
        return self.picture.png

    def _repr_mimebundle_(self, include=None, exclude=None) -> tuple[dict, dict]:
        data, metadata = self.picture._repr_mimebundle_()
        return data | {"text/html": self._repr_html_()}, metadata
