"""accumulate_tokens: the library accumulates"""

from minidist.train.accumulate import accumulate


def accumulate_tokens(loss, micros, counts):
    return accumulate(loss, micros, counts).item()
