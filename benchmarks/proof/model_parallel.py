"""What model parallelism must show: the issue's seven items, in its order."""

from __future__ import annotations

import torch

from benchmarks import pipeline as bench_pipeline
from benchmarks import tensor as bench_tensor
from minidist.comm import World
from minidist.parallel.schedules import in_flight, lists
from minidist.parallel.simulate import simulate
from minidist.parallel.tensor import layer_bytes
from minidist.parallel.vocab import vocab_cross_entropy
from minidist.study.bubbles import bubble_table, published_bubbles
from minidist.study.predict import bubble, most_kept
from tests.largest import largest
from tests.parallel import tensor_cases as tensors
from tests.parallel import test_tensor as kept
from tests.parallel import test_tensor as layers
from tests.parallel import test_vocab as losses
from tests.parallel.pipeline import cases as pipelines

from .world import lessons_of, run_tests, together

LESSONS = ("14_tensor", "15_vocabulary", "16_pipelines", "18_pipedream")


def tensor() -> tuple[str, bool]:
    """Item 1: a tensor-parallel transformer layer against the serial one, its bytes against the formula."""
    rows, held = [], True
    serial = layers.oracle_layer("heads")
    for n in (1, 2, 3, 4):
        for split, options in layers.LAYER_SPLITS.items():

            def program(comm, options=options):
                return tensors.found(
                    layers.layers_layer(comm, "heads", **options),
                    tensors.batch(),
                    comm,
                    bool(options),
                )

            def alone(comm, options=options):
                block = layers.layers_layer(comm, "heads", 1, **options)[0]
                tokens = tensors.TOKENS // (comm.size if options else 1)
                block(
                    torch.ones(2, tokens, tensors.HIDDEN, dtype=torch.float64, requires_grad=True)
                ).sum().backward()

            off = largest(tensors.difference(mine, serial) for mine in World(n).run(program))
            trace = World(n).run(alone).trace
            sent = sum(trace.bytes_sent(r) for r in range(n))
            formula = layer_bytes(n, 2, tensors.TOKENS, tensors.HIDDEN, 8, **options).total
            held &= off < 1e-12 and sent == formula
            rows.append(
                f"n={n}, {split:<8}: outputs and gradients off by {off:.0e}; {sent:,} bytes sent, "
                f"formula {formula:,}; {trace.messages(0)} messages a rank"
            )
    whole = kept.kept(1)
    rows += [
        f"activations of a layer, n={n}: alone {whole:,}, split {kept.kept(n):,}, sequence "
        f"{kept.kept(n, True):,}, regathered {kept.kept(n, True, True):,} B"
        for n in (2, 3, 4)
    ]
    return together(("\n".join(rows), held), run_tests("tests/parallel/test_tensor.py"))


def vocabulary() -> tuple[str, bool]:
    """Item 2: the loss of GPT-2's vocabulary on 3 and 4 ranks; bytes sent for V and 2V."""
    rows, held = [], True
    for n in (3, 4):
        logits, targets = losses.tokens(50_257, (9,))
        results = World(n).run(losses.on_part, vocab_cross_entropy, logits, targets)
        off = losses.worst_cross_entropy(results, losses.serial_cross_entropy(logits, targets))
        sent = [
            World(n)
            .run(losses.on_part, vocab_cross_entropy, *losses.tokens(V, (9,)))
            .trace.bytes_sent(0)
            for V in (50_257, 2 * 50_257)
        ]
        held &= off < 1e-12 and sent[0] == sent[1] > 0
        rows.append(
            f"n={n}: value and gradient off by {off:.0e}; bytes sent by rank 0 with V, 2V: {sent}"
        )
    return together(("\n".join(rows), held), run_tests("tests/parallel/test_vocab.py"))


def schedules() -> tuple[str, bool]:
    """Item 3: every schedule on S = 1..8 stages and M = 1..16 micro-batches, run, against the serial gradient."""
    rows, held = [], True
    for name, schedule in pipelines.SCHEDULES.items():
        exact = runs = formulas = 0
        worst, v = 0.0, pipelines.chunks_of(name)
        for S in range(1, 9):
            for M in range(1, 17):
                if not pipelines.fits(name, S, M):
                    continue
                off, peaks = pipelines.compared(name, S, M)
                runs = runs + 1
                exact = exact + (off == 0.0)
                worst = max(worst, off)
                planned = lists(schedule, S, M)
                held &= peaks == [in_flight(actions) for actions in planned]
                formulas += _as_formulas(schedule.__name__, planned, S, M, v)
        held &= worst < 1e-12
        rows.append(
            f"{name}: {runs} runs, {exact} equal to the serial gradient bit for bit, the others within "
            f"{worst:.0e}; bubble and peak are the formulas' in {formulas}"
        )
    tests = run_tests("tests/parallel/pipeline"), run_tests("tests/parallel/test_schedules.py")
    return together(("\n".join(rows), held), *tests)


def _as_formulas(name: str, planned: list, S: int, M: int, v: int) -> bool:
    """Whether a formula applies. AssertionError if it says something else than the lists."""
    try:
        rate = bubble(name, S, M, v)
    except ValueError:
        return False
    found = simulate(planned)
    ours = found.bubble_rate if name.startswith("zb") else found.bubble
    assert abs(ours - rate) < 1e-9, (name, S, M, ours, rate)
    assert [in_flight(actions) for actions in planned] == [
        most_kept(name, s, S, M, v) for s in range(S)
    ], (name, S, M)
    return True


def bubbles() -> tuple[str, bool]:
    """Item 4: published bubble rates, which have four digits, simulated. What a stage waits for in 1F1B-I: see Rate."""
    found = published_bubbles()
    errors = {"1F1B": [], "1F1B-I": [], "ZB-H1": [], "ZB-H2": []}
    for rate in found:
        if rate.schedule in errors:
            errors[rate.schedule].append(abs(rate.as_published - rate.published))
    rows = [
        f"{name}: {len(all_of)} rows, largest error {max(all_of):.1e}"
        for name, all_of in errors.items()
    ]
    return "\n".join([str(bubble_table(found)), *rows]), all(
        e <= 5.1e-5 for all_of in errors.values() for e in all_of
    )


def pipedream() -> tuple[str, bool]:
    """Item 5: with stashing every gradient is that of the weights its forward used; without, it is not."""
    return run_tests("tests/parallel/test_pipedream.py")


def ratios() -> tuple[str, bool]:
    """Item 6: ours over shared memory against PyTorch's own over gloo."""
    found = bench_tensor.measure([2, 4], 30, [*bench_tensor.CASES]) | bench_pipeline.measure(
        [2, 4], 20
    )
    rows = [f"{name}: {value:.2f} times as fast as PyTorch's own" for name, value in found.items()]
    return "\n".join(rows), all(value >= 1 for value in found.values())


def lessons() -> tuple[str, bool]:
    """Item 7: built, tested, banks complete."""
    return lessons_of(LESSONS)


ITEMS = {
    "1 tensor parallel": tensor,
    "2 vocabulary": vocabulary,
    "3 schedules": schedules,
    "4 published bubbles": bubbles,
    "5 PipeDream": pipedream,
    "6 ratios": ratios,
    "7 lessons": lessons,
}
