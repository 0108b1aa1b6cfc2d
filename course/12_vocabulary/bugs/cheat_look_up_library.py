"""look_up: the library's embedding does it"""

from minidist.parallel.vocab import VocabEmbedding


def look_up(comm, rows, tokens, vocab):
    embedding = VocabEmbedding(vocab, rows.shape[1], comm, dtype=rows.dtype)
    embedding.weight.data.copy_(rows)
    return embedding(tokens).detach()
