"""The exercise of lesson 16 in which numbers are foretold: bytes of each way to talk less, and when it pays."""

from __future__ import annotations

from ..exam import ask
from ..prediction import ALL, HALF, NUMBERS, Prediction


class PredictTalkLess(Prediction):
    name = "predict_talk_less"


def talk_less_slips(
    n: int, psi: float, share: float, H: int, steps: int, side: int, rank: int, speed: float
) -> tuple[dict, dict]:
    """Bytes of a rank in a step: dense, sparse, 16 bits; of a run of Local SGD; numbers of two thin matrices; seconds
    of a dense step on the wire; from how many ranks on a sparse step sends as much as a dense one."""
    ring, k = 2 * (n - 1) / n, psi * share
    dense = ring * 4 * psi
    sparse = (n - 1) * 6 * k
    run = steps / H * ring * 4 * psi
    thin = 2 * side * rank
    values = {
        "dense": dense,
        "sparse": sparse,
        "half": dense / 2,
        "local": run,
        "thin": thin,
        "seconds": dense / speed,
        "crossing": 8 / (6 * share),
    }
    slips = {
        "dense": {
            ring * psi: NUMBERS,
            dense / 2: HALF,
            8 * psi: "Nearly: the factor is 2(n−1)/n.",
            n * dense: ALL,
            4 * psi: "An all-reduce has two halves, each (n−1)/n of the bytes.",
        },
        "sparse": {
            (n - 1) * 4 * k: "A number needs its place, too: 6 bytes.",
            6 * k: "It goes to n − 1 others.",
            n * sparse: ALL,
            ring * 6 * k: "Sparse vectors are gathered, not reduced: each goes to all others.",
            (n - 1) * 6 * psi * (1 - share): "Those are the ones that are not sent.",
            (n - 1) * k: NUMBERS,
            n * 6 * k: "It sends nothing to itself.",
        },
        "half": {dense: "Half of the bits.", dense / 4: "16 bits are two bytes."},
        "local": {
            run * H: "That is a message in every step: here it is one in H.",
            run / ring * 2: "Times 2(n−1)/n.",
            dense: "That is one average: how many are there?",
            n * run: ALL,
            run / 4: NUMBERS,
            dense / H: "That is for one step: how many are there?",
        },
        "thin": {
            side * rank: "There are two of them, P and Q.",
            side * side: "That is the whole matrix.",
            2 * side: f"Of rank {rank}.",
            8 * side * rank: "Numbers are asked for.",
        },
        "seconds": {
            dense / speed * 8: "The link has bits a second: that was divided by 8 already.",
            4 * psi / speed: "An all-reduce sends 2(n−1)/n of the bytes.",
        },
        "crossing": {
            1 / share: "A number needs 6 bytes for 4; and an all-reduce sends it twice.",
            4 / (6 * share): "An all-reduce has two halves.",
            2 / share: "A number needs its place: 6 for 4.",
        },
    }
    return values, slips


def predict_talk_less(dense, sparse, half, local, thin, seconds, crossing) -> None:
    """8 ranks, 10 million weights in fp32, 0.1 % sent at 6 bytes each, 1,000 steps with H = 10, a matrix of 1,000 ×
    1,000 at rank 4, a link of 100 Mbit/s."""
    values, slips = talk_less_slips(8, 10e6, 0.001, 10, 1000, 1000, 4, 12.5e6)
    exam = PredictTalkLess(
        list(values), values, slips, "Bytes, numbers, seconds and ranks, within 1 %."
    )
    ask(exam, dense, sparse, half, local, thin, seconds, crossing)
