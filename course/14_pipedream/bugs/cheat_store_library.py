"""store: the library has a store"""

from minidist.parallel.pipedream import Versions


class Store(Versions):
    def __init__(self, weight):
        part = torch.nn.Module()
        part.weight = torch.nn.Parameter(weight)
        super().__init__(part)
