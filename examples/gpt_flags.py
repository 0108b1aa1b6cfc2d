"""The flags of train_gpt.py: grid, model, text, training, and what a run leaves behind."""

import argparse
from functools import partial
from pathlib import Path

import torch
from settings import at_least

from minidist.checkpoint.huggingface import Pretrained
from minidist.collectives.verbs import ALGORITHMS
from minidist.parallel.compress import Half, PowerSGD, Sign
from minidist.parallel.context import WAYS
from minidist.parallelize import RECOMPUTE, SCHEDULES
from minidist.text import Bytes
from minidist.train.amp import LEVELS
from minidist.train.fp8 import GRAINS

COMPRESSIONS = {
    "fp16": Half,
    "bf16": partial(Half, torch.bfloat16),
    "sign": Sign,
    "powersgd": partial(PowerSGD, 2),
}


def flags_of(flags: argparse.ArgumentParser) -> argparse.ArgumentParser:
    """`flags` with those of the trainer."""
    # what only --weights says: see `of_weights`
    flags.set_defaults(dtype="float32", gelu="tanh", eps=1e-5, theta=10_000.0, room=None)
    grid(flags.add_argument_group("grid"))
    model(flags.add_argument_group("model"))
    training(flags.add_argument_group("training"))
    kept(flags.add_argument_group("what is kept"))
    return flags


def grid(flags) -> None:
    flags.add_argument(
        "--dp", type=at_least(1), help="data ranks; what pp, cp and tp leave, unless given"
    )
    flags.add_argument("--pp", type=at_least(1), default=1, help="pipeline stages")
    flags.add_argument("--tp", type=at_least(1), default=1, help="tensor ranks")
    flags.add_argument(
        "--ep",
        type=at_least(1),
        default=1,
        help="ranks that share out the experts, each with samples",
    )
    flags.add_argument(
        "--cp", type=at_least(1), default=1, help="ranks that share the tokens of a sample"
    )
    flags.add_argument(
        "--context-parallel",
        choices=WAYS,
        default="zigzag",
        help="how their attention sees all tokens: a ring in an order, or all-to-alls on heads",
    )
    flags.add_argument(
        "--order",
        help="axes from the outside in; pp dp ep cp tp, those that there are, unless given",
    )
    flags.add_argument(
        "--zero", type=int, choices=range(4), default=0, help="ZeRO's stage, over the data ranks"
    )
    flags.add_argument(
        "--replicas",
        type=at_least(1),
        default=1,
        help="of ZeRO's shards (hybrid sharding): as many as there are nodes, to shard within each",
    )
    flags.add_argument("--schedule", choices=[*SCHEDULES], default="one_f_one_b")
    flags.add_argument(
        "--chunks", type=at_least(1), default=1, help="of each stage, for interleaved and zb_v"
    )
    flags.add_argument(
        "--sequence-parallel",
        action="store_true",
        help="tensor ranks divide norms and dropout, too",
    )
    flags.add_argument("--recompute", choices=RECOMPUTE, default="none")
    flags.add_argument(
        "--compression", choices=COMPRESSIONS, help="of gradients between data ranks, with --zero 0"
    )
    flags.add_argument(
        "--algorithm",
        choices=[*ALGORITHMS, "auto", "native"],
        help="of collectives; native under NCCL, else ring",
    )


def model(flags) -> None:
    flags.add_argument("--layers", type=at_least(1), default=4)
    flags.add_argument("--hidden", type=at_least(1), default=128)
    flags.add_argument("--heads", type=at_least(1), default=4)
    flags.add_argument("--kv-heads", type=at_least(1), help="fewer heads of keys and values")
    flags.add_argument(
        "--ffn", type=at_least(1), help="features of an MLP; 4 times hidden unless given"
    )
    flags.add_argument("--mlp", choices=["gelu", "swiglu"], default="gelu")
    flags.add_argument("--experts", type=at_least(1), help="MLPs in every second layer")
    flags.add_argument("--top-k", type=at_least(1), help="experts of a token; 2 unless given")
    flags.add_argument(
        "--capacity",
        type=at_least(0, float),
        help="of an expert, in even shares of a sample's tokens; the rest is dropped",
    )
    flags.add_argument("--positions", choices=["learned", "rotary"], default="learned")
    flags.add_argument("--norm", choices=["layer", "rms"], default="layer")
    flags.add_argument(
        "--bias", action=argparse.BooleanOptionalAction, default=True, help="of linear layers"
    )
    flags.add_argument(
        "--weights",
        type=Path,
        metavar="FOLDER",
        help="begin with a GPT-2 or LLaMA in Hugging Face's layout, whose config.json says the model",
    )
    flags.add_argument("--attention", choices=["sdpa", "explicit"], default="sdpa")
    flags.add_argument("--context", type=at_least(1), default=128, help="tokens of a sample")
    flags.add_argument("--dropout", type=at_least(0, float, below=1), default=0.0)
    flags.add_argument(
        "--tied",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="embedding and projection",
    )


