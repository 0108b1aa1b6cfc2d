"""What a run will take before it is run: memory, time and cost of every grid, and which is best.

plan       the fastest grid that fits a model on a cluster, and why the others lose
step       seconds of a step on one grid, part by part          Planner   memory and time of one grid
errors     the planner against published runs
text, picture, memory_table, time_table, cost_table, rivals_table, errors_table   for people
"""

from minidist.study.plan.clusters import MODELS, cluster_of, jean_zay, model_of
from minidist.study.plan.kernels import DEEPSPEED, EAGER, FUSED, MEGATRON, Kernels, Passes
from minidist.study.plan.machine import ACCELERATORS, IDEAL, Accelerator, Machine
from minidist.study.plan.plan import Cost, Plan, Rival, plan
from minidist.study.plan.runs import Errors, Run, errors
from minidist.study.plan.search import Estimate, Planner, grids
from minidist.study.plan.show import (
    cost_table,
    errors_table,
    memory_table,
    picture,
    rivals_table,
    text,
    time_table,
)
from minidist.study.plan.step import Step, step
