"""What each process in a sandbox begins with: the course's code comes through a pipe, and no file of it is there.

`python -I -c TEXT READS WRITES`, where TEXT is this file's, and the numbers are those of two pipes. The first message has
the modules and what to run. A module that answers may not call is loaded, emptied and then forgotten (`forget`): neither
its text nor its code is in the process, nor in anything that the process can reach.
"""

import importlib
import marshal
import os
import resource
import sys
from importlib.abc import Loader, MetaPathFinder
from importlib.util import spec_from_loader


class Sent(MetaPathFinder, Loader):
    """Imports modules that were sent: {name: (file, whether it is a package, marshalled code)}."""

    def __init__(self, modules):
        self.modules = modules

    def find_spec(self, name, path=None, target=None):
        if name not in self.modules:
            return None
        file, package, _ = self.modules[name]
        spec = spec_from_loader(name, self, origin=file, is_package=package)
        spec.has_location = True
        if package:
            spec.submodule_search_locations = [os.path.dirname(file)]
        return spec

    def create_module(self, spec):
        return None

    def exec_module(self, module):
        exec(marshal.loads(self.modules[module.__name__][2]), vars(module))

    def forget(self, names):
        """These modules, and all in them, can be imported no more, unless they have been."""
        for module in list(self.modules):
            if module.startswith(tuple(f"{name}." for name in names)) or module in names:
                del self.modules[module]


def read(fd, size):
    parts = []
    while size:
        part = os.read(fd, min(size, 1 << 20))
        if not part:
            os._exit(1)
        parts.append(part)
        size -= len(part)
    return b"".join(parts)


def main(reads, writes):
    null = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2):
        os.dup2(null, stream)
    sent = marshal.loads(read(reads, int.from_bytes(read(reads, 8), "little")))
    for limit, most in sent["limits"].items():
        resource.setrlimit(limit, (most, most))
    finder = Sent(sent["modules"])
    sys.meta_path.insert(0, finder)
    module, function = sent["run"]
    getattr(importlib.import_module(module), function)(reads, writes, finder, *sent["given"])


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
