"""Weights in Hugging Face's layout, as `transformers` reads and writes them: GPT-2 and LLaMA, to and from any grid.

A folder has `config.json`, which describes the model, and its tensors in one safetensors file, or in several with an
index:

    config.json    model-00001-of-00002.safetensors    model-00002-of-00002.safetensors    model.safetensors.index.json

The numbers are the same as ours; the names differ, and so does the order of rows:

    ours                theirs
    attention.qkv       GPT-2    c_attn: all queries, all keys, all values. Ours has a head's q, k and v together, so
                                 that a cut between rows leaves heads whole
                                     q₀ q₁ k₀ k₁ v₀ v₁   ⇄   q₀ k₀ v₀ │ q₁ k₁ v₁
                        LLaMA    q_proj, k_proj, v_proj, which ours joins likewise. Rotary positions turn
                                 numbers i and i + D/2 of a head there, 2i and 2i + 1 here
                                     0 1 2 3 4 5 6 7     ⇄   0 4 1 5 2 6 3 7                 (D = 8)
    mlp.fc              LLaMA    gate_proj, up_proj. Ours has a feature's gate and value side by side
    every matrix        GPT-2    transposed within layers: its Conv1D computes x·W, a linear layer x·Wᵀ

So one table says everything, in both directions, for whole models and for parts of them: row i of their tensor is row
rows[i] of ours.

    Pretrained(folder)     a `Saved` like any other: `load` fills a model with it, however that is split. A rank reads
                           the rows that it holds, and no others
    write                  from a checkpoint of ours, the files dealt out to the ranks; in memory are a tensor, its copy in
                           the other order, and the one before it

Invariant: logits are those of `transformers`, to rounding, both ways.
Sources: Radford et al. 2019, "Language Models are Unsupervised Multitask Learners"; Touvron et al. 2023, "LLaMA", section
2.2; Su et al. 2021, "RoFormer", section 3.4.2 (the rotation, element by element); the models gpt2 and llama of
`transformers` 5.24.
"""

from __future__ import annotations

import json
import os
import shutil
from collections import defaultdict
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..comm.base import Comm
from ..models import GPT, RMSNorm, SwiGLU, gpt
from . import files
from .checkpoint import SaveError, attempt
from .files import Refused
from .reshard import Piece, Saved

Options = dict[str, Any]

CONFIG = "config.json"
ONE_FILE = "model.safetensors"
INDEX = ONE_FILE + ".index.json"

# ------------------------------------------------------------
# Which model it is: config.json, and the options of `models.gpt`.
#
# A setting for which ours has no option must be as it is in ours: nothing is left out silently.

SAME: dict[str, dict[str, Any]] = {
    "gpt2": {
        "scale_attn_weights": True,
        "scale_attn_by_inverse_layer_idx": False,
        "add_cross_attention": False,
    },
    "llama": {
        "hidden_act": "silu",
        "attention_bias": False,
        "mlp_bias": False,
        "attention_dropout": 0.0,
        "rope_scaling": None,
    },
}
GELUS = {"gelu_new": "tanh", "gelu_pytorch_tanh": "tanh", "gelu": "none"}
FIXED: dict[str, Options] = {
    "gpt2": dict(gated=False, rotary=False, bias=True, norm="layer"),
    "llama": dict(gated=True, rotary=True, bias=False, norm="rms", dropout=0.0),
}


def options(config: Mapping[str, Any]) -> Options:
    """The options of `models.gpt` for the model of a config.json. Raises Refused for one that ours cannot represent.

    >>> from minidist.checkpoint.huggingface import options
    >>> sizes = dict(n_layer=12, n_embd=768, n_head=12, vocab_size=50257, n_positions=1024)
    >>> found = options({"model_type": "gpt2", **sizes})
    >>> found["hidden"], found["ffn"], found["tied"]
    (768, 3072, True)
    """
    kind = config.get("model_type")
    if kind not in SAME:
        raise Refused(f"model_type is one of {', '.join(SAME)}, not {kind!r}")
    for name, value in SAME[kind].items():
        if config.get(name, value) != value:
            raise Refused(f"{name} of a {kind} is {value!r} here, not {config[name]!r}")
    try:
        return FIXED[kind] | (_gpt2 if kind == "gpt2" else _llama)(config)
    except KeyError as error:
        raise Refused(f"the config of a {kind} lacks {error}") from error


