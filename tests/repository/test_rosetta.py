"""docs/rosetta.md: each name of ours and each of PyTorch's is there, and is what the table says it is."""

import importlib
import inspect
import re

import pytest
import torch
import torch.distributed
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import CPUOffloadPolicy, FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.nn.parallel import DistributedDataParallel

from course.reference import entries
from minidist.comm import Comm
from minidist.comm.mesh import Grid
from minidist.parallel import DataParallel, FullySharded
from minidist.parallel.context import WAYS
from minidist.parallel.tensor import copy_to, reduce_from
from minidist.parallelize import SCHEDULES, parallelize
from tests.repository.files import ROOT

TEXT = (ROOT / "docs" / "rosetta.md").read_text(encoding="utf-8")
FRAMEWORKS = (ROOT / "docs" / "frameworks.md").read_text(encoding="utf-8")

# What the page calls by a short name.
SHORT = {
    "dist": torch.distributed,
    "torch": torch,
    "init_device_mesh": init_device_mesh,
    "DeviceMesh": DeviceMesh,
    "fully_shard": fully_shard,
    "MixedPrecisionPolicy": MixedPrecisionPolicy,
    "CPUOffloadPolicy": CPUOffloadPolicy,
}
# Options of the two wrappers stand without them, and what PyTorch reads from the environment is no name of Python's.
WRAPPERS = {
    "DDP": (DistributedDataParallel, default_hooks, powerSGD_hook),
    "FSDP2 and what composes with it": (fully_shard, FSDPModule),
}
SETTINGS = {"TORCH_DISTRIBUTED_DEBUG=DETAIL"}


def tables():
    """(heading, names of columns, cells) of each row."""
    heading = ""
    columns = None
    for line in TEXT.splitlines():
        if line.startswith("#"):
            heading = line.strip("# ")
        if not line.startswith("|"):
            columns = None
            continue
        cells = [
            cell.strip() for cell in line.strip().removeprefix("|").removesuffix("|").split("|")
        ]
        if columns is None:
            columns = cells
        elif not set(line) <= set("|- "):
            yield heading, columns, cells


ROWS = list(tables())
pytestmark = pytest.mark.filterwarnings("ignore:.torch.jit:DeprecationWarning")


def names(cell):
    return re.findall(r"`([^`]+)`", cell)


def reach(root, path):
    for part in path.split("."):
        if inspect.ismodule(root) and not hasattr(root, part):
            importlib.import_module(f"{root.__name__}.{part}")
        root = getattr(root, part)
    return root


def absent_of_torch(heading, name):
    """Why PyTorch has no such name, or None."""
    if name in SETTINGS:
        return None
    path, _, value = name.partition("=")
    first, _, rest = path.partition(".")
    try:
        if first in SHORT:
            if rest:
                reach(SHORT[first], rest)
            return None
        if value:  # an option of the calls in this row or the one below
            functions = (torch.distributed.all_reduce, torch.distributed.recv)
            functions += (torch.distributed.init_process_group,)
            known = {word for f in functions for word in inspect.signature(f).parameters}
            return None if path in known else f"no call has the option {path}"
        for owner in WRAPPERS[heading]:
            options = inspect.signature(owner).parameters if callable(owner) else ()
            if path in options or hasattr(owner, path):
                return None
    except (AttributeError, ImportError, KeyError) as error:
        return repr(error)
    return f"neither an option nor a method: {path}"


def torch_names():
    for heading, columns, cells in ROWS:
        for column, cell in zip(columns, cells, strict=True):
            if column in ("torch.distributed", "DDP", "FSDP2"):
                yield from ((heading, name) for name in names(cell))


def test_tables_are_whole():
    assert len(ROWS) > 60
    for _, columns, cells in ROWS:
        assert len(cells) == len(columns)
        assert columns[-1] == "What differs"
    assert len({cells[0] for heading, _, cells in ROWS if heading == "Collectives"}) == 11


