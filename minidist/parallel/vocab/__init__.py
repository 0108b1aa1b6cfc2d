"""A vocabulary split over ranks: the embedding, the projection tied to it, and the loss on split logits."""

from .cross_entropy import gathered_cross_entropy, vocab_cross_entropy
from .embedding import VocabEmbedding

__all__ = ["VocabEmbedding", "gathered_cross_entropy", "vocab_cross_entropy"]
