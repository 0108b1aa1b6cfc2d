"""The run that the planner predicts: a GPT that `parallelize` splits over data × tensor × pipeline ranks of a World."""

from benchmarks.simulate import train


def program(comm, model, grid):
    """A second step of training, which all ranks begin together; returns its seconds."""
    step = train(comm, model, grid, steps=2)[-1]
    return step.end - step.start
