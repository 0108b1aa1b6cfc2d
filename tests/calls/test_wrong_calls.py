"""Wrong calls, and the words that a user needs: no error from deep inside, no misleading one, and none accepted."""

import numpy as np
import pytest
import torch
from torch import nn

from minidist import collectives
from minidist.comm import Cluster, World
from minidist.comm.base import Mismatch
from minidist.comm.mesh import Mesh
from minidist.models import GPT, TransformerLayer, gpt, mlp
from minidist.parallel import schedules
from minidist.parallel.data import DataParallel
from minidist.parallel.pipeline import Pipeline
from minidist.parallelize import parallelize
from minidist.split import checked_sizes, even, uneven
from minidist.train.optim import AdamW
from tests.parallel.tensor_cases import tensor_layer

FLOAT8 = torch.float8_e4m3fn
SMALL = dict(layers=2, hidden=8, heads=2, vocab=16, context=8)


def refused(call, words, kind=ValueError):
    """`call` raises this kind of error, and what it says begins with these words."""
    with pytest.raises(kind) as caught:
        call()
    assert str(caught.value).startswith(words), str(caught.value)


def cases(table):
    """The parameters of a test, for {words: what was given, in a list}."""
    rows = [(value, words) for words, values in table.items() for value in values]
    names = [f"{words}: {value!r}"[:90] for value, words in rows]
    return pytest.mark.parametrize(("given", "words"), rows, ids=names)


# ---------------------------------------------------------------------------------------------- runners
@cases(
    {
        "a run has at least 1 rank, not": [
            dict(n=n) for n in (0, -1, True, False, 2.0, "2", None, [2])
        ],
        "a cluster is a Cluster, such as Cluster.dgx_h100(nodes=2), not": [
            dict(n=2, cluster=cluster) for cluster in ("h100", 3, Cluster, {"nodes": 2})
        ],
        "alpha is a number of seconds, at least 0, not": [
            dict(n=2, alpha=alpha) for alpha in (-1, "1", True, float("nan"), float("inf"))
        ],
        "beta is a number of seconds a byte, at least 0, not": [
            dict(n=2, beta=beta) for beta in (-1.0, "1", False, float("nan"), float("inf"))
        ],
        "rendezvous is True or False, not": [
            dict(n=2, rendezvous=value) for value in ("no", 0, None)
        ],
        "meter is True or False, not": [dict(n=2, meter=value) for value in ("yes", 1)],
        "a seed is a whole number, not": [dict(n=2, seed=seed) for seed in ("a", 1.5, None, True)],
        'a device is "cpu", "cuda" or "meta", not': [
            dict(n=2, device=device) for device in ("gpu", 3, None)
        ],
        'on_failure is "end" or "continue", not': [
            dict(n=2, on_failure=value) for value in ("stop", None, ["end"])
        ],
    }
)
def test_world(given, words):
    refused(lambda: World(**given), words)


def test_what_a_world_takes():
    assert (
        World(
            np.int64(2),
            seed=-1,
            alpha=0,
            beta=np.float64(0),
            device=torch.device("cpu"),
            meter=True,
        ).n
        == 2
    )


# ---------------------------------------------------------------------------------------------- messages
@cases(
    {
        "rank 0 sends to a rank, a whole number, not": [
            1.0,
            True,
            None,
            "1",
            [1],
            torch.tensor(1.0),
        ],
        "rank 0 cannot send to rank": [2, -1, 0],
    }
)
def test_send(given, words, run_fast):
    def sends(comm):
        if comm.rank == 0:
            comm.send(torch.ones(1), given)

    def posts(comm):
        if comm.rank == 0:
            comm.isend(torch.ones(1), given)

    refused(lambda: run_fast(sends, 2), words)
    refused(lambda: run_fast(posts, 2), words)


