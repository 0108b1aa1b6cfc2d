"""Models that know of no parallelism.

    mlp                    linear layers with ReLU between them
    gpt, TransformerLayer  a GPT-2, and one of its layers alone; by options what came later
    rotated                queries and keys turned by their positions
    resnet                 a convolutional network with batch norm
    sequence               a GPT as nn.Sequential of its parts, to be cut into stages
    seeded_, initial_      initial values that do not depend on how a model is split

Every model is built on any device. On "meta" it has shapes and no numbers, so that GPT-3 costs nothing.
"""

from minidist.models.gpt import GPT, TransformerLayer, gpt, next_token_loss
from minidist.models.mlp import mlp
from minidist.models.resnet import ResNet, resnet
from minidist.models.rotary import rotated
from minidist.models.seeds import generator, initial, initial_, seeded_
from minidist.models.sequence import sequence, stage_of

__all__ = [
    "GPT",
    "ResNet",
    "TransformerLayer",
    "generator",
    "gpt",
    "initial",
    "initial_",
    "mlp",
    "next_token_loss",
    "resnet",
    "rotated",
    "seeded_",
    "sequence",
    "stage_of",
]