def _gpt2(config: Mapping[str, Any]) -> Options:
    drops = {config.get(f"{what}_pdrop", 0.1) for what in ("resid", "embd", "attn")}
    if len(drops) > 1:
        raise Refused(f"dropout is the same everywhere in ours, not one of {sorted(drops)}")
    act = config.get("activation_function", "gelu_new")
    if act not in GELUS:
        raise Refused(f"activation_function is one of {', '.join(GELUS)}, not {act!r}")
    return dict(
        layers=config["n_layer"],
        hidden=config["n_embd"],
        heads=config["n_head"],
        kv_heads=config["n_head"],
        vocab=config["vocab_size"],
        context=config["n_positions"],
        ffn=config.get("n_inner") or 4 * config["n_embd"],
        gelu=GELUS[act],
        eps=config.get("layer_norm_epsilon", 1e-5),
        dropout=drops.pop(),
        tied=config.get("tie_word_embeddings", True),
    )


def _llama(config: Mapping[str, Any]) -> Options:
    hidden, heads = config["hidden_size"], config["num_attention_heads"]
    rope = config.get("rope_parameters") or {}
    if rope.get("rope_type", "default") != "default":
        raise Refused(f"rotary positions are not scaled here, as {rope['rope_type']!r} says")
    if (config.get("head_dim") or hidden // heads) * heads != hidden:
        raise Refused(f"{heads} heads of size {config['head_dim']} do not make {hidden} features")
    return dict(
        layers=config["num_hidden_layers"],
        hidden=hidden,
        heads=heads,
        kv_heads=config.get("num_key_value_heads") or heads,
        vocab=config["vocab_size"],
        context=config["max_position_embeddings"],
        ffn=config["intermediate_size"],
        eps=config.get("rms_norm_eps", 1e-6),
        theta=rope.get("rope_theta") or config.get("rope_theta", 10_000.0),
        tied=config.get("tie_word_embeddings", False),
    )


def options_of(model: GPT) -> Options:
    """The options with which `models.gpt` made this model, also on the device meta; the initial seed is not known.

    >>> from minidist.checkpoint.huggingface import options_of
    >>> from minidist.models import gpt
    >>> sizes = dict(layers=1, hidden=16, heads=4, kv_heads=2, vocab=32, context=8, rotary=True)
    >>> found = options_of(gpt(**sizes, device="meta"))
    >>> {name: found[name] for name in sizes} == sizes
    True
    """
    layer: Any = model.layers[0]
    attention, mlp = layer.attention, layer.mlp
    gated = isinstance(mlp.act, SwiGLU)
    found = dict(
        layers=len(model.layers),
        hidden=model.tokens.embedding_dim,
        heads=attention.groups * attention.queries,
        kv_heads=attention.groups,
        vocab=model.tokens.num_embeddings,
        context=model.context,
        ffn=mlp.ffn,
        gated=gated,
        rotary=attention.rotary,
        bias=attention.qkv.bias is not None,
        norm="rms" if isinstance(layer.norm_1, RMSNorm) else "layer",
        eps=layer.norm_1.eps,
        dropout=model.dropout.p,
        tied=model.head is None,
    )
    if attention.rotary:
        found["theta"] = attention.theta
    if not gated:
        found["gelu"] = mlp.act.approximate
    return found


def kind_of(options: Options) -> str:
    """ "gpt2" or "llama", which the model with these options is. ValueError for one that is neither.

    >>> from minidist.checkpoint.huggingface import kind_of, options_of
    >>> from minidist.models import gpt
    >>> llama = dict(rotary=True, gated=True, norm="rms", bias=False)
    >>> [kind_of(options_of(gpt(1, 16, 2, 32, 8, device="meta", **more))) for more in ({}, llama)]
    ['gpt2', 'llama']
    """
    apart = {}
    for kind, fixed in FIXED.items():
        wanted = fixed | (dict(kv_heads=options["heads"]) if kind == "gpt2" else {})
        apart[kind] = {name: x for name, x in wanted.items() if options[name] != x}
        if not apart[kind]:
            return kind
    words = "; ".join(f"a {kind} has {wanted}" for kind, wanted in apart.items())
    has = {name: options[name] for wanted in apart.values() for name in wanted}
    raise ValueError(f"this model has no name in Hugging Face's layout: it has {has}; {words}")


def config_of(options: Options) -> dict[str, Any]:
    """The config.json of the model with these options. ValueError for one that is neither a GPT-2 nor a LLaMA.

    >>> from minidist.checkpoint.huggingface import config_of, options_of
    >>> from minidist.models import gpt
    >>> config = config_of(options_of(gpt(1, 16, 2, vocab=32, context=8, device="meta")))
    >>> config["architectures"], config["n_embd"]
    (['GPT2LMHeadModel'], 16)
    """
    kind = kind_of(options)
    same = {"model_type": kind, "tie_word_embeddings": options["tied"], **SAME[kind]}
    same |= {"vocab_size": options["vocab"], "bos_token_id": None, "eos_token_id": None}
    if kind == "gpt2":
        return same | {
            "architectures": ["GPT2LMHeadModel"],
            "n_layer": options["layers"],
            "n_embd": options["hidden"],
            "n_head": options["heads"],
            "n_positions": options["context"],
            "n_inner": options["ffn"],
            "activation_function": "gelu_new" if options["gelu"] == "tanh" else "gelu",
            "layer_norm_epsilon": options["eps"],
            **{f"{what}_pdrop": options["dropout"] for what in ("resid", "embd", "attn")},
        }
    return same | {
        "architectures": ["LlamaForCausalLM"],
        "num_hidden_layers": options["layers"],
        "hidden_size": options["hidden"],
        "num_attention_heads": options["heads"],
        "num_key_value_heads": options["kv_heads"],
        "head_dim": options["hidden"] // options["heads"],
        "max_position_embeddings": options["context"],
        "intermediate_size": options["ffn"],
        "rms_norm_eps": options["eps"],
        "rope_theta": options["theta"],  # before version 5
        "rope_parameters": {"rope_type": "default", "rope_theta": options["theta"]},
    }


# ------------------------------------------------------------
# The table: where the rows of each of their tensors lie in ours.


class Source(NamedTuple):
    """Their tensor `name`, whose row i is row rows[i] of ours; transposed: whose column i.

    >>> from minidist.checkpoint.huggingface import options_of, sources
    >>> from minidist.models import gpt
    >>> table = sources(options_of(gpt(1, 4, 2, 8, 8, device="meta")))
    >>> source = table["layers.0.attention.qkv.bias"][0]
    >>> source.name, source.rows.tolist()
    ('transformer.h.0.attn.c_attn.bias', [0, 1, 6, 7, 2, 3, 8, 9, 4, 5, 10, 11])
    """

    name: str
    rows: Tensor
    transposed: bool


PARTS = {
    "gpt2": {
        "tokens": "transformer.wte",
        "positions": "transformer.wpe",
        "layers": "transformer.h",
        "norm": "transformer.ln_f",
        "head": "lm_head",
    },
    "llama": {
        "tokens": "model.embed_tokens",
        "layers": "model.layers",
        "norm": "model.norm",
        "head": "lm_head",
    },
}
IN_LAYER = {
    "gpt2": {
        "norm_1": ["ln_1"],
        "attention.qkv": ["attn.c_attn"],
        "attention.proj": ["attn.c_proj"],
        "norm_2": ["ln_2"],
        "mlp.fc": ["mlp.c_fc"],
        "mlp.proj": ["mlp.c_proj"],
    },
    "llama": {
        "norm_1": ["input_layernorm"],
        "attention.qkv": ["self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"],
        "attention.proj": ["self_attn.o_proj"],
        "norm_2": ["post_attention_layernorm"],
        "mlp.fc": ["mlp.gate_proj", "mlp.up_proj"],
        "mlp.proj": ["mlp.down_proj"],
    },
}


def qkv_rows(groups: int, queries: int, size: int, rotary: bool) -> list[Tensor]:
    """Where all queries, all keys and all values lie in our rows.
    groups: heads of keys and values.  queries: heads of queries for each of them.  size: of a head.

    >>> from minidist.checkpoint.huggingface import qkv_rows
    >>> [rows.tolist() for rows in qkv_rows(groups=2, queries=1, size=2, rotary=False)]
    [[0, 1, 6, 7], [2, 3, 8, 9], [4, 5, 10, 11]]
    """
    rows = torch.arange(groups * (queries + 2) * size).view(groups, queries + 2, size)
    turned = rows
    if rotary:  # the first of all pairs, then the second of all
        turned = rows.unflatten(-1, (size // 2, 2)).transpose(-1, -2).flatten(-2)
    return [turned[:, :-2].flatten(), turned[:, -2].flatten(), rows[:, -1].flatten()]


def sources(options: Options) -> dict[str, list[Source]]:
    """{our parameter: their tensors}, for the model with these options.

    >>> from minidist.checkpoint.huggingface import options_of, sources
    >>> from minidist.models import gpt
    >>> llama = dict(rotary=True, gated=True, norm="rms", bias=False)
    >>> table = sources(options_of(gpt(1, 16, 2, 32, 8, device="meta", **llama)))
    >>> [source.name for source in table["layers.0.mlp.fc.weight"]]
    ['model.layers.0.mlp.gate_proj.weight', 'model.layers.0.mlp.up_proj.weight']
    """
    kind = kind_of(options)
    heads, groups = options["heads"], options["kv_heads"]
    size = options["hidden"] // heads
    in_order = {"attention.qkv": qkv_rows(groups, heads // groups, size, options["rotary"])}
    if options["gated"]:
        in_order["mlp.fc"] = list(torch.arange(2 * options["ffn"]).view(-1, 2).t())
    found = {}
    for ours, p in gpt(**options, device="meta").named_parameters():
        module, _, leaf = ours.rpartition(".")
        if module.startswith("layers."):
            _, number, module = module.split(".", 2)
            stem, theirs = f"{PARTS[kind]['layers']}.{number}.", IN_LAYER[kind][module]
            transposed = kind == "gpt2" and p.dim() == 2
        else:
            stem, theirs = "", [PARTS[kind][module]]
            transposed = False
        rows = in_order.get(module, [torch.arange(len(p))])
        if len(theirs) < len(rows):
            rows = [torch.cat(rows)]
        found[ours] = [
            Source(f"{stem}{name}.{leaf}", where, transposed)
            for name, where in zip(theirs, rows, strict=True)
        ]
    return found


# ------------------------------------------------------------
# Reading: as a checkpoint of ours is read, by whoever wants a piece of a tensor.


class Pretrained(Saved):
    """The weights in a folder, under our names: for `load(saved, model)`, on any grid.

        saved = Pretrained("gpt2")
        engine = parallelize(gpt(**saved.options, device="meta"), mesh, …)
        load(saved, engine.module, rename=engine.rename)

    options: of `models.gpt`, from config.json.  config: what that says. Values are rounded to the dtype of the
    parameter that they go to. Raises Refused for a folder that cannot be read, has a model other than GPT-2 or
    LLaMA, or lacks a tensor.

    >>> import tempfile
    >>> from minidist import World
    >>> from minidist.checkpoint import Checkpoints, huggingface, load, pieces
    >>> from minidist.models import gpt
    >>> def program(comm, folder):
    ...     model, checkpoints = gpt(1, 16, 2, vocab=32, context=8), Checkpoints(folder, comm)
    ...     checkpoints.save(1, pieces(model))
    ...     saved, options = checkpoints.latest(), huggingface.options_of(model)
    ...     huggingface.write(saved, f"{folder}/tiny", options, comm)
    ...     pretrained = huggingface.Pretrained(f"{folder}/tiny")
    ...     other = gpt(**pretrained.options, seed=1)
    ...     load(pretrained, other)
    ...     return pretrained.config["model_type"], other.tokens.weight.equal(model.tokens.weight)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     World(2).run(program, folder)[1]
    ('gpt2', True)
    """

    def __init__(self, path: str | os.PathLike):
        self.path = Path(path)
        self.config = self._json(CONFIG)
        self.options = options(self.config)
        self.step, self.grid = 0, {"ranks": 1}
        self.files = {}  # without checksums
        self.entries = self._entries()
        self.sources = sources(self.options)
        self.tensors = {}
        for ours, p in gpt(**self.options, device="meta").named_parameters():
            for source in self.sources[ours]:
                shape = (len(source.rows), *p.shape[1:])
                found = self._entry(source.name)[1]
                if found.shape != (shape[::-1] if source.transposed else shape):
                    raise Refused(
                        f"{source.name} in {self.path} is {found.shape}, which makes no {ours} {tuple(p.shape)}"
                    )
            dtype = files.CODES[found.dtype]
            self.tensors[f"model/{ours}"] = {"dtype": dtype, "shape": list(p.shape)}

    def _json(self, name: str) -> dict[str, Any]:
        try:
            found = json.loads((self.path / name).read_bytes())
        except (OSError, ValueError, RecursionError) as error:
            raise Refused(f"{self.path / name} cannot be read: {error}") from error
        if not isinstance(found, dict):
            raise Refused(f"{self.path / name} holds no {{…}}")
        return found

    def _entries(self) -> dict[str, tuple[str, files.Entry]]:
        """{their tensor: (file, where it lies there)}."""
        names = {ONE_FILE}
        if not (self.path / ONE_FILE).exists():
            try:
                names = set(map(str, self._json(INDEX)["weight_map"].values()))
            except (KeyError, AttributeError) as error:
                raise Refused(f"{self.path / INDEX} has no map of weights") from error
        entries: dict[str, tuple[str, files.Entry]] = {}
        for name in sorted(names):
            try:
                with open(self._file(name), "rb") as file:
                    found = files.read_header(file)
            except OSError as error:
                raise Refused(f"{self._file(name)} cannot be read: {error}") from error
            entries |= {key: (name, entry) for key, entry in found.items()}
        return entries

    def _entry(self, name: str) -> tuple[str, files.Entry]:
        """In some folders the names of a GPT-2's tensors lack their first word."""
        for key in (name, name.removeprefix("transformer.")):
            if key in self.entries:
                return self.entries[key]
        raise Refused(f"{self.path} has no {name}; it has {len(self.entries)} tensors")

    @torch.no_grad()
    def read(self, pieces: Iterable[Piece]) -> None:
        """Fill the values of these pieces: a rank reads its rows of each tensor, and no others.

        rows of ours     10 11 12 13 14 15      piece: 12 to 15
        rows of theirs    0  3  1  4  2  5      so 1, 2 and 4 of theirs: boxes 1:3 and 4:5

        Raises ValueError for a tensor that is missing or has another shape; then none has been filled.
        """
        reads = defaultdict(list)  # by file
        for piece in pieces:
            name, _, whole, box = piece.part
            like = self.empty(name, "meta")
            if whole != like.shape:
                raise ValueError(f"{name} is {whole} here, and {tuple(like.shape)} in {self.path}")
            for source in self.sources[name.removeprefix("model/")]:
                file, entry = self._entry(source.name)
                at = source.rows - box.first[0]
                here = ((at >= 0) & (at < box.size[0])).nonzero().flatten()
                for rows in runs_of(here):
                    theirs = box.along(0, int(rows[0]), len(rows))
                    if box.numel:
                        reads[file].append(
                            (entry, theirs, source.transposed, piece.values, at[rows])
                        )
        for name, wanted in reads.items():
            try:
                with open(self._file(name), "rb") as file:
                    for entry, theirs, transposed, values, at in wanted:
                        order = slice(None, None, -1 if transposed else 1)
                        found = files.read_box(file, entry, theirs.first[order], theirs.size[order])
                        found = found.t() if transposed else found
                        values[at.to(values.device)] = found.to(values)
            except OSError as error:
                raise Refused(f"{self._file(name)} cannot be read: {error}") from error


def runs_of(rows: Tensor) -> list[Tensor]:
    """Ascending numbers, cut where one is left out: 1 2 4 as 1 2 and 4.

    >>> import torch
    >>> from minidist.checkpoint.huggingface import runs_of
    >>> [run.tolist() for run in runs_of(torch.tensor([1, 2, 4]))]
    [[1, 2], [4]]
    """
    cuts = (rows.diff() > 1).nonzero().flatten() + 1
    return [run for run in rows.tensor_split(cuts) if len(run)]


# ------------------------------------------------------------
# Writing: from a checkpoint of ours, which any grid has made.
#
#     checkpoint of any grid ─▶ whole tensors, one after the other ─▶ files, dealt out to the ranks ─▶ config, index
#
# Until all is on the disk the folder has another name.


def write(
    saved: Saved,
    path: str | os.PathLike,
    options: Options,
    comm: Comm,
    shard_bytes: int = 5_000_000_000,
    more: Mapping[str, Any] | None = None,
) -> None:
    """Write the model in `saved`, whose options are these (see `options_of`), into a new folder, for `transformers`.

    On all ranks of `comm`, which see the folder: each writes some of the files. shard_bytes: of tensors in one file, at
    most, unless it has only one tensor.  more: what config.json says besides the model, such as its eos_token_id. The
    dtype is the checkpoint's. Raises ValueError for a folder that is there already, and for a model that is neither a
    GPT-2 nor a LLaMA; SaveError where a disk fails.
    options: as from `options_of(model)`, or `Pretrained(…).options`.  path: the new folder.

    >>> import os, tempfile
    >>> from minidist import World
    >>> from minidist.checkpoint import Checkpoints, huggingface, pieces
    >>> from minidist.models import gpt
    >>> def program(comm, folder):
    ...     model, checkpoints = gpt(1, 16, 2, vocab=32, context=8), Checkpoints(folder, comm)
    ...     checkpoints.save(1, pieces(model))
    ...     saved, options = checkpoints.latest(), huggingface.options_of(model)
    ...     huggingface.write(saved, f"{folder}/tiny", options, comm, shard_bytes=10_000)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     _ = World(2).run(program, folder)
    ...     for name in sorted(os.listdir(f"{folder}/tiny")):
    ...         print(name)
    config.json
    model-00001-of-00002.safetensors
    model-00002-of-00002.safetensors
    model.safetensors.index.json
    """
    path = Path(path)
    unfinished = path.with_name(path.name + ".partial")
    config = config_of(options) | dict(more or {})
    place = {
        source.name: (f"model/{ours}", source)
        for ours, found in sources(options).items()
        for source in found
    }
    likes = {}
    for name, (ours, source) in place.items():
        like = saved.empty(ours, "meta")[source.rows.to("meta")]
        likes[name] = like.t() if source.transposed else like
    shards = shards_of(likes, shard_bytes)
    file_names = [ONE_FILE]
    if len(shards) > 1:
        file_names = [
            f"model-{i:05}-of-{len(shards):05}.safetensors" for i in range(1, len(shards) + 1)
        ]

    def fetch(name: str) -> Tensor:
        ours, source = place[name]
        rows = saved.whole(ours)[source.rows]
        return rows.t() if source.transposed else rows

    def begin() -> None:
        if path.exists():
            raise ValueError(f"{path} is there already: a model is written into a new folder")
        if comm.rank == 0:
            shutil.rmtree(unfinished, ignore_errors=True)
            unfinished.mkdir(parents=True)

    def write_shards() -> None:
        for i in range(comm.rank, len(shards), comm.size):
            tensors = {name: likes[name] for name in shards[i]}
            files.write(unfinished / file_names[i], files.safetensors(tensors, fetch))

    def finish() -> None:
        if comm.rank:
            return
        dtype = next(iter(likes.values())).dtype
        text = {CONFIG: config | {"dtype": str(dtype).removeprefix("torch.")}}
        if len(shards) > 1:
            where = zip(file_names, shards, strict=True)
            text[INDEX] = {
                "metadata": {"total_size": sum(like.nbytes for like in likes.values())},
                "weight_map": {name: file for file, names in where for name in names},
            }
        for name, body in text.items():
            files.write(unfinished / name, [json.dumps(body, indent=2).encode()])
        os.replace(unfinished, path)
        files.sync_folder(path.parent)

    for act in (begin, write_shards, finish):
        _, complaints = attempt(comm.on_host(), act)
        if complaints:
            kind = ValueError if act is begin and path.exists() else SaveError
            raise kind(f"{path} was not written: {'; '.join(complaints)}")


def shards_of(tensors: Mapping[str, Tensor], most: int) -> list[list[str]]:
    """Names in their order, cut where a file would have more than `most` bytes.

    >>> import torch
    >>> from minidist.checkpoint.huggingface import shards_of
    >>> shards_of({name: torch.zeros(10) for name in "abc"}, most=100)  # of 40 bytes each
    [['a', 'b'], ['c']]
    """
    shards: list[list[str]] = [[]]
    filled = 0
    for name, x in tensors.items():
        if shards[-1] and filled + x.nbytes > most:
            shards.append([])
            filled = 0
        shards[-1].append(name)
        filled += x.nbytes
    return shards