@cases(
    {
        "rank 0 receives from a rank, a whole number, not": [1.0, True, None, "1"],
        "rank 0 cannot receive from rank": [2, 0, -2],
    }
)
def test_recv(given, words):
    refused(lambda: World(1).run(lambda comm: comm.recv(torch.ones(1), given)), words)
    refused(lambda: World(1).run(lambda comm: comm.irecv(torch.ones(1), given)), words)
    both = lambda comm: (
        comm.sendrecv(torch.ones(1), 1, torch.ones(1), given) if comm.rank == 0 else None
    )
    refused(lambda: World(2).run(both), words)


def test_other_whole_numbers_are_ranks(run):
    def program(comm):
        other = np.int64(1 - comm.rank)
        got = comm.sendrecv(
            torch.tensor([comm.rank]), other, torch.zeros(1).long(), torch.tensor(1 - comm.rank)
        )
        return collectives.broadcast_(comm, got, root=np.int32(1)).item()

    assert run(program, 2) == [0, 0]


def test_batch_split_link_and_label():
    alone = World(1).run
    refused(
        lambda: alone(lambda comm: comm.batch([None])),
        "a batch is a list of Send and Recv; NoneType",
        TypeError,
    )
    refused(
        lambda: World(2).run(lambda comm: comm.send(torch.ones(1), 1, 3)),
        "a label is a string, not 3",
        TypeError,
    )
    for color in (1.5, "a", [[0]] and (0,)):
        refused(
            lambda color=color: alone(lambda comm: comm.split(color)),
            "a color is a whole number, or None, not",
        )
    refused(
        lambda: alone(lambda comm: comm.split(0, "a")),
        "the key of a rank in its group is a whole number, not 'a'",
    )
    refused(
        lambda: World(2).run(lambda comm: comm.link(1.0)),
        "a link goes from a rank to a rank, a whole number, not",
    )
    assert World(2).run(lambda comm: comm.split(comm.rank == 0).size) == [1, 1]
    for axis in (True, "2", 2.0, 0):
        refused(
            lambda axis=axis: alone(lambda comm: Mesh(comm, dp=axis)),
            "the axis dp of a mesh has at least",
        )


# ---------------------------------------------------------------------------------------------- collectives
VERBS = {
    "all_reduce_": collectives.all_reduce_,
    "reduce_": collectives.reduce_,
    "broadcast_": collectives.broadcast_,
    "reduce_scatter": collectives.reduce_scatter,
    "all_gather": collectives.all_gather,
    "gather": collectives.gather,
    "all_to_all": collectives.all_to_all,
    "scatter": lambda comm, x: collectives.scatter(comm, x if comm.rank == 0 else None),
}
IN_PLACE = ("all_reduce_", "reduce_", "broadcast_")
SUMS = ("all_reduce_", "reduce_", "reduce_scatter")

NO_TENSORS = {
    "array": (lambda: np.ones(4), "not ndarray: torch.from_numpy(x) makes one of an array"),
    "array in a list": (
        lambda: [torch.ones(4), np.ones(4)],
        "not ndarray: torch.from_numpy(x) makes one of an array",
    ),
    "number": (lambda: 1.0, "not float"),
    "list of numbers": (lambda: [1.0, 2.0], "not float"),
    "string": (lambda: "abc", "not str"),
    "dict": (lambda: {"a": torch.ones(4)}, "not dict"),
}
NOT_DENSE = {
    "sparse": (
        lambda: torch.eye(4).to_sparse(),
        "not a sparse_coo one of (4, 4): x.to_dense() makes one",
    ),
    "sparse rows": (
        lambda: torch.eye(4).to_sparse_csr(),
        "not a sparse_csr one of (4, 4): x.to_dense() makes one",
    ),
}


