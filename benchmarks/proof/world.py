"""What the measured world must show: the issue's seven items, in its order."""

from __future__ import annotations

import pathlib
import re
import subprocess
import sys

import torch

from benchmarks import data_parallel as bench_data_parallel
from benchmarks import world as bench_world
from minidist.collectives import all_reduce_, bandwidth, predict
from minidist.comm import Cluster, World
from minidist.study import measure, published
from tests.comm import nets

from .foundation import bank_of

ROOT = pathlib.Path(__file__).resolve().parents[2]
LESSONS = ("01_walls", "03_topology", "06_buckets")
GIB, MIB = 1 << 30, 1 << 20

# A process of its own, whose memory is this run's only: ranks, bytes, metered or not.
_RING = """
import resource, sys, time, torch
from dataclasses import replace
from minidist.collectives import all_reduce_, seconds
from minidist.comm import Cluster, World
from minidist.comm.cluster import H100

torch.set_num_threads(1)
n, nbytes, meter = map(int, sys.argv[1:])
alpha, beta, device = 5e-6, 1 / 50e9, replace(H100, launch=0.0)
gamma = 3 / device.bandwidth if meter else 0.0  # to add two numbers and keep the sum moves three

def program(comm):
    all_reduce_(comm, torch.empty(nbytes // 4, device="meta"), algorithm="ring")

world = World(n, cluster=Cluster.uniform(n, alpha, beta, device), device="meta", meter=bool(meter))
start = time.perf_counter()
world.run(program)
took = time.perf_counter() - start
formula = seconds("all_reduce", "ring", n, nbytes, alpha, beta, gamma)
peak = max((t.peak for t in world.trace.memory.values()), default=0) if meter else 0
print(took, len(world.trace), world.time, formula, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024, peak)
"""


def thousand() -> tuple[str, bool]:
    """Item 1: 1 GiB over 1,024 simulated GPUs, without and with the meter; the cost of a message beside that at 8."""
    rows, held = [], True
    for meter, limit in ((0, 60), (1, 120)):
        run = subprocess.run(
            [sys.executable, "-c", _RING, "1024", str(GIB), str(meter)],
            cwd=ROOT,
            check=True,
            capture_output=True,
            text=True,
        )
        took, messages, time, formula, memory, peak = map(float, run.stdout.split())
        off = abs(time / formula - 1)
        held &= off < 1e-9 and took < limit and memory < 2 * GIB and messages == 2 * 1023 * 1024
        rows.append(
            f"{'with' if meter else 'without'} the meter: {messages:,.0f} messages in {took:.1f} s, "
            f"{memory / GIB:.2f} GiB of memory; virtual time {time * 1e3:.3f} ms, off the formula by {off:.0e}"
            + (f"; each rank's peak {peak / GIB:.3f} GiB" if meter else "")
        )
    cost = bench_world.messages((8, 1024), 5)
    (small, _), (large, ratio) = cost[8], cost[1024]
    rows.append(
        f"{small:.1f} µs a message at n = 8, {large:.1f} µs at n = 1,024, ratio {ratio:.2f} (medians of 5)"
    )
    return "\n".join(rows), held and ratio <= 1.5


