"""What the papers say of versions: how many a stage holds, how stale its gradients are. No list is looked at.

                     versions of stage s     staleness             one version for all stages
    stashing         S − s                   S − 1 − s             no
    vertical sync    S                       S − 1                 yes
    2BW              2                       1                     yes
    no stashing      1                       S − 1 − s             not even for a stage: wrong

With stashing, stage s computes forward and backward of a micro-batch with the same weights, but other stages use
weights of another age for it; with vertical sync all use those that stage 0 had. Memory: versions times the bytes of
the stage's weights: over equal stages S(S+1)/2 of them with stashing, S² with vertical sync, 2S with 2BW.

Sources: Narayanan et al. 2019, "PipeDream", section 3.3; Narayanan et al. 2021, "Memory-Efficient Pipeline-Parallel
DNN Training", section 3.1.
"""

from __future__ import annotations


def most_versions(rule: str, stage: int, S: int) -> int:
    """Versions of the weights that a stage holds at most, the newest among them, in a run that is long enough.

    rule: "stash", "vertical", "2bw" or "no stash". Long enough: 2(S − stage − 1) micro-batches with stashing,
    2(S − 1) with vertical sync, two groups with 2BW.
    Raises ValueError for another name, and for a stage that is not there.
    """
    return _row(rule, stage, S)[0]


def most_stale(rule: str, stage: int, S: int) -> int:
    """Updates between the weights that a micro-batch's forward used and those its gradient was added to, at most.

    The first S − 1 micro-batches of a run (with 2BW: the first group) are less stale. Errors: as `most_versions`.
    """
    return _row(rule, stage, S)[1]


def version_bytes(rule: str, stage: int, S: int, nbytes: int) -> int:
    """Memory of all versions of a stage whose weights take `nbytes`, the newest among them."""
    return most_versions(rule, stage, S) * nbytes


def _row(rule: str, stage: int, S: int) -> tuple[int, int]:
    if not 0 <= stage < S:
        raise ValueError(f"there is no stage {stage} in a pipeline of {S} stages, 0 to {S - 1}")
    rows = {
        "stash": (S - stage, S - 1 - stage),
        "vertical": (S, S - 1),
        "2bw": (2, 1),
        "no stash": (1, S - 1 - stage),
    }
    if rule not in rows:
        raise ValueError(f"there is a formula for {', '.join(rows)}, not for {rule!r}")
    return rows[rule]