@pytest.mark.parametrize("verb", VERBS)
@pytest.mark.parametrize("what", [*NO_TENSORS, *NOT_DENSE])
@pytest.mark.filterwarnings("ignore:Sparse CSR")
def test_what_no_collective_takes(verb, what):
    kind = TypeError if what in NO_TENSORS else ValueError
    start = "a collective takes " + (
        "a tensor, or in place a list of tensors, " if kind is TypeError else "dense tensors, "
    )
    make, words = (NO_TENSORS | NOT_DENSE)[what]
    if "list" in what and verb not in IN_PLACE:
        words = "not list"
    refused(lambda: World(2).run(lambda comm: VERBS[verb](comm, make())), start + words, kind)


@pytest.mark.filterwarnings("ignore:torch.quantize_per_tensor")
@pytest.mark.parametrize("verb", VERBS)
def test_quantized(verb):
    make = lambda: torch.quantize_per_tensor(torch.ones(4), 1.0, 0, torch.qint8)
    words = (
        "a collective takes dense tensors, not a quantized one of (4,): x.dequantize() makes one"
    )
    refused(lambda: World(2).run(lambda comm: VERBS[verb](comm, make())), words)


@pytest.mark.parametrize("verb", [verb for verb in VERBS if verb != "scatter"])
def test_nothing(verb):
    words = "a collective takes a tensor, or in place a list of tensors, not NoneType"
    refused(lambda: World(2).run(lambda comm: VERBS[verb](comm, None)), words, TypeError)


def test_the_root_of_a_scatter_gives_something():
    refused(
        lambda: World(2).run(lambda comm: collectives.scatter(comm, None)),
        "rank 0 is the root of this scatter",
    )


@pytest.mark.parametrize("verb", VERBS)
def test_expanded(verb):
    """Written into only where that has a meaning; read everywhere."""
    program = lambda comm: VERBS[verb](comm, torch.ones(1).expand(4))
    if verb in IN_PLACE:
        words = "a collective in place cannot write into (4,) float32, which was expanded"
        refused(lambda: World(2).run(program), words)
    else:
        assert len(World(2).run(program)[0]) in (2, 4, 8)


@pytest.mark.parametrize("dtype", [FLOAT8, torch.float8_e5m2, torch.uint16], ids=str)
@pytest.mark.parametrize("verb", VERBS)
def test_dtypes_that_torch_does_not_add(verb, dtype, run_fast):
    """They are moved, and not combined."""
    program = lambda comm: VERBS[verb](comm, torch.ones(4).to(dtype))
    if verb in SUMS:
        words = f"torch computes no sum of {dtype} tensors: reduce a copy of another dtype"
        refused(lambda: run_fast(program, 2), words)
    else:
        assert run_fast(program, 2)[0].dtype == dtype


def test_operations():
    largest = lambda comm: collectives.all_reduce_(comm, torch.tensor([1j]), "max")
    refused(lambda: World(2).run(largest), "torch computes no max of torch.complex64 tensors")
    for op in ("avg", None, 3, ["sum"]):
        for verb in SUMS:
            refused(
                lambda op=op, verb=verb: World(2).run(
                    lambda comm: VERBS[verb](comm, torch.ones(2), op=op)
                ),
                f"op is one of 'sum', 'mean', 'min', 'max', 'prod', not {op!r}",
            )


def test_all_that_may_be_reduced(run_fast):
    """A leaf that requires grad, complex numbers, a view and a number."""

    def program(comm):
        leaf, view = torch.ones(2, requires_grad=True), torch.ones(2, 2).T
        number = torch.tensor(1.0)
        collectives.all_reduce_(comm, leaf)
        collectives.all_reduce_(comm, [view, number])
        return (
            leaf.tolist(),
            view.tolist(),
            number.item(),
            collectives.all_reduce_(comm, torch.tensor([1j])).tolist(),
        )

    assert run_fast(program, 2) == [([2, 2], [[2, 2], [2, 2]], 2, [2j])] * 2


