"""split_loss: the library's cross-entropy does it"""

from minidist.parallel.vocab import vocab_cross_entropy


def split_loss(comm, part, targets, vocab):
    losses = vocab_cross_entropy(part, targets, comm, vocab, reduction="none")
    return losses, losses