def _reduce(comm, nbytes: int, algorithm) -> None:
    all_reduce_(comm, torch.empty(nbytes // 4, device="meta"), algorithm=algorithm)


def _simulated(cluster: Cluster, nbytes: int, algorithm) -> tuple[float, float]:
    """Seconds in a World, and what the formula says."""
    n = cluster.size
    world = World(n, cluster=cluster, device="meta", meter=False)
    world.run(_reduce, nbytes, algorithm)
    says = World(n, cluster=cluster, device="meta", meter=False).run(
        predict, "all_reduce", nbytes, algorithm
    )
    return world.time, says[0]


def topologies() -> tuple[str, bool]:
    """Item 2: 64 MiB on 16 DGX H100; then a ring inside one H200 node against what was measured."""
    rows, cluster = (
        ["64 MiB on 16 DGX H100 nodes, 128 GPUs: predicted, simulated, error"],
        Cluster.dgx_h100(nodes=16),
    )
    found = {}
    for name in ("ring", "tree", "double_tree", "halving_doubling", "hierarchical", "auto"):
        found[name], says = _simulated(cluster, 64 * MIB, name)
        rows.append(
            f"  {name:<17} {says * 1e6:>9.1f} µs {found[name] * 1e6:>9.1f} µs {says / found[name] - 1:>+7.1%}"
        )
    held = found["auto"] <= 1.05 * min(found.values())
    rows.append(
        "ring inside one H200 node, 8 GiB: bus bandwidth, simulated and measured (nccl.csv), error"
    )
    measured = [row for row in published("nccl") if (row["hw"], row["payload"]) == ("H200", "8GiB")]
    for row in [row for row in measured if row["quantity"] == "busbw" and "Ring" in row["algo"]]:
        n = int(row["ranks"])
        world = World(n, cluster=Cluster.dgx_h200(), device="meta", meter=False)
        world.run(_reduce, 8 * GIB, "ring")
        ours = bandwidth("all_reduce", n, 8 * GIB, world.time)[1] / 1e9
        held &= abs(ours / row["value"] - 1) < 0.05
        rows.append(
            f"  {n} GPUs {ours:>7.1f} GB/s {row['value']:>7.1f} GB/s {ours / row['value'] - 1:>+6.1%}"
        )
    return "\n".join(rows), held and len(rows) > 8


def run_tests(*names: str) -> tuple[str, bool]:
    """Run tests at their full size, show how each ended."""
    run = subprocess.run(
        [sys.executable, "-m", "pytest", "--full", "-q", "-rA", "-p", "no:cacheprovider", *names],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    closing = re.findall(r"^=* ?(\d+ (?:passed|failed).*) in .*?s\b", run.stdout, re.MULTILINE)
    if run.returncode:
        print(run.stdout[-4000:])
    return f"{' '.join(names)}: {closing[-1] if closing else 'no result'}", run.returncode == 0


def together(*parts: tuple[str, bool]) -> tuple[str, bool]:
    return "\n".join(text for text, _ in parts), all(held for _, held in parts)


def figures() -> tuple[str, bool]:
    """Item 3: published figures, reproduced by the calculators."""
    return together(
        run_tests("tests/study/predict/test_states.py"),
        run_tests("tests/study/predict/test_transformer.py"),
        run_tests("tests/study/predict/test_claims.py"),
    )


def _forward_backward(layer: torch.nn.Module, x: torch.Tensor) -> None:
    layer(x).sum().backward()


def meter() -> tuple[str, bool]:
    """Item 4: FLOPs of a layer of GPT-2's size against a count by hand; peaks against the allocations that PyTorch's
    profiler saw; then all the tests of both."""
    batch = 2
    tokens = 256
    hidden = 768
    rows = []
    held = True
    linear, product = 24 * batch * tokens * hidden**2, 2 * batch * tokens**2 * hidden
    for device, attention, products in (
        ("cpu", "call", 5),
        ("cpu", "written", 4),
        ("meta", "operator", 5),
    ):
        layer = nets.Layer(attention, hidden, 12).to(device)
        x = torch.empty(batch, tokens, hidden, device=device, requires_grad=True)
        work = measure(_forward_backward, layer, x).by_phase
        found = work["forward"].flops, work["backward"].flops
        hand = linear + 2 * product, 2 * linear + products * product
        held &= found == hand
        rows.append(
            f"a layer, {device}, attention {attention}: FLOPs forward {found[0]:,}, by hand {hand[0]:,}; "
            f"backward {found[1]:,}, by hand {hand[1]:,}"
        )
    for net in (nets.mlp, nets.convnet, nets.transformer):
        truth, ours, meta = (
            nets.Training(net, "adam", device) for device in ("cpu", "cpu", "meta")
        )
        there = sum(truth.states().values())
        peak = there + nets.allocated(truth.step)[0]
        found = measure(ours.step).peak, measure(meta.step).peak
        held &= all(abs(one / peak - 1) < 0.01 for one in found)
        rows.append(
            f"peak of a step, {net.__name__}: allocator {peak:,}, meter {found[0]:,}, on meta {found[1]:,} B"
        )
    names = ("comm/test_meter",)
    tests = [run_tests(f"tests/{name}.py") for name in (*names, "study/predict/test_saved")]
    return together(("\n".join(rows), held), *tests)


def replicas() -> tuple[str, bool]:
    """Item 5: our step against DDP's, and what overlap gains over a slow link."""
    ratios = bench_data_parallel.measure([2, 4], 30)
    rows = [f"{name}: {value:.2f} times as fast as DDP over gloo" for name, value in ratios.items()]
    held = all(value >= 1.0 for name, value in ratios.items() if "overlap" in name)
    for n in (2, 4):
        slow = bench_data_parallel.measure_slow(n, 10)
        for name in bench_data_parallel.BUCKETS:
            (on, world_on), (off, world_off) = slow[f"{name}, overlap"], slow[f"{name}, at the end"]
            rows.append(
                f"n={n}, 100 MB/s, buckets of {name}: a step in {on * 1e3:.0f} ms with overlap, "
                f"{off * 1e3:.0f} ms without, gain {off / on:.3f} (World {world_off / world_on:.3f})"
            )
    return "\n".join(rows), held


def batchnorm() -> tuple[str, bool]:
    """Item 6: SyncBatchNorm against one process with the whole batch."""
    return run_tests("tests/parallel/test_batchnorm.py")


def lessons_of(lessons: tuple[str, ...], limit: float = 60) -> tuple[str, bool]:
    """Built, tested by nbval, banks complete, each notebook executed in less than `limit` seconds."""
    build = subprocess.run(
        [sys.executable, "course/build.py", "--check"], cwd=ROOT, capture_output=True, text=True
    )
    built = f"staleness check: exit code {build.returncode}", build.returncode == 0
    names = [
        p
        for lesson in lessons
        for p in (f"notebooks/{lesson}.ipynb", f"solutions/{lesson}/{lesson}.ipynb")
    ]
    nbval = ["--nbval", "--nbval-current-env", "--nbval-cell-timeout", "120"]
    return together(built, run_tests(*nbval, *names), bank_of(lessons, limit))


def lessons() -> tuple[str, bool]:
    """Item 7: the lessons of the measured world."""
    return lessons_of(LESSONS, 30)


ITEMS = {
    "1 1,024 ranks": thousand,
    "2 topologies": topologies,
    "3 published figures": figures,
    "4 the meter": meter,
    "5 DataParallel and overlap": replicas,
    "6 SyncBatchNorm": batchnorm,
    "7 lessons": lessons,
}
