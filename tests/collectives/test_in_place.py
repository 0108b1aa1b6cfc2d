"""In place, with every algorithm, for chunks that lie beside each other and for those that do not."""

import pytest
import torch

from minidist.collectives import all_gather_, reduce_scatter_
from minidist.comm import World, launch

LENGTHS = [(3, 3, 3, 3, 3), (4, 0, 7, 1, 2), (0, 0, 5, 0, 0), (0, 0, 0, 0, 0)]
ALGORITHMS = ["naive", "ring", "pipelined", "halving_doubling", "hierarchical", "auto"]


def chunks_of(rank, lengths, apart):
    """Numbers of a rank, small whole ones, which any order of additions sums exactly."""
    flat = torch.randint(
        -9, 9, (sum(lengths),), generator=torch.Generator().manual_seed(rank)
    ).double()
    chunks = list(flat.split(list(lengths)))
    return [chunk.clone() for chunk in chunks] if apart else chunks


def check(comm, algorithm):
    """What was wrong."""
    n = comm.size
    r = comm.rank
    wrong = []
    for lengths in LENGTHS:
        lengths = lengths[:n]
        for apart in (False, True):
            everyone = [chunks_of(rank, lengths, apart) for rank in range(n)]
            summed = sum(chunks[r] for chunks in everyone)
            for op, want in (("sum", summed), ("mean", summed / n)):
                chunks = chunks_of(r, lengths, apart)
                mine = chunks[r]
                reduce_scatter_(comm, chunks, op, algorithm)
                if not (mine is chunks[r] and torch.equal(mine, want)):
                    wrong.append((op, lengths, apart, r, mine, want))
            chunks = [
                chunk if i == r else torch.full_like(chunk, torch.nan)
                for i, chunk in enumerate(chunks_of(r, lengths, True))
            ]
            if not apart:
                chunks = list(torch.cat(chunks).split(list(lengths)))
            all_gather_(comm, chunks, algorithm)
            if not all(torch.equal(chunks[i], everyone[i][i]) for i in range(n)):
                wrong.append(("all_gather_", lengths, apart, r, chunks))
    return wrong


@pytest.mark.parametrize(
    ("n", "algorithm"),
    [
        (1, "ring"),
        (2, "ring"),
        (4, "ring"),
        (5, "ring"),
        (1, "naive"),
        *((3, algorithm) for algorithm in ALGORITHMS),
    ],
)
def test_world(n, algorithm):
    assert World(n).run(check, algorithm) == [[]] * n


@pytest.mark.parametrize(
    ("algorithm", "transport"), [("ring", "shm"), ("halving_doubling", "shm"), ("native", "gloo")]
)
def test_processes(algorithm, transport):
    assert launch(check, 3, algorithm, transport=transport) == [[]] * 3


@pytest.mark.parametrize("apart", [False, True])
@pytest.mark.parametrize("n", [1, 2, 4])
def test_messages_and_memory(n, apart):
    """In a ring each sends n−1 messages of a chunk. A sum needs room for one chunk beside, an all-gather nothing."""

    def program(comm, run):
        chunks = list(torch.empty(0 if apart else 1200, device="meta").split(1200 // n))
        if apart:
            chunks = [torch.empty(1200 // n, device="meta") for _ in range(n)]
        run(comm, chunks)

    for run, room in ((all_gather_, 0), (reduce_scatter_, 4800 // n if n > 1 else 0)):
        world = World(n, device="meta", meter=True)
        world.run(program, run)
        for rank in range(n):
            assert world.trace.messages(rank) == n - 1
            assert world.trace.bytes_sent(rank) == 4800 * (n - 1) // n
            assert world.trace.memory[rank].peak == 4800 + room


def test_wrong_chunks():
    def program(comm, chunks):
        reduce_scatter_(comm, chunks)

    for chunks, message in (
        ([torch.ones(2)], "1 chunks were given for 2 ranks"),
        ([torch.ones(2), torch.ones(1, 2)], r"chunk 1 is \(1, 2\)"),
        ([torch.ones(2), torch.ones(4)[::2]], r"chunk 1 is \(2,\) .* strides \(2,\)"),
        ([torch.ones(2), torch.ones(2).half()], "chunk 1 is .*float16"),
    ):
        with pytest.raises(ValueError, match=message):
            World(2).run(program, chunks)
