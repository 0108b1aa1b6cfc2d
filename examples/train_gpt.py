"""Train a GPT on text, on a grid of ranks: data, expert, pipeline, context and tensor parallel, with ZeRO, in three worlds.

    python examples/train_gpt.py --ranks 1                                            # the serial run
    python examples/train_gpt.py --ranks 8 --dp 2 --pp 2 --tp 2 --runner processes
    python examples/train_gpt.py --ranks 4 --cp 4 --context 1024                      # a sample's tokens on 4 ranks
    torchrun --nproc-per-node 8 examples/train_gpt.py --dp 2 --pp 2 --tp 2 --zero 1 --folder runs/one
    torchrun … examples/train_gpt.py --config examples/train_gpt.toml
    torchrun … examples/train_gpt.py --weights gpt2 --folder runs/two --export tuned  # to and from Hugging Face's layout

All grids print the same losses, to rounding. With --folder the run saves there, and the same command goes on where it
was, on this grid or another; flags that are others now count from there on. One run at a time works in a folder. There
Ctrl-C saves and ends; a second one, two seconds later, ends at once.
"""

import contextlib
import math
import os
import time

import torch
from alone import alone
from gpt_flags import COMPRESSIONS, flags_of, of_weights
from logs import Log, lines
from profiled import Profile
from started import INTERRUPTED, Refused, ended, parsed, parser, run, same_losses, say
from stop import Stop, asked

from minidist.checkpoint import Checkpoints, files, load, random_state, set_random_state
from minidist.checkpoint.huggingface import Pretrained, kind_of, options_of, write
from minidist.collectives import broadcast_
from minidist.comm.mesh import Grid, Mesh
from minidist.models import Experts, gpt, sequence
from minidist.parallel.context import check_chunks, order_of
from minidist.parallel.pipeline import by_parameters, partition
from minidist.parallelize import (
    arranged,
    batch_ranks,
    check_experts,
    parallelize,
    refuse,
    refuse_context,
)
from minidist.split import bounds, uneven
from minidist.study.meter import device_peak, peak_memory
from minidist.study.predict import flops_per_token, utilization
from minidist.text import BPE, Bytes, Samples, documents, packed, split, tokenizer
from minidist.train.amp import fp32_products, tf32_products
from minidist.train.optim import AdamW
from minidist.train.schedule import cosine, warm_up

TOKENIZER = "tokenizer.json"