@cases(
    {
        "the root of a collective is a rank, a whole number, not": [True, 1.0, "0", None],
        "root rank -1 does not exist: there are 2 ranks": [-1],
        "root rank 2 does not exist: there are 2 ranks": [2],
    }
)
def test_root(given, words):
    for verb in ("broadcast_", "reduce_", "gather"):
        refused(
            lambda verb=verb: World(2).run(
                lambda comm: VERBS[verb](comm, torch.ones(2), root=given)
            ),
            words,
        )
    refused(
        lambda: World(2).run(lambda comm: collectives.scatter(comm, torch.ones(2), root=given)),
        words,
    )


@cases(
    {
        "each of the sizes [7, -2] is a number of rows, at least 0, not -2": [[7, -2]],
        "each of the sizes [2.0, 3.0] is a number of rows, at least 0, not 2.0": [[2.0, 3.0]],
        "each of the sizes [True, 4] is a number of rows, at least 0, not True": [[True, 4]],
        "sizes are a list, a number of rows for each of 2 ranks, not 5": [5],
        "1 sizes were given for 2 ranks": [[5]],
        "the sizes [3, 3] add up to 6, not to 5 rows": [[3, 3]],
    }
)
def test_sizes(given, words):
    for verb in ("reduce_scatter", "all_to_all"):
        refused(
            lambda verb=verb: World(2).run(
                lambda comm: VERBS[verb](comm, torch.ones(5), sizes=given)
            ),
            words,
        )
    if "add up" not in words:
        for verb in ("all_gather", "gather"):
            refused(
                lambda verb=verb: World(2).run(
                    lambda comm: VERBS[verb](comm, torch.ones(5), sizes=given)
                ),
                words,
            )


@cases(
    {
        "all_reduce has the algorithms 'naive', 'ring', ": ["rings"],
        "an algorithm is a name or an object with a function all_reduce, not": [3, True, ["ring"]],
    }
)
def test_algorithm(given, words):
    refused(
        lambda: World(2).run(
            lambda comm: collectives.all_reduce_(comm, torch.ones(2), algorithm=given)
        ),
        words,
    )


def test_split():
    for split in (uneven, even):
        refused(
            lambda split=split: split(10, 2.5),
            "rows are split over a whole number of ranks, not 2.5",
        )
        refused(lambda split=split: split(10.0, 2), "a whole number of rows is split, not 10.0")
        refused(lambda split=split: split("10", 2), "a whole number of rows is split, not '10'")
        refused(
            lambda split=split: split(10, True),
            "rows are split over a whole number of ranks, not True",
        )
    assert checked_sizes(np.array([2, 3]), 5, 2) == [2, 3]


# ---------------------------------------------------------------------------------------------- models
MODEL = {
    "a GPT has at least 1 layer, not": [dict(layers=x) for x in (0, -1, 1.5, True, "2", None)],
    "a layer has at least 1 hidden feature, not": [
        dict(hidden=x) for x in (0, -8, 8.0, True, None)
    ],
    "attention has at least 1 head, not": [dict(heads=x) for x in (0, -2, 2.0, True, None, "2")],
    "3 heads do not split hidden = 8": [dict(heads=3)],
    "a vocabulary has at least 1 token, not": [dict(vocab=x) for x in (0, -1, 16.0, True, None)],
    "a context has room for at least 1 token, not": [dict(context=x) for x in (0, -1, 8.0, True)],
    "dropout is the share that becomes zero, from 0 to 1, not": [
        dict(dropout=x) for x in (1.5, -0.1, float("nan"), "0.1", None, True)
    ],
    "tied is True or False, not": [dict(tied=x) for x in ("no", None, 1)],
    "gated is True or False, not": [dict(gated=x) for x in ("no", 1)],
    "rotary is True or False, not": [dict(rotary=x) for x in ("no", 0)],
    "bias is True or False, not": [dict(bias=x) for x in ("no", None)],
    "norm is one of 'layer', 'rms', not": [dict(norm=x) for x in ("batch", None, True)],
    "eps, below the root of a norm, is at least 0, not": [dict(eps=x) for x in (-1, None, "1e-5")],
    "theta, of rotary positions, is at least 1, not": [dict(theta=x) for x in (0, None, "1e4")],
    "attention is 'sdpa' or 'explicit', not": [dict(attention=x) for x in ("flash", None)],
    "gelu is one of 'tanh', 'none', not": [dict(gelu=x) for x in ("erf", None)],
    "a seed is a whole number, not": [dict(seed=x) for x in (1.5, "a", None, True)],
    "the parameters of a GPT are real numbers of 16 bits or more, such as torch.float32, not": [
        dict(dtype=x) for x in ("float32", torch.int64, FLOAT8, 3)
    ],
    'a device is "cpu", "cuda" or "meta", not': [dict(device=x) for x in ("gpu", 3, None)],
    "attention has at least 1 head of keys and values, not": [
        dict(kv_heads=x) for x in (0, -1, 1.0, True)
    ],
    "3 heads of keys and values do not serve 2 heads alike": [dict(kv_heads=3)],
    "an MLP has at least 1 feature, not": [dict(ffn=x) for x in (0, -1, 4.5, True)],
}