def lacking(found, absent):
    """(name, why) of those that are not there."""
    reasons = [(name, absent(heading, name)) for heading, name in found]
    return [(name, why) for name, why in reasons if why]


def test_each_name_of_pytorch_is_there():
    found = list(torch_names())
    assert len(found) > 60
    assert not lacking(found, absent_of_torch)


@pytest.mark.parametrize(
    ("heading", "name"),
    [
        ("Collectives", "dist.all_reduce_"),
        ("Messages", "source=None"),
        ("DDP", "bucket_cap_gb"),
        ("DDP", "torch.utils.data.Sampler2"),
        ("FSDP2 and what composes with it", "reshard_after_backward_"),
        ("Collectives", "all_reduce"),
    ],
)
def test_a_name_that_pytorch_lacks_is_found(heading, name):
    assert lacking([(heading, name)], absent_of_torch)


# ------------------------------------------------------------
# Ours: a public name, a method, or an option of what the section is about.

PUBLIC = {one.name: one.value for one in entries(ROOT)}
PUBLIC |= {"copy_to": copy_to, "reduce_from": reduce_from}
SUBJECTS = {
    "DDP": (DataParallel,),
    "FSDP2 and what composes with it": (FullySharded,),
    "Megatron": (parallelize,),
}


def absent_of_ours(heading, name):
    """Why we have no such name, or None."""
    path = re.split(r"[(=]", name)[0]
    first, _, rest = path.partition(".")
    if first == "comm":
        known = [*vars(Comm), *inspect.get_annotations(Comm), *re.findall(r"self\.(\w+)", COMM)]
        return None if not rest or rest in known else f"a Comm has no {rest}"
    if first in PUBLIC:
        return (
            None if not rest or hasattr(PUBLIC[first], rest) or rest == "source" else f"no {path}"
        )
    for subject in SUBJECTS.get(heading, ()):
        if path in inspect.signature(subject).parameters or hasattr(subject, path):
            return None
        if path in re.findall(r"self\.(\w+) =", inspect.getsource(subject)):
            return None
    return f"no {path}"


COMM = inspect.getsource(Comm)


def our_names():
    for heading, columns, cells in ROWS:
        for name in names(cells[columns.index("minidist")]):
            yield heading, name


def test_each_name_of_ours_is_there():
    assert len(list(our_names())) > 60
    assert not lacking(our_names(), absent_of_ours)


@pytest.mark.parametrize(
    ("heading", "name"),
    [("Messages", "comm.isent"), ("DDP", "bucket_kb"), ("DDP", "Sample"), ("Messages", "Work.wat")],
)
def test_a_name_that_we_lack_is_found(heading, name):
    assert lacking([(heading, name)], absent_of_ours)


def test_axes_and_words_are_those_of_the_code():
    for _, name in our_names():
        axis = re.fullmatch(r"Mesh\((\w+)=…\)", name)
        if axis:
            assert getattr(Grid(**{axis[1]: 2}), axis[1]) == 2
    assert {"zigzag", "contiguous", "heads"} == set(WAYS)
    for way in WAYS:
        assert f'`"{way}"`' in TEXT
    assert "interleaved" in SCHEDULES
    for op in ("sum", "min", "max", "prod", "mean"):
        assert f'`"{op}"`' in TEXT
    parameters = inspect.signature(DistributedDataParallel).parameters
    assert parameters["bucket_cap_mb"].default is None  # 25 MiB, says its docstring
    assert "25 MiB" in DistributedDataParallel.__doc__
    ours = inspect.signature(DataParallel).parameters
    assert ours["bucket_bytes"].default == 25 << 20
    first = ours["first_bucket_bytes"].default
    assert first == torch.distributed._DEFAULT_FIRST_BUCKET_BYTES == 1 << 20


def test_links_lead_each_way():
    assert "](rosetta.md)" in FRAMEWORKS
    assert "](frameworks.md)" in TEXT
