"""run_pipedream: the library has it"""

from minidist.parallel.pipedream import PipeDream


def run_pipedream(down, up, part, words, xs, ys, loss_fn, rate):
    PipeDream(part, down, lambda p: torch.optim.SGD(p, lr=rate), loss_fn).run(list(zip(xs, ys)))
