"""Schedules of pipelines, as data: lists of actions, written, printed, checked, simulated."""

from .action import Action, Schedule, lists, parse
from .automatic import search, zb_auto
from .error import ScheduleError
from .flushed import gpipe, naive, one_f_one_b
from .formulas import bubble, most_kept
from .grid import grid
from .interleaved import interleaved
from .memory import in_flight, kept
from .pipedream import pipedream, pipedream_2bw
from .simulate import Simulation, Span, simulate
from .validate import validate
from .versions import forward_versions, held, staleness
from .zb_v import zb_v
from .zero_bubble import zb_h1, zb_h2, zero_bubble