def of_weights(args: argparse.Namespace) -> None:
    """The model's shape as the folder of --weights has it, whatever the flags say."""
    options = Pretrained(args.weights).options
    args.mlp = "swiglu" if options["gated"] else "gelu"
    args.positions = "rotary" if options["rotary"] else "learned"
    # of the model: a sample has --context tokens, and a text its own number of them
    args.room = [options["vocab"], options["context"]]
    for name in ("layers", "hidden", "heads", "kv_heads", "ffn", "norm", "bias", "eps", "tied"):
        setattr(args, name, options[name])
    for name in options.keys() & {"gelu", "theta"}:
        setattr(args, name, options[name])


def training(flags) -> None:
    flags.add_argument(
        "--text",
        nargs="+",
        default=[],
        metavar="PATH",
        help="files; Python's reference unless given",
    )
    flags.add_argument(
        "--vocab", type=at_least(Bytes.size), help="learn byte pairs, so many tokens; else bytes"
    )
    flags.add_argument(
        "--apart",
        type=at_least(0, float, below=1),
        default=0.05,
        help="share of the text that is only evaluated",
    )
    flags.add_argument("--steps", type=at_least(0), default=200)
    flags.add_argument(
        "--batch",
        type=at_least(1),
        default=16,
        help="samples of a step, on all data ranks together",
    )
    flags.add_argument(
        "--micro-batches", type=at_least(1), default=1, help="of each data rank's part of a batch"
    )
    flags.add_argument("--lr", type=at_least(0, float), default=1e-3)
    flags.add_argument("--warm-up", type=at_least(0), default=20, help="steps")
    flags.add_argument(
        "--floor", type=float, default=0.1, help="of the learning rate, where the cosine ends"
    )
    flags.add_argument(
        "--decay",
        type=at_least(0, float),
        default=0.1,
        help="of weights, but not of biases and norms",
    )
    flags.add_argument("--clip", type=float, default=1.0, help="the gradient's norm")
    flags.add_argument("--amp", choices=list(LEVELS), default="O0")
    flags.add_argument("--half", choices=["bfloat16", "float16"], default="bfloat16")
    flags.add_argument(
        "--tf32", action="store_true", help="products in fp32 read 10 bits of fraction on a GPU"
    )
    flags.add_argument(
        "--fp8",
        choices=list(GRAINS),
        help="layers multiply in 8 bits, scaled so; the rest as --amp says",
    )
    flags.add_argument("--seed", type=int, default=0)


def kept(flags) -> None:
    flags.add_argument(
        "--folder", type=Path, help="checkpoints, log.jsonl, TensorBoard's events; a run goes on"
    )
    flags.add_argument(
        "--export",
        type=Path,
        metavar="FOLDER",
        help="a new folder for the model in the end, in Hugging Face's layout; wants --folder",
    )
    flags.add_argument("--save-every", type=at_least(1), default=100, help="steps")
    flags.add_argument("--keep", type=at_least(1), default=2, help="checkpoints")
    flags.add_argument("--evaluate-every", type=at_least(1), default=100, help="steps")
    flags.add_argument(
        "--sample", type=at_least(0), default=0, metavar="TOKENS", help="to write at the end"
    )
    flags.add_argument("--prompt", default="The ", help="what the sample begins with")
    flags.add_argument(
        "--temperature", type=at_least(0, float), default=0.8, help="0: the most likely token"
    )
    flags.add_argument(
        "--profile",
        type=at_least(0),
        default=0,
        metavar="STEPS",
        help="to record after the first: two traces for Perfetto in the folder, ours and PyTorch's",
    )
    flags.add_argument(
        "--peak",
        type=at_least(0, float),
        metavar="TFLOPS",
        help="of a device, for MFU; looked up or measured",
    )