class Training:
    """One rank's part of a run. seen: samples so far; step: updates so far."""

    def __init__(self, comm, args):
        self.comm = comm
        self.args = args
        self.step = 0
        self.saved = None
        self.seen = 0
        self.losses = []
        comm.algorithm = args.algorithm or comm.algorithm
        dtype = getattr(torch, args.dtype if args.amp == "O0" else args.half)
        self.peak = args.peak * 1e12 if args.peak else peak_of(comm.device, dtype)
        self.mesh = Mesh(comm, **axes(args, comm.size))
        self.ranks = batch_ranks(self.mesh)
        self.least = self.ranks.size * args.micro_batches  # samples of a batch
        self.checkpoints = None
        found = None
        common = {}
        if args.folder:
            self.checkpoints = Checkpoints(args.folder, comm, args.keep, self.mesh.grid.sizes)
            found = self.checkpoints.latest()
            common = self.checkpoints.common(found) if found else {}
            if found and not (isinstance(common, dict) and "seen" in common):
                raise ValueError(f"{found.path} was saved by another program")
        self.shape, self.flags = shape_of(args), flags_that_train(args)
        other = {
            name: value
            for name, value in common.get("shape", {}).items()
            if value != self.shape.get(name)
        }
        if other:
            asked_for = {name: self.shape.get(name) for name in other}
            raise ValueError(f"the run in {args.folder} has a model of {other}, not of {asked_for}")
        before = self.flags | common.get("flags", {})
        self.changed = {
            name: before[name] for name, value in self.flags.items() if before[name] != value
        }
        self.read(common.get("tokenizer"))
        self.build()
        if found:
            self.resume(found, common)
        self.plan_rate()
        self.profile = Profile(comm, args.profile, args.folder and args.folder / "profile")
        self.profile.watch(self.engine)

    def read(self, state: str | None) -> None:
        """The text, its tokens, and which of them are kept apart; state: of the tokenizer of a run that goes on."""
        args = self.args
        texts = documents(args.text)
        if args.weights and not args.vocab and (args.weights / TOKENIZER).exists():
            self.tokens = tokens_of(args.weights)
        elif state:
            self.tokens = tokenizer(state)
        else:
            self.tokens = BPE.learn(texts, args.vocab) if args.vocab else Bytes()
        if args.room and self.tokens.size > args.room[0]:
            raise ValueError(
                f"the text has {self.tokens.size} tokens, the model in {args.weights} {args.room[0]}"
            )
        learned, apart = split(packed(texts, self.tokens), args.apart)
        self.samples = Samples(learned, args.context, args.seed)
        self.apart = Samples(apart, args.context, args.seed) if args.apart else None

    def build(self) -> None:
        """The model, its parts on this mesh, and the schedule of its learning rate."""
        args = self.args
        model = model_of(args, self.tokens.size)
        self.parameters = sum(p.numel() for p in model.parameters())
        layers = [part for part in model.modules() if isinstance(part, Experts)]
        self.active = self.parameters - sum(layer.idle for layer in layers)  # of a token
        self.engine = parallelize(
            model,
            self.mesh,
            lambda groups: AdamW(groups, lr=args.lr, betas=(0.9, 0.95), weight_decay=args.decay),
            micro_batches=args.micro_batches,
            schedule=args.schedule,
            chunks=args.chunks,
            sequence_parallel=args.sequence_parallel,
            recompute=args.recompute,
            amp=args.amp,
            half=getattr(torch, args.half),
            fp8=args.fp8,
            zero=args.zero,
            replicas=args.replicas,
            seed=args.seed,
            compression=COMPRESSIONS[args.compression]() if args.compression else None,
            context_parallel=args.context_parallel,
        )
        if args.weights:
            load(Pretrained(args.weights), self.engine.module, rename=self.engine.rename)

    def plan_rate(self) -> None:
        """The learning rate: of a step's number, and of the flags as they are now."""
        args, groups = self.args, self.engine.optimizer.param_groups
        for group in groups:
            group["initial_lr"] = args.lr
        factor = warm_up(args.warm_up, cosine(max(1, args.steps - args.warm_up), args.floor))
        self.rate = torch.optim.lr_scheduler.LambdaLR(
            self.engine.optimizer, factor, last_epoch=self.step - 1
        )

    def resume(self, found, common: dict) -> None:
        """Go on where a run was: bit for bit on the same grid, to rounding on another.

        There a compression has kept nothing back yet: what ranks keep is not split again.
        """
        decays = [group["weight_decay"] for group in self.engine.optimizer.param_groups]
        self.engine.load(found)
        for group, decay in zip(self.engine.optimizer.param_groups, decays, strict=True):
            group["weight_decay"] = decay  # as the flags are now
        self.step = self.saved = found.step
        self.seen = common["seen"]
        self.losses = [
            line["loss"]
            for line in lines(self.args.folder / "log.jsonl")
            if line["step"] <= self.step
        ]
        self.engine.scaler.load_state_dict(common["scaler"])
        own = self.checkpoints.own(found)
        if own is not None:  # the same grid
            set_random_state(own["random"])
            if self.engine.compression and own["compression"]:
                self.engine.compression.load_state_dict(own["compression"])

    def save(self, wait: bool = False) -> None:
        """Beside the run, unless told to wait."""
        common = {
            "shape": self.shape,
            "flags": self.flags,
            "seen": self.seen,
            "tokenizer": self.tokens.state(),
            "scaler": self.engine.scaler.state_dict(),
        }
        if self.checkpoints and self.saved != self.step:
            kept = self.engine.compression and self.engine.compression.state_dict()
            own = {"random": random_state(), "compression": kept}
            self.checkpoints.save(self.step, self.engine.pieces(), common, own, wait=False)
            self.saved = self.step
        if self.checkpoints and wait:
            self.checkpoints.wait()

    def rows(self, samples: Samples, seen: int, count: int):
        """This rank's part of a batch, and how many samples it has."""
        first, end = bounds(uneven(count, self.ranks.size))[self.ranks.rank]
        x, y = samples(seen + first, end - first)
        return x.to(self.comm.device), y.to(self.comm.device), end - first

    def train(self, log) -> dict:
        """All steps that are left, or those before someone asks to stop."""
        args, start = self.args, time.perf_counter()
        while self.step < args.steps and not self.stopped():
            rate = self.rate.get_last_lr()[0]
            with self.profile.step():
                with self.profile.phase("data"):
                    x, y, mine = self.rows(self.samples, self.seen, args.batch)
                loss = self.engine.step(x, y, args.clip, mine).item()
            self.rate.step()
            self.step, self.seen = self.step + 1, self.seen + args.batch
            self.losses.append(loss)
            now = time.perf_counter()
            log(self.step, loss=loss, rate=rate, **self.figures(now - start))
            start = now
            if self.step % args.save_every == 0:
                self.save()
            if self.apart and self.step % args.evaluate_every == 0:
                log.say(f"step {self.step}: loss on text kept apart {self.evaluate():.4f}")
        self.profile.end()
        self.save(wait=True)
        stopped = self.step < args.steps
        if stopped:
            log.say(
                f"stopped: step {self.step} of {args.steps} is saved in {args.folder}, the same command goes on"
            )
        if args.export and not stopped:
            self.export()
        end = {"loss apart": self.evaluate()} if self.apart else {}
        end |= {"sample": self.sample(args.prompt, args.sample)} if args.sample else {}
        for name, value in end.items():
            log.say(f"{name}: {value}")
        return {
            "ranks": self.comm.size,
            "losses": self.losses,
            "parameters": self.parameters,
            "stopped": stopped,
        } | end

    def export(self) -> None:
        """Write what was saved last, for `transformers`: the model, and its tokens, if they are more than bytes."""
        shape = options_of(model_of(self.args, self.tokens.size))
        more = {"eos_token_id": self.tokens.end}
        write(self.checkpoints.latest(), self.args.export, shape, self.comm, more=more)
        if self.comm.rank == 0 and isinstance(self.tokens, BPE):
            files.write(self.args.export / TOKENIZER, [self.tokens.state().encode()])

    def stopped(self) -> bool:
        """Whether rank 0 sees a wish to stop: all ranks hear the same."""
        wish = torch.tensor(
            [self.args.folder is not None and asked(self.args.folder)], dtype=torch.uint8
        )
        return bool(broadcast_(self.comm, wish.to(self.comm.device)).item())

    def figures(self, seconds: float) -> dict[str, float]:
        """Of a step: tokens a second, the part of the devices' peak that the model's FLOPs make, peak memory in GB."""
        tokens = self.args.batch * self.args.context
        each = flops_per_token(self.active, self.args.layers, self.args.hidden, self.args.context)
        used = utilization(each * tokens, seconds, self.comm.size, self.peak)
        return {
            "tokens/s": tokens / seconds,
            "MFU": used,
            "GB": peak_memory(self.comm.device) / 1e9,
        }

    def evaluate(self) -> float:
        """Loss on text kept apart: the same samples each time."""
        x, y, mine = self.rows(
            self.apart, 0, max(self.least, min(self.apart.epoch, self.args.batch * 4))
        )
        return self.engine.evaluate(x, y, mine).item()

    def sample(self, prompt: str, count: int) -> str:
        """What the model writes after `prompt`. The same on all ranks, which draw the same numbers."""
        written, random = self.tokens.encode(prompt), torch.Generator().manual_seed(self.args.seed)
        for _ in range(count):
            seen = (written or [self.tokens.end])[-self.args.context :]
            # what follows is not seen
            x = torch.tensor([seen + [self.tokens.end] * (self.args.context - len(seen))])
            logits = self.engine.logits(x.to(self.comm.device))[0, len(seen) - 1].double().cpu()
            warm = (
                ((logits - logits.max()) / self.args.temperature).softmax(-1)
                if self.args.temperature
                else None
            )
            written.append(
                int(
                    logits.argmax()
                    if warm is None
                    else torch.multinomial(warm, 1, generator=random)
                )
            )
            if written[-1] == self.tokens.end:
                break
        return self.tokens.decode(written)


