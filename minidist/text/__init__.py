"""Text to train a language model on: documents, their tokens, and batches of them in an order that can be resumed.

documents       the Python language reference, or text files
Bytes, BPE      a text as numbers, and back
packed, split   all documents in one row of tokens; the last part kept apart
Samples         equal pieces of it, shuffled in each epoch; where a run is in them is one number
"""

from .documents import documents
from .samples import Samples, packed, split
from .tokens import BPE, Bytes, tokenizer

__all__ = ["BPE", "Bytes", "Samples", "documents", "packed", "split", "tokenizer"]
