"""ZB-V: no bubble with 1F1B's memory, by laying the model into the pipeline as a V.

Each stage has two chunks: the model goes down the stages and up again, so the first stage holds its first part and its
last. A micro-batch is back at stage 0 for its loss, and the first backward begins there at once: its activations live
shorter where 1F1B keeps them longest. Every stage keeps 2S chunks, the memory of S micro-batches.

    S = 2    stage 0  F0 F1 F2 F0.1 I0.1 W0.1 F1.1 …      part 0, and part 3 as chunk 1
             stage 1  .  F0 F0.1 F1 F1.1 I0.1 …           part 1, and part 2 as chunk 1

If F, I and W take equal times no stage waits from its first action to its last; W's stand right behind their I, but for
the last `stage` micro-batches, whose W's fill the end.
Sources: Qi et al. 2023, "Zero Bubble Pipeline Parallelism", section 6; Qi et al. 2024, "Pipeline Parallelism with
Controllable Memory", section 3.
"""

from __future__ import annotations

from collections import Counter

from .action import Action, check


def zb_v(stage: int, S: int, M: int) -> list[Action]:
    """ZB-V, for two chunks a stage placed as a "V". Keeps at most 2S chunks' activations on every stage."""
    check(stage, S, M)
    # micro-batches that fill the pipeline; of fewer, the order of a full one
    full = max(M, 2 * S - 1)
    down, up = S - stage, stage
    order = ["F0"] * (2 * down - 1) + ["F1", "F0"] * up + ["F1", "I1", "W1"] * down
    order += ["F0", "I0", "W0", "F1", "I1", "W1"] * (full - 2 * S + stage + 1)
    order += ["I0", "W0", "F1", "I1", "W1"] * (down - 1) + ["I0", "I1"] * up + ["I0", "W0"] * down
    order += ["W1"] * up + ["W0"] * up
    seen, actions = Counter(), []
    for word in order:
        actions.append(Action(word[0], seen[word], int(word[1])))
        seen[word] += 1
    return [action for action in actions if action.micro < M]