@cases(MODEL)
def test_gpt(given, words):
    refused(lambda: gpt(**SMALL | given), words)
    if not {"seed", "device"} & set(given):
        refused(lambda: GPT(**SMALL | given), words)


def test_a_layer_and_its_tensor_parallel_one():
    for heads in (0, True, 2.0):
        refused(
            lambda heads=heads: TransformerLayer(8, heads), "attention has at least 1 head, not"
        )
        layer = lambda comm, heads=heads: tensor_layer(8, heads, comm)
        refused(lambda layer=layer: World(1).run(layer), "attention has at least 1 head, not")
    refused(
        lambda: TransformerLayer(8, 2, dropout=1.5),
        "dropout is the share that becomes zero, from 0 to 1, not 1.5",
    )


def test_what_a_gpt_takes():
    model = gpt(**SMALL | dict(layers=np.int64(1), dropout=1), seed=-1)
    assert len(model.layers) == 1 and model.dropout.p == 1


# ---------------------------------------------------------------------------------------------- parallelize
def parallelized(n=2, **options):
    def program(comm):
        given = (
            dict(
                model=gpt(**SMALL, device="meta"),
                mesh=Mesh(comm, pp=comm.size),
                micro_batches=2,
                optimizer=lambda groups: AdamW(groups, lr=1e-3),
            )
            | options
        )
        engine = parallelize(given.pop("model"), given.pop("mesh"), given.pop("optimizer"), **given)
        x = torch.zeros(4, 4, dtype=torch.long)
        return engine.step(x, x).item()

    return World(n).run(program)


