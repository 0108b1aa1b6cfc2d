"""Where the memory goes: calculators with integer bytes, and what they leave out.

    states              parameters, gradients, optimizer states; ZeRO         largest   the model that fits
    activations         of one layer, the paper's formula                     logits, in_flight, embedding…
    saved, saved_layer  what autograd keeps of models.gpt, ours beside the paper's; saved_mlp, saved_resnet
    peak                of a step of models.gpt                               per_rank  for any Grid
    Transformer         its parameters, flops; mfu, hfu, run_cost
    Allocator           a simulated caching allocator; record, replay, blocks

Letters: B batch, T tokens, H hidden, V vocabulary, L layers, Ψ parameters; the papers' b, s, h, v, l or L. `tensor`
is their t, `pipeline` their p, `interleave` their m or v. Bytes are integers; GB = 10⁹, GiB = 2³⁰.
"""

from minidist.study.memory.activations import (
    activations,
    embedding_activations,
    in_flight,
    logits,
    output_activations,
    rough,
    scores,
    selective_saving,
)
from minidist.study.memory.allocator import Allocator, Block, OutOfMemory
from minidist.study.memory.blocks import blocks
from minidist.study.memory.convnet import saved_mlp, saved_resnet
from minidist.study.memory.cost import (
    RunCost,
    energy,
    flops_per_token,
    hfu,
    implied_mfu,
    mfu,
    run_cost,
    training_flops,
    utilization,
)
from minidist.study.memory.fragments import CARD, backward_in_pieces
from minidist.study.memory.grid import Grid, PerRank, per_rank, rank_parameters
from minidist.study.memory.items import GB, MB, TB, GiB, Item, Items, MiB, TiB, listing
from minidist.study.memory.peak import Peak, peak
from minidist.study.memory.record import Recording, record, replay
from minidist.study.memory.saved import saved, saved_layer
from minidist.study.memory.states import States, fused_gradients, largest, per_parameter, states
from minidist.study.memory.transformer import (
    Transformer,
    attention_flops,
    embedding_parameters,
    flops,
    forward_flops,
    layer_parameters,
    output_parameters,
    parameter_tensors,
    parameters,
    published_hardware_flops,
    sc21_parameters,
)
