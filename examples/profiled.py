"""Two traces of the same steps of a run, with the same names for the same phases: ours, and PyTorch's profiler's.

    ours-rank0.json     what each phase took, and the messages between ranks as arrows
    torch-rank0.json    each operator, on the CPU and on a GPU, with the same phases above them

Both are in the Trace Event format, for ui.perfetto.dev or chrome://tracing, and begin with the first step that is
recorded. What is left out is the first step of a run: memory is allocated there, and kernels are compiled.
"""

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path

import torch
from torch.profiler import ProfilerActivity, profile, record_function

from minidist.comm import Trace

KIND = "phase"
# By the method of a pipeline or of the engine: what it is called in both traces.
OF_PIPELINE = {
    "forward": "forward",
    "backward": "backward",
    "input": "backward of inputs",
    "weight": "backward of weights",
}
OF_ENGINE = {"clip": "clip", "update": "update"}


class Profile:
    """Records `steps` steps of one rank after its first; 0: none, and nothing is written.

    with profile.step(): around each step.  profile.phase(name): around a part of it.  `watch(engine)` names the parts
    that an engine runs.  folder: where the two files go.
    """

    def __init__(self, comm, steps: int, folder: Path | None):
        self.comm = comm
        self.steps = steps
        self.folder = folder
        self.begun = 0  # steps
        self.torch = None  # its profiler, while it records
        self.trace = Trace(comm.size)
        # who notes the messages of a Comm: of one over torch.distributed, or of one over shared memory
        self.noting = getattr(comm, "run", None) or getattr(comm, "endpoint", None)

    def watch(self, engine) -> None:
        """Name the phases of an engine's steps."""
        for owner, names in ((engine.pipeline, OF_PIPELINE), (engine, OF_ENGINE)):
            for method, name in names.items() if self.steps else ():
                setattr(owner, method, self.named(getattr(owner, method), name))

    def named(self, method: Callable, name: str) -> Callable:
        def run(*args, **kwargs):
            with self.phase(name):
                return method(*args, **kwargs)

        return run

    @contextlib.contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """What runs within is called `name`, in both traces."""
        if self.torch is None:
            yield
            return
        with record_function(name):
            start = self.comm.now()
            yield
            self.trace.spans.add(self.comm.rank, "main", KIND, start, self.comm.now(), name)

    @contextlib.contextmanager
    def step(self) -> Iterator[None]:
        """One step."""
        if self.steps and self.begun == 1:
            self._start()
        with self.phase("step"):
            yield
        self.begun += 1
        if self.torch is not None and self.begun > self.steps:
            self.end()

    def _start(self) -> None:
        kinds = [ProfilerActivity.CPU]
        if torch.cuda.is_available():
            kinds.append(ProfilerActivity.CUDA)
        self.torch = profile(activities=kinds)
        self.torch.start()
        self.origin = self.comm.now()
        self.before, self.noting.trace = self.noting.trace, self.trace

    def end(self) -> None:
        """Write what has been recorded, if anything has."""
        if self.torch is None:
            return
        recorded, self.torch = self.torch, None
        self.noting.trace = self.before
        recorded.stop()
        self.folder.mkdir(parents=True, exist_ok=True)
        recorded.export_chrome_trace(str(self.folder / f"torch-rank{self.comm.rank}.json"))
        self.trace.since(self.origin)
        self.trace.to_chrome(str(self.folder / f"ours-rank{self.comm.rank}.json"))