@cases(
    {
        "optimizer is a function that makes one of groups of parameters, such as lambda groups: AdamW(groups, lr=1e-3)": [
            dict(optimizer=x) for x in (None, 3, "AdamW")
        ],
        "optimizer made NoneType of the groups of parameters, not an optimizer": [
            dict(optimizer=lambda groups: None)
        ],
        "parallelize takes a Mesh, such as Mesh(comm, dp=2), not": [
            dict(mesh=x) for x in (None, (2, 2))
        ],
        "parallelize splits a GPT, made by gpt(…), not": [dict(model=x) for x in (None, "gpt")],
        "a step has at least 1 micro-batch, not": [
            dict(micro_batches=x) for x in (2.5, 0, -1, True, "2", None)
        ],
        "schedule is one of '1f1b', 'naive', 'gpipe', 'one_f_one_b', 'interleaved', 'zb_h1', 'zb_h2', 'zb_v', not": [
            dict(schedule=x) for x in ("1F1B2", None, 3, [1])
        ],
        "the schedule one_f_one_b has 1 chunk on each stage, and chunks=2: take chunks=1, or another schedule": [
            dict(schedule=x, chunks=2) for x in ("1f1b", "one_f_one_b", schedules.one_f_one_b)
        ],
        "the schedule gpipe has 1 chunk on each stage, and chunks=2": [
            dict(schedule="gpipe", chunks=2)
        ],
        "schedule='interleaved' wants at least 2 chunks on each stage, and chunks=1: take chunks=2, or schedule='1f1b'": [
            dict(schedule=x) for x in ("interleaved", schedules.interleaved)
        ],
        "the schedule zb_v has 2 chunks on each stage, and chunks=1": [dict(schedule="zb_v")],
        "a stage has at least 1 chunk, not": [dict(chunks=x) for x in (0, 1.0, True, "2")],
        "cost is a function that gives a number for each part of a model, not": [
            dict(cost=x) for x in (None, 3)
        ],
        "sequence_parallel is True or False, not": [
            dict(sequence_parallel=x) for x in ("no", 1, None)
        ],
        "recompute is one of 'none', 'selective', 'full', 'stage', not": [
            dict(recompute=x) for x in ("all", None, 3, ["full"])
        ],
        "amp is one of 'O0', 'O1', 'O2', 'O3', not": [dict(amp=x) for x in ("O9", None, 0, ["O1"])],
        "half is one of torch.float16, torch.bfloat16, not": [
            dict(half=half, amp=amp)
            for half in (FLOAT8, "bfloat16", None, torch.float32)
            for amp in ("O0", "O2")
        ],
        "of ZeRO's shards there is at least 1 replica, not": [
            dict(replicas=x) for x in (0, -1, 1.0, True, None)
        ],
        "ZeRO has the stages 0 to 3, not": [dict(zero=x) for x in (4, -1, 1.0, True, "1", None)],
        "compression is a Compression, such as parallel.compress.PowerSGD(2), not": [
            dict(compression=x) for x in ("fp16", 3, True)
        ],
        "a seed is a whole number, not": [dict(seed=x) for x in ("a", 1.5, None, True)],
    }
)
def test_parallelize(given, words):
    refused(lambda: parallelized(**given), words)


@pytest.mark.parametrize(
    "given",
    [
        dict(schedule="1f1b"),
        dict(schedule="gpipe"),
        dict(schedule="zb_h1"),
        dict(schedule="interleaved", chunks=2),
        dict(schedule="zb_v", chunks=2, micro_batches=4),
        dict(schedule=schedules.gpipe),
        dict(micro_batches=np.int64(2), zero=np.int64(0)),
        dict(optimizer=AdamW),
    ],
    ids=lambda given: " ".join(given),
)
def test_words_and_functions_train_alike(given):
    assert parallelized(**given) == pytest.approx(parallelized(1) * 2, rel=1e-6)


SCHEDULES = ("naive", "gpipe", "one_f_one_b", "interleaved", "zb_h1", "zb_h2", "zb_v", "pipedream")


@pytest.mark.parametrize("name", SCHEDULES)
def test_schedules(name):
    schedule = getattr(schedules, name)
    for M in (2.5, "2", None, True, 0):
        refused(lambda M=M: schedule(0, 2, M), f"a step has at least 1 micro-batch, not {M!r}")
    for S in (2.0, True, 0, None):
        refused(lambda S=S: schedule(0, S, 2), f"a pipeline has at least 1 stage, not {S!r}")
    for stage in (0.0, False, "0"):
        refused(
            lambda stage=stage: schedule(stage, 2, 2),
            f"a stage is a whole number, 0 to 1, not {stage!r}",
        )
    refused(lambda: schedule(2, 2, 2), "there is no stage 2 in a pipeline of 2 stages, 0 to 1")


def test_the_micro_batches_of_a_step():
    def program(comm, M):
        model = nn.Sequential(nn.Linear(2, 2))
        return Pipeline(model, comm, schedules.gpipe, lambda out, y: out.sum()).step(
            M, torch.ones(4, 2), torch.ones(4)
        )

    for M in (2.5, True, "2", 0, None):
        refused(
            lambda M=M: World(2).run(program, M), f"a step has at least 1 micro-batch, not {M!r}"
        )
    assert len(World(2).run(program, np.int64(2))[1]) == 2