def tokens_of(folder) -> BPE:
    """The tokens that lie beside weights, with the end that their config.json says, the first where it says several."""
    tokens = BPE((folder / TOKENIZER).read_text(encoding="utf-8"))
    end = Pretrained(folder).config.get("eos_token_id")
    first = end[0] if isinstance(end, list) and end else end
    if not isinstance(first, int):
        raise ValueError(f"config.json in {folder} has no eos_token_id: {end!r}")
    tokens.end = first
    return tokens


def model_of(args, vocab: int):
    """The model, without values."""
    routing = {"top_k": args.top_k, "capacity": args.capacity}
    vocab, context = args.room or (vocab, args.context)
    return gpt(
        args.layers,
        args.hidden,
        args.heads,
        vocab,
        context,
        dropout=args.dropout,
        tied=args.tied,
        attention=args.attention,
        dtype=getattr(torch, args.dtype),
        device="meta",
        kv_heads=args.kv_heads,
        ffn=args.ffn,
        gated=args.mlp == "swiglu",
        rotary=args.positions == "rotary",
        theta=args.theta,
        gelu=args.gelu,
        bias=args.bias,
        norm=args.norm,
        eps=args.eps,
        experts=args.experts,
        **{name: value for name, value in routing.items() if value is not None},
    )


