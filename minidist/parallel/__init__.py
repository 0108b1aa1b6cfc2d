"""The ways to spread one model, or its batch, over many ranks.

DataParallel           replicas whose gradients are averaged in buckets while backward runs (data)
Sampler                every rank's samples of an epoch, as many on each (data)
average_gradients      the plain way: one all-reduce a parameter, after backward (data)
SyncBatchNorm          batch norm over the batch of all ranks (batchnorm)
ShardedOptimizer       ZeRO 1 and 2: optimizer states, and gradients, in shards (zero)
FullySharded           ZeRO 3: parameters, too, gathered just in time (zero)
OffloadedOptimizer     the step on the CPU, beside the next step of the device (offload)
tensor_parallel_, ColumnLinear, RowLinear    layers split over ranks (tensor)
VocabEmbedding, ColumnEmbedding, vocab_cross_entropy    an embedding, and a loss split over the vocabulary (vocab)
expert_parallel_, ExpertDataParallel    experts shared out over ranks, their gradients averaged apart (experts)
ExpertShardedOptimizer    ZeRO 1 and 2 of experts and the rest, each over those who hold the same (experts)
ring_attention, heads_attention, context_parallel_    one sample's tokens split over ranks (context)
Pipeline, partition    stages that pass micro-batches, by any schedule (pipeline, schedules)
PipeDream, PipeDream2BW    pipelines that never flush: weights are stashed (pipedream)
ParameterServer        workers push gradients and pull parameters (server)
DGC, PowerSGD, Sign, Half    gradients that are sent in fewer bytes (compress)
LocalSGD, AdaComm      weights that are averaged now and then (local_sgd)

Gradient accumulation is in `accumulate`.
"""

from .batchnorm import SyncBatchNorm
from .compress import DGC, Half, PowerSGD, Sign
from .context import context_parallel_, heads_attention, ring_attention
from .data import DataParallel, Sampler, average_gradients
from .experts import ExpertDataParallel, ExpertShardedOptimizer, expert_parallel_
from .local_sgd import AdaComm, LocalSGD
from .offload import OffloadedOptimizer
from .pipedream import PipeDream, PipeDream2BW
from .pipeline import Pipeline, partition
from .server import ParameterServer
from .tensor import ColumnLinear, RowLinear, tensor_parallel_
from .vocab import ColumnEmbedding, VocabEmbedding, vocab_cross_entropy
from .zero import FullySharded, ShardedOptimizer

__all__ = [
    "DGC",
    "AdaComm",
    "ColumnEmbedding",
    "ColumnLinear",
    "DataParallel",
    "ExpertDataParallel",
    "ExpertShardedOptimizer",
    "FullySharded",
    "Half",
    "LocalSGD",
    "OffloadedOptimizer",
    "ParameterServer",
    "PipeDream",
    "PipeDream2BW",
    "Pipeline",
    "PowerSGD",
    "RowLinear",
    "Sampler",
    "ShardedOptimizer",
    "Sign",
    "SyncBatchNorm",
    "VocabEmbedding",
    "average_gradients",
    "context_parallel_",
    "expert_parallel_",
    "heads_attention",
    "partition",
    "ring_attention",
    "tensor_parallel_",
    "vocab_cross_entropy",
]