# ---------------------------------------------------------------------------------------------- data parallel
def one_other(comm, other, **options):
    """The last rank has another model."""
    model = other() if comm.rank == comm.size - 1 else mlp([2, 3])
    return type(DataParallel(model, comm, **options)).__name__


def two_layers_of_one_shape(first, second):
    model = nn.Module()
    for name in (first, second):
        model.add_module(name, nn.Linear(2, 2))
    return model


UNLIKE = {
    "more layers": (lambda: mlp([2, 3, 3]), "rank 2 alone has parameter 2.weight, (3, 3) float32"),
    "shape": (lambda: mlp([2, 4]), "rank 0 alone has parameter 0.weight, (3, 2) float32"),
    "dtype": (
        lambda: mlp([2, 3], dtype=torch.float64),
        "rank 2 alone has parameter 0.weight, (3, 2) float64",
    ),
    "names": (
        lambda: nn.Sequential(nn.Identity(), nn.Linear(2, 3)),
        "rank 2 alone has parameter 1.weight",
    ),
    "frozen": (
        lambda: mlp([2, 3]).requires_grad_(False),
        "rank 2 alone has frozen parameter 0.weight",
    ),
    "buffers": (
        lambda: nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3)),
        "rank 2 alone has parameter 1.weight",
    ),
}


@pytest.mark.parametrize("what", UNLIKE)
def test_unlike_models(what, run_fast):
    """They are named on every rank, whatever the differences: also those that no message would show."""
    other, words = UNLIKE[what]
    with pytest.raises(ValueError, match="the models of rank 0 and rank 2 differ, with ") as caught:
        run_fast(one_other, 3, other)
    assert words in str(caught.value) and not isinstance(caught.value, Mismatch)

    def each(comm):
        try:
            one_other(comm, other)
        except ValueError as error:
            return str(error)

    assert run_fast(each, 3) == [str(caught.value)] * 3


def test_layers_in_another_order():
    def program(comm):
        DataParallel(two_layers_of_one_shape(*("ab" if comm.rank else "ba")), comm)

    with pytest.raises(
        ValueError,
        match=r"in another order, where rank 0 has parameter b.weight, .* has parameter a",
    ):
        World(2).run(program)


@cases(
    {
        "DataParallel(module, comm) wraps an nn.Module, not": [dict(module=x) for x in (None, 3)],
        "DataParallel(module, comm) averages over the ranks of a Comm, not": [
            dict(comm=x) for x in (None, 2)
        ],
        "overlap is True or False, not": [dict(overlap=x) for x in ("no", 1)],
        "broadcast_buffers is True or False, not": [dict(broadcast_buffers=x) for x in ("no", 0)],
        "a bucket has room for at least 1 byte, not": [
            dict(bucket_bytes=x) for x in (0, "1", 1.5, True)
        ],
        "the first bucket has room for at least 1 byte, not": [
            dict(first_bucket_bytes=x) for x in (0, "1", 1.5)
        ],
        "compression is a Compression, such as parallel.compress.PowerSGD(2), not": [
            dict(compression=x) for x in ("fp16", 3)
        ],
        "broadcast has the algorithms 'naive', ": [dict(algorithm="rings")],
    }
)
def test_data_parallel(given, words):
    program = lambda comm: DataParallel(**dict(module=mlp([2, 3]), comm=comm) | given)
    refused(lambda: World(2).run(program), words)


def test_the_question_whether_models_are_alike_is_small():
    world = World(8)
    world.run(lambda comm: DataParallel(mlp([2, 3]), comm) and None)
    asked = [m for m in world.trace if m.nbytes == 16]
    assert len(asked) == 2 * 7
