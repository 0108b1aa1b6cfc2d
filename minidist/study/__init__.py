"""Pictures and tables for notebooks, and the library's own code shown in a lesson.

    holdings   what each rank holds, step by step        messages   arrows between ranks in time
    timeline   who did what and when                     traffic    bytes from each rank to each
    curves     predicted lines and measured points       bars       a few numbers; stacked: as sums of parts
    table      rows and columns                          source     the code of a function or class
    viewer     a run to zoom into, point at and search   cluster    racks, nodes, devices and their wires
    explore    sliders over a function of the lesson     memory_calculator, planner_table   two that are ready
    tree       one or two trees of ranks                 published  figures of the literature
    mesh       a mesh of ranks on its cluster            axis_bytes what each of its axes sends over which links
    boxes      who holds which part of a matrix          stages     when a pipeline's stages worked
    exponents  what half precision holds of numbers
    schedule_editor   a pipeline's schedule to change, checked at once
    reveal     a guess, and the answer folded under it
    predict    what a run takes: memory, FLOPs, cost      measure    FLOPs, bytes and memory of a function
    allocator  a simulated caching allocator
    memory_timeline   live memory by category, over time
    roofline, roof    what bounds operators, as a table and as a picture        bound     of one

This package presents: it may import everything, and nothing else in minidist imports it. In a notebook, importing it
starts the server of `launch` in the background: what takes seconds is over when a lesson comes to its first processes.
"""

from minidist.comm.launch import prepare
from minidist.study import allocator, predict
from minidist.study.calculators import memory_calculator, planner_table
from minidist.study.charts import bars, curves, memory_timeline, stacked, table
from minidist.study.diagrams import (
    axis_bytes,
    boxes,
    cluster,
    exponents,
    holdings,
    mesh,
    messages,
    traffic,
    tree,
)
from minidist.study.editor import schedule_editor
from minidist.study.explore import Explorer, explore
from minidist.study.literature import published
from minidist.study.meter import Profile, bound, measure, roof, roofline
from minidist.study.picture import Picture
from minidist.study.reveal import Reveal, reveal
from minidist.study.source import source
from minidist.study.timelines import Viewer, stages, timeline, viewer

__all__ = [
    "Explorer",
    "Picture",
    "Profile",
    "Reveal",
    "Viewer",
    "axis_bytes",
    "bars",
    "bound",
    "boxes",
    "cluster",
    "curves",
    "explore",
    "exponents",
    "holdings",
    "measure",
    "allocator",
    "predict",
    "memory_calculator",
    "memory_timeline",
    "mesh",
    "messages",
    "planner_table",
    "published",
    "reveal",
    "roof",
    "roofline",
    "schedule_editor",
    "source",
    "stacked",
    "stages",
    "table",
    "timeline",
    "traffic",
    "tree",
    "viewer",
]

prepare()