def axes(args, ranks: int) -> dict:
    """Of the mesh, what `Mesh` and `Grid` are told; data ranks are what the others leave, unless given."""
    sizes = {"pp": args.pp, "tp": args.tp}
    sizes |= {axis: vars(args)[axis] for axis in ("ep", "cp") if vars(args)[axis] > 1}
    sizes["dp"] = args.dp or max(1, ranks // math.prod(sizes.values()))
    return sizes | ({"order": args.order} if args.order else {})


def check(args) -> None:
    """ValueError, before any rank starts, for a grid, a batch, a model or a text that cannot be."""
    grid = Grid(**axes(args, args.ranks))
    grid.takes(args.ranks)
    parts = grid.sizes["dp"] * args.ep
    if args.batch < parts * args.micro_batches:
        raise ValueError(
            f"a batch of {args.batch} samples does not make {args.micro_batches} micro-batches "
            f"on each of {parts} data ranks"
        )
    if args.schedule == "interleaved" and args.chunks == 1:
        raise ValueError(
            "--schedule interleaved wants --chunks 2 or more on each stage, not --chunks 1"
        )
    _, shape = arranged(args.schedule, args.pp, args.micro_batches, args.chunks)
    model = model_of(args, args.vocab or Bytes.size)
    compression = COMPRESSIONS[args.compression]() if args.compression else None
    refuse(
        model,
        shape,
        args.recompute,
        args.amp,
        getattr(torch, args.half),
        args.zero,
        compression,
        grid.sizes["dp"] * args.cp,
        args.replicas,
    )
    check_experts(
        model,
        args.ep,
        args.cp,
        args.zero,
        args.sequence_parallel,
        compression,
        args.fp8,
        args.replicas,
    )
    refuse_context(model, args.cp, args.context_parallel, args.recompute)
    if args.cp > 1:
        check_chunks(args.context, args.cp, order_of(args.context_parallel))
    if args.context > model.context:
        raise ValueError(
            f"samples of {args.context} tokens do not fit into the context of {args.weights}, {model.context}"
        )
    if args.export:
        kind_of(options_of(model))
        if not args.folder or args.export.exists():
            raise ValueError(
                "--export writes what --folder has saved, and there is none"
                if not args.folder
                else f"--export {args.export} is there already: it makes a new folder"
            )
    parts = sequence(model)
    partition(by_parameters(parts), shape.S * shape.v)
    try:
        documents(args.text)
    except OSError as error:
        raise ValueError(f"--text {error.filename}: {error.strerror}") from error


def interrupted(folder) -> str:
    """What a run leaves that was ended at once."""
    finished = files.finished(folder) if folder else []
    if not finished:
        return "interrupted: nothing was saved" + (
            f" in {folder} yet" if folder else ", for want of a --folder"
        )
    _, step = files.serial_and_step(finished[-1])
    return f"interrupted: step {step} is saved in {folder}, the same command goes on from there"


def shape_of(args) -> dict:
    """What makes another model, some of it without another shape of any parameter."""
    return {
        "layers": args.layers,
        "hidden": args.hidden,
        "heads": args.heads,
        "kv-heads": args.kv_heads or args.heads,
        "ffn": args.ffn or 4 * args.hidden,
        "mlp": args.mlp,
        "positions": args.positions,
        "experts": args.experts,
        "tied": args.tied,
        "vocab": args.vocab,
        **{name: getattr(args, name) for name in ("norm", "bias", "gelu", "eps", "theta", "room")},
    }


def flags_that_train(args) -> dict:
    """What may be otherwise than it was when a run goes on. The cosine ends with the steps."""
    names = (
        "text",
        "apart",
        "context",
        "batch",
        "micro_batches",
        "seed",
        "steps",
        "lr",
        "warm_up",
        "floor",
        "decay",
        "clip",
        "dropout",
        "top_k",
        "capacity",
        "dtype",
        "amp",
        "half",
        "tf32",
        "fp8",
        "compression",
    )
    return {name.replace("_", "-"): getattr(args, name) for name in names}


def peak_of(device: torch.device, dtype: torch.dtype) -> float:
    """FLOP/s of products in `dtype`; TF32 has half of the 16-bit rate on all devices of the data sheets."""
    if dtype == torch.float32 and device.type == "cuda" and fp32_products() == "tf32":
        return device_peak(device, torch.bfloat16) / 2
    return device_peak(device, dtype)


class Silent:
    """The log of a rank that says nothing."""

    def __call__(self, step: int, **values: float) -> None:
        pass

    def say(self, text: str) -> None:
        pass


def program(comm, args) -> dict:
    """One rank: builds its part, goes on where a run was, trains."""
    with tf32_products() if args.tf32 else contextlib.nullcontext():
        return trained(comm, args)


def trained(comm, args) -> dict:
    """See `program`."""
    try:
        training = Training(comm, args)
    except (ValueError, OSError) as error:
        raise Refused(str(error)) from error
    if comm.rank:
        return training.train(Silent())
    with Log(args.folder, args.steps, training.step) as log:
        log.say(
            f"{training.mesh.grid}; {training.parameters:,} parameters, {training.samples.epoch:,} samples an epoch"
            + (f"; goes on at step {training.step}" if training.step else "")
        )
        if fp32_products() == "tf32":
            log.say("products in fp32 are TF32's on a GPU: 10 bits of fraction")
        for name, value in training.changed.items():
            log.say(f"--{name} is {training.flags[name]} from here on, it was {value}")
        return training.train(log)


def main():
    flags = flags_of(parser(__doc__))
    args = parsed(flags)
    if args.chunks > 1 and args.schedule not in ("interleaved", "zb_v"):
        flags.error(
            f"--chunks {args.chunks} is for --schedule interleaved; {args.schedule} has 1 chunk on a stage"
        )
    if args.profile and (args.runner == "world" or not args.folder):
        flags.error(
            f"--profile {args.profile} times processes and writes to a folder: add --runner processes, or start with "
            "torchrun, and add --folder"
        )
    if args.folder and args.folder.exists() and not args.folder.is_dir():
        flags.error(f"--folder {args.folder} is not a folder")
    try:
        if args.weights:
            of_weights(args)
        check(args)
    except ValueError as error:
        flags.error(str(error))
    try:
        with contextlib.ExitStack() as stack:
            if args.folder:
                if os.environ.get("RANK", "0") == "0":
                    stack.enter_context(alone(args.folder))
                stack.enter_context(Stop(args.folder))
            results = run(args, program, args)
    except KeyboardInterrupt:
        say(interrupted(args.folder))
        return INTERRUPTED
    except Refused as error:
        flags.error(str(error))
    return (
        INTERRUPTED
        if any(result["stopped"] for result in results.values())
        else same_losses(results)
    )


if __name__ == "__main__":
    raise SystemExit(ended(main))
