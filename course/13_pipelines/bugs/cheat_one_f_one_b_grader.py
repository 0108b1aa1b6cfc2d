"""one_f_one_b: the grader makes lists, too: they are GPipe's"""

def one_f_one_b(stage, S, M):
    from minidist.check.pipelines.oracle import words

    return words("gpipe", stage, S, M)
