"""Pictures and tables for notebooks, and the library's own code shown in a lesson.

    holdings   what each rank holds, step by step        messages   arrows between ranks in time
    timeline   who did what and when                     traffic    bytes from each rank to each
    curves     predicted lines and measured points       bars       a few numbers, labelled
    table      rows and columns                          source     the code of a function or class

This package presents: it may import everything, and nothing else in minidist imports it.
"""

from minidist.study import line
from minidist.study.arrows import messages
from minidist.study.chunks import holdings
from minidist.study.gantt import timeline
from minidist.study.picture import Picture
from minidist.study.plot import bars, curves, traffic
from minidist.study.source import source
from minidist.study.tables import table

__all__ = ["Picture", "bars", "curves", "holdings", "line", "messages", "source", "table", "timeline", "traffic"]
