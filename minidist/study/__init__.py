"""Pictures and tables for notebooks, and the library's own code shown in a lesson.

    holdings   what each rank holds, step by step        messages   arrows between ranks in time
    timeline   who did what and when                     traffic    bytes from each rank to each
    curves     predicted lines and measured points       bars       a few numbers, labelled
    table      rows and columns                          source     the code of a function or class
    viewer     a run to zoom into, point at and search   cluster    racks, nodes, devices and their wires
    tree       one or two trees of ranks                 published  figures of the literature
    mesh       a mesh of ranks on its cluster            axis_bytes what each of its axes sends over which links
    boxes      who holds which part of a matrix
    predict    what a run takes: memory, FLOPs, cost      measure    FLOPs, bytes and memory of a function
    allocator  a simulated caching allocator
    memory_timeline   live memory by category, over time     schedule   a pipeline's actions, stage by stage
    exponents  what half precision holds of numbers
    stages     when a pipeline's stages worked, from a run     stacked    bars made of parts
    roofline, roof   what bounds operators, as a table and as a picture        bound     of one

This package presents: it may import everything, and nothing else in minidist imports it. In a notebook, importing it
starts the server of `launch` in the background: what takes seconds is over when a lesson comes to its first processes.
"""

from minidist.comm.launch import prepare
from minidist.study import allocator, line, predict
from minidist.study.arrows import messages
from minidist.study.boxes import boxes
from minidist.study.chunks import holdings
from minidist.study.exponents import exponents
from minidist.study.gantt import timeline
from minidist.study.memory_plot import memory_timeline
from minidist.study.mesh import axis_bytes, mesh
from minidist.study.meter import Profile, measure
from minidist.study.picture import Picture
from minidist.study.plot import bars, curves, traffic
from minidist.study.published import published
from minidist.study.roofline import bound, roof, roofline
from minidist.study.schedule import schedule
from minidist.study.source import source
from minidist.study.stacked import stacked
from minidist.study.stages import stages
from minidist.study.tables import table
from minidist.study.topology import cluster
from minidist.study.trees import tree
from minidist.study.viewer import Viewer, viewer

__all__ = [
    "Picture",
    "Profile",
    "Viewer",
    "axis_bytes",
    "bars",
    "bound",
    "boxes",
    "cluster",
    "curves",
    "exponents",
    "holdings",
    "line",
    "measure",
    "allocator",
    "predict",
    "memory_timeline",
    "mesh",
    "messages",
    "published",
    "roof",
    "roofline",
    "schedule",
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
