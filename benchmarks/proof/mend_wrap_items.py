"""Mend, items 1 and 3: what is wrapped twice, and what goes together, in the World, over shared memory and gloo."""

from __future__ import annotations

from fractions import Fraction

import torch

from minidist.comm import World, launch
from minidist.study.predict import zero_traffic
from tests.largest import largest
from tests.parallel import test_compositions as compositions
from tests.parallel import test_fully_sharded as hybrid
from tests.parallel import test_wrapped_twice as twice
from tests.parallel.cases import difference
from tests.parallel.fully_sharded_cases import far, serial


def _run(where: str, program, n: int, *args):
    if where == "World":
        return World(n).run(program, *args)
    return launch(program, n, *args, transport=where)


PLACES = ("World", "shm", "gloo")


def wrapped_twice() -> tuple[str, bool]:
    """Item 1: a cell that runs again gives what it gave the first time; the newer wrapper replaces the older one."""
    rows, held = [], True
    for where in PLACES:
        gradients = {way: _run(where, twice.wrapped_again, 2, way) for way in twice.WAYS}
        right = all(found == [1.5] * 4 for ranks in gradients.values() for found in ranks)
        shown = " ".join(f"{g:g}" for g in gradients["plain"][0])
        rows.append(
            f"{where}: DataParallel 4 times over one net: {shown}; so in {len(gradients)} ways: {right}"
        )
        held &= right
        for stages in ((2, 2), (2, 1), (1, 2)):
            results = _run(where, twice.remade, 2, stages, {})
            off = largest(difference(params, twice.serial()) for params, _ in results)
            same = all(equal for _, equal in results)
            rows.append(
                f"{where}: ZeRO {' then '.join(map(str, stages))} over the same parameters, 4 steps: "
                f"{off:.1e} from one rank, replicas equal: {same}"
            )
            held &= off < 1e-13 and same
        again = _run(where, twice.sharded_again, 2, 3, {})
        oracle = twice.sharded_serial(3)
        off = largest(
            (found[name] - oracle[name]).abs().max().item() for found in again for name in oracle
        )
        rows.append(f"{where}: FullySharded 3 times, 2 steps each: {off:.1e} from one rank")
        held &= off < 1e-13
        local = _run(where, twice.local_again, 2, 3)
        off = largest(
            difference(params, twice.serial(torch.optim.SGD, lr=0.1)) for params, _, _ in local
        )
        rows.append(f"{where}: LocalSGD 3 times, H = 1, 4 steps: {off:.1e} from one rank")
        held &= off < 1e-13
    words = _run("World", compositions.used_again, 2)[0]
    rows.append(
        f"{len(words)} that were replaced say so when used, such as: {next(iter(words.values()))}"
    )
    return "\n".join(rows), held and all(
        "was replaced by a newer one" in said for said in words.values()
    )


def pairs() -> tuple[str, bool]:
    """Item 3: 8 × 8 pairs, each right or refused in words; hybrid sharding beside one rank, and its bytes."""
    rows, held = [], True
    for where in PLACES:
        n, counts = 2, {"right": 0, "refused": 0}
        oracles = {
            (norm, locally): compositions.local(n, norm) if locally else compositions.serial(norm)
            for norm in (False, True)
            for locally in (False, True)
        }
        found = _run(where, compositions.every_cell, n)[0]
        for pair, cell in found.items():
            norm, locally = compositions.SBN in pair, compositions.LOCAL in pair
            became = compositions.verdict(cell, oracles[norm, locally])
            expected = compositions.VERDICTS[pair[0]][compositions.KINDS.index(pair[1])].replace(
                "replaced", "right"
            )
            counts[became] = counts.get(became, 0) + 1
            held &= became == expected
        rows.append(
            f"{where}, {n} ranks: of {len(found)} ordered pairs "
            + ", ".join(f"{count} {name}" for name, count in counts.items())
        )
        held &= len(found) == 64 and set(counts) == {"right", "refused"}
        oracle = serial("hard", "adamw", hybrid.STEPS, False)
        for s, r in hybrid.GRIDS:
            results = _run(where, hybrid.train_hybrid, s * r, s, "hard", "adamw", False, {})
            off = largest(far(state, oracle) for state, _, _ in results)
            rows.append(
                f"{where}: FullySharded over {s} × {r} ranks, 5 AdamW steps, weighted parts: "
                f"{off:.1e} from one rank"
            )
            held &= off < 1e-13 and all(same for _, same, _ in results)
        s = 2
        r = 3
        count = hybrid.WIDTH**2
        sent = [_run(where, hybrid.traced, s * r, s, steps).trace.bytes_sent() for steps in (1, 2)]
        said = 4 * zero_traffic(3, count, s, replicas=r)
        rows.append(
            f"{where}: {s} shards × {r} replicas of {4 * count} bytes: {Fraction(sent[1] - sent[0], s * r)} "
            f"bytes a rank and step, formula {said}"
        )
        held &= Fraction(sent[1] - sent[0], s * r) == said
    return "\n".join(rows), held
