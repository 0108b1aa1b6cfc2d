"""The weights of a stage in several versions: the newest, and every older one that a micro-batch still needs.

Autograd's graph of a micro-batch holds the weights that its forward used, and an optimizer changes weights in place.
Three ways to bring the two together, of which the last is taken:

    the parameters themselves in the graph   backward after a step: an error, "modified by an inplace operation"
    p moves to a copy before the step        nn.Linear's graph keeps the old values, by a view; LayerNorm's and a
                                             convolution's hold p, and backward reads the new values: no error
    a tensor for each version in the graph   it shares memory with p until p moves, and is not p

A version that nobody will use again is changed in place: the last stage of PipeDream never copies. Cost: versions·N
bytes for a stage of N, and N bytes copied at an update that keeps. FLOPs: none.
Invariant: the newest version is what the module holds. Source: Narayanan et al. 2019, "PipeDream", section 3.3.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping

from torch import Tensor, nn


class Versions:
    """The trained parameters of `module`, by version; version 0 is there.

    newest: number of updates so far.  most, most_bytes: the most versions held since `begin`, and their memory.
    """

    def __init__(self, module: nn.Module):
        self.module, self.newest = module, 0
        self.begin({})

    def begin(self, uses: Mapping[int, int]) -> None:
        """uses: for each version, old and to come, how often `done` will be called of it."""
        self._uses = Counter(uses)
        self.parameters = {name: p for name, p in self.module.named_parameters() if p.requires_grad}
        self._tensors = {self.newest: self._seen()}
        self.most = self.most_bytes = 0
        self._count()

    def __getitem__(self, version: int) -> dict[str, Tensor]:
        """{name: tensor} of a version, for `torch.func.functional_call`; gradients arrive in them, leaves."""
        if version not in self._tensors:
            raise ValueError(f"version {version} of the weights is not held, only {self.held}")
        return self._tensors[version]

    @property
    def held(self) -> list[int]:
        """The numbers of the versions held, the newest last."""
        return sorted(self._tensors)

    @property
    def nbytes(self) -> int:
        """Memory of all versions held, the module's own among them; shared memory counts once."""
        found = {
            t.untyped_storage()._cdata: t.nbytes
            for tensors in self._tensors.values()
            for t in tensors.values()
        }
        return sum(found.values())

    def done(self, version: int) -> None:
        """One use of a version is over; an old one goes with its last use."""
        self._uses[version] -= 1
        self._free()

    def advance(self, step: Callable[[], object]) -> None:
        """Make the next version: `step` changes the module's parameters in place, and no version held."""
        if self._uses[self.newest] > 0:
            self._part()
        step()
        self.newest += 1
        self._tensors[self.newest] = self._seen()
        self._free()
        self._count()

    def _part(self) -> None:
        """Move the parameters to memory of their own; what has been seen of them keeps the old."""
        for p in self.parameters.values():
            p.data = p.data.clone()

    def _seen(self) -> dict[str, Tensor]:
        """The parameters as leaves of their own, in the same memory. `.data`, because what `detach` gives shares the
        counter by which autograd notices a step in place: also of the copy that p has moved to."""
        return {name: p.data.requires_grad_() for name, p in self.parameters.items()}

    def _free(self) -> None:
        for version in self.held:
            if version != self.newest and self._uses[version] <= 0:
                del self._tensors[version]

    def _count(self) -> None:
        self.most, self.most_bytes = (
            max(self.most, len(self._tensors)),
            max(self.most_bytes, self.nbytes),
        )


class Overwritten(Versions):
    """WRONG, to be seen failing: one memory for all versions. A backward after an update reads the newest weights,
    beside activations that older ones made, and autograd does not notice: its counters look at other tensors."""

    def __getitem__(self, version: int) -> dict[str, Tensor]:
        return self._tensors[self.newest]

    def advance(self, step: Callable[[], object]) -> None:
        step()
        self._tensors = {self.newest + 1: self._tensors[self.newest]}
        self.newest += 1
