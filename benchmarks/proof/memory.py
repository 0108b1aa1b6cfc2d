"""What state, precision and memory must show: the issue's seven items, in its order."""

from __future__ import annotations

import math

import torch

from benchmarks import amp as bench_amp
from benchmarks import fuse as bench_fuse
from benchmarks import remat as bench_remat
from benchmarks import zero as bench_zero
from minidist.study.predict import segments_bytes, zero_kept, zero_peak
from minidist.train.remat import checkpoint_sequential
from tests.parallel import test_fully_sharded as fully
from tests.parallel import test_zero as sharded
from tests.train import test_remat as segments
from tests.train.fuse import test_flash as tiles

from .world import lessons_of, run_tests, together

LESSONS = ("09_precision", "11_remat", "12_operators", "13_zero")
RANKS = (1, 2, 3, 4)


def stages() -> tuple[str, bool]:
    """Item 1: each stage against serial training; bytes by category of 10 and 12.6 million parameters."""
    rows, held = (
        [f"stages 1, 2: {sharded.PARAMS:,} parameters; stage 3: {fully.PARAMS:,}; bytes of rank 0"],
        True,
    )
    for n in RANKS:
        for stage in (1, 2):
            times, trace = sharded.run(n, stage, sharded.FP16, 2)
            rows.append(_bytes(f"n={n}, stage {stage}", trace.memory[0].at(times[0][1])))
            held &= sharded.unlike(n, stage, sharded.FP16, "fp16") == []
        timeline, (_, end) = fully.metered(n, 2)
        rows.append(_bytes(f"n={n}, stage 3", timeline.at(end)))
        own = {
            name: 10 * nbytes
            for name, nbytes in zero_kept(3, fully.LAYER, -(-fully.LAYER // n), 4).items()
        }
        held &= own.items() <= timeline.at(end).items()
    return together(("\n".join(rows), held), run_tests("tests/parallel/test_zero.py"))


def _bytes(name: str, live: dict[str, int]) -> str:
    parts = [f"{kind} {live[kind]:,}" for kind in ("parameters", "gradients", "optimizer states")]
    return f"{name}: {', '.join(parts)}"


def stage_3() -> tuple[str, bool]:
    """Item 2: the peak of a step with stage 3, and its bound."""
    rows = []
    held = True
    block = 2 * fully.LAYER
    for n in RANKS[1:]:
        for prefetch in (0, 1):
            timeline, span = fully.metered(n, 2, 1, prefetch)
            activations = fully.most(timeline, *span, "activations")
            found = fully.most(timeline, *span)
            kept = zero_kept(3, fully.LAYER, -(-fully.LAYER // n), 4)
            bound = zero_peak(10 * sum(kept.values()), block, block, activations, prefetch)
            held &= found <= bound and fully.violated(n, prefetch) == []
            rows.append(f"n={n}, {prefetch} blocks ahead: peak {found:,} B, bound {bound:,}")
    return together(("\n".join(rows), held), run_tests("tests/parallel/test_fully_sharded.py"))


def precision() -> tuple[str, bool]:
    """Item 3: losses of five seeds, with and without scaling, at each level."""
    rows, held = [], True
    found = bench_amp.table_of_losses()
    for job in ("digits", "gpt"):
        exact = found[job]["fp32"]
        errors = {way: bench_amp.off(losses, exact) for way, losses in found[job].items()}
        held &= errors["O1"] < 0.01 and errors["O2"] < 0.01
        held &= all(min(found[job][f"{way}, no scaler"]) > max(exact) for way in ("O1", "O2"))
        held &= not any(map(math.isfinite, found[job]["O3"]))
        rows.append(
            f"{job}: off fp32's loss, median of five seeds: "
            + ", ".join(f"{way} {error:.2%}" for way, error in errors.items())
        )
    late = found["updates"]
    held &= (
        min(late["O3, bf16"]) > max(late["fp32"])
        and bench_amp.off(late["O2, bf16"], late["fp32"]) < 0.01
    )
    rows.append(
        "updates: "
        + ", ".join(f"{way} {bench_amp.off(x, late['fp32']):.2%}" for way, x in late.items())
    )
    return together(("\n".join(rows), held), run_tests("tests/train/test_amp.py"))


def checkpoints() -> tuple[str, bool]:
    """Item 4: memory and FLOPs of √L segments, L = 4…64, measured and predicted; equal gradients by tests."""
    rows, held = [], True
    for layers in (4, 9, 16, 25, 36, 49, 64):
        widths, root = [segments.WIDTH] * (layers + 1), round(layers**0.5)
        whole = segments.chain_metered(widths, lambda chain, x: chain(x))
        ours = segments.chain_metered(
            widths, lambda chain, x, k=root: checkpoint_sequential(chain, k, x)
        )
        said, share = (
            segments_bytes(layers, root, 2 * segments.EDGE, segments.EDGE),
            ours.flops / whole.flops,
        )
        held &= segments.kept(ours) == said and share <= 1.34
        rows.append(
            f"L={layers}: {segments.kept(whole):,} B of activations, {segments.kept(ours):,} in {root} "
            f"segments, predicted {said:,}; FLOPs {share:.3f} times"
        )
    return together(
        ("\n".join(rows), held),
        run_tests(
            "tests/train/test_remat.py",
            "tests/train/test_selective.py",
            "tests/train/test_reversible.py",
            "tests/parallel/test_accumulate.py",
        ),
    )


def attention() -> tuple[str, bool]:
    """Item 5: attention in tiles; its memory as T doubles."""
    rows, held = [], True
    for T in (64, 128):
        in_tiles, written_out = (
            tiles.peaks(tiles.tile_by_tile, T),
            tiles.peaks(tiles.written_out, T),
        )
        held &= in_tiles[1] < 2.05 * in_tiles[0]
        rows.append(
            f"T={T}, {2 * T}: peak {in_tiles[0]:,}, {in_tiles[1]:,} B in tiles, {written_out[0]:,}, "
            f"{written_out[1]:,} written out"
        )
    return together(("\n".join(rows), held), run_tests("tests/train/fuse"))


def ratios() -> tuple[str, bool]:
    """Item 6: stages 1 and 3, checkpointing, fused operators, beside PyTorch's own."""
    zero = bench_zero.measure([2, 4], 20, ["stage_1", "stage_3"])
    held = all(
        value >= 1 if name.startswith("ratio") else value <= 1.05 for name, value in zero.items()
    )
    remat = bench_remat.measure(25)
    held &= all(value >= 0.97 for name, value in remat.items() if not name.endswith("peak"))
    torch.set_num_threads(1)
    fused = bench_fuse.measure([*bench_fuse.CASES], 15)
    return "\n".join(f"{name} {value:.3f}" for name, value in (zero | remat | fused).items()), held


def lessons() -> tuple[str, bool]:
    """Item 7: built, tested, banks complete."""
    return lessons_of(LESSONS)


ITEMS = {
    "1 stages": stages,
    "2 peak of stage 3": stage_3,
    "3 mixed precision": precision,
    "4 checkpointing": checkpoints,
    "5 attention in tiles": attention,
    "6 ratios": ratios,
    "7 lessons": lessons,
}
