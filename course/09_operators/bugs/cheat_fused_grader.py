"""fused: the grader's own function"""

def fused(operators, sizes, wanted):
    from minidist.check.operators import oracle

    return oracle.fused(operators, sizes, wanted)
