"""The planner's rows: what it predicts of each published run, and the best grids for a few models and machines."""

from minidist.study.plan import DECISIONS, TABLES, errors, plan
from tests.record.record import rounded

PLANS = [
    ("gpt3-175b", "h100:128x8", 1536),
    ("llama-65b", "a100:64x8", 1024),
    ("gpt2-1.5b", "a100:1", 512),
]


def rows():
    """{"table, run": published and predicted}, {"model on cluster": the best grid and what it costs}."""
    found = {}
    for table in TABLES:
        for row in errors(table).rows:
            found[f"{table}, {row.name}"] = [
                row.seconds,
                rounded(row.predicted.step.total),
                row.nbytes,
                row.predicted.total,
            ]
    for model, cluster, batch in PLANS:
        best = plan(model, cluster, batch)
        grid = {decision: getattr(best.best.grid, decision) for decision in DECISIONS}
        step = {part: rounded(seconds) for part, seconds in best.best.step.parts.items()}
        rivals = [
            [
                one.decision,
                str(one.value),
                rounded(one.estimate.step.total),
                one.estimate.total,
                one.why,
            ]
            for one in best.rivals
        ]
        found[f"{model} on {cluster}, {batch}"] = [grid, step, best.best.total, rivals]
    return found
