"""Weights in Hugging Face's layout: the same logits as `transformers`, both ways, on any grid, read and written in parts."""

import importlib.util
import json
import os

import pytest
import torch

from minidist.checkpoint import Checkpoints, Refused, Saved, load, pieces
from minidist.checkpoint import files as checkpoint_files
from minidist.checkpoint.huggingface import (
    Pretrained,
    config_of,
    kind_of,
    options,
    options_of,
    qkv_rows,
    runs_of,
    shards_of,
    sources,
    write,
)
from minidist.comm import Cluster, World
from minidist.comm.mesh import Mesh
from minidist.models import gpt
from minidist.parallelize import parallelize
from minidist.train.optim import AdamW
from tests.checkpoint.cases import RUNS
from tests.largest import largest
from tests.parallelized import adam, gaps, held, ranks

TRANSFORMERS = pytest.mark.skipif(
    importlib.util.find_spec("transformers") is None and not os.environ.get("CI"),
    reason="transformers is not installed",
)
GPT2 = dict(layers=2, hidden=12, heads=6, vocab=13, context=6, dtype=torch.float64)
LLAMA = GPT2 | dict(
    kv_heads=3, ffn=10, gated=True, rotary=True, bias=False, norm="rms", eps=1e-3, theta=100.0
)
MODELS = {
    "gpt2": GPT2,
    "gpt2 untied": GPT2 | dict(tied=False, ffn=10, gelu="none", eps=1e-3, dropout=0.2),
    "llama": LLAMA | dict(tied=False),
    "llama tied, all heads": LLAMA | dict(kv_heads=6),
}


def random_model(name, dtype=None):
    """Parameters of which none is zero, none is one, and no two are equal."""
    model = gpt(**MODELS[name] | (dict(dtype=dtype) if dtype else {})).eval()
    random = torch.Generator().manual_seed(1)
    for p in model.parameters():
        p.data.copy_(torch.randn(p.shape, generator=random, dtype=torch.float64) * 0.5)
    return model


def exported(comm, model, folder, **more):
    """A checkpoint of ours, and what is written from it into folder/"theirs"."""
    checkpoints = Checkpoints(folder / "ours", comm)
    checkpoints.save(1, pieces(model))
    write(checkpoints.latest(), folder / "theirs", options_of(model), comm, **more)


def folder_of(name, folder, n=1, dtype=None, **more):
    """A folder in their layout, and the model that it has."""
    model = random_model(name, dtype)
    World(n).run(exported, model, folder, **more)
    return folder / "theirs", model


# ------------------------------------------------------------
# Beside transformers, whose models are made from a config.


def theirs_of(name):
    """A model of theirs, with random values, in float32: its rotary positions and norms have no more."""
    import transformers

    with_their_names = config_of(options_of(gpt(**MODELS[name], device="meta")))
    model = transformers.AutoModelForCausalLM.from_config(
        transformers.AutoConfig.for_model(**with_their_names)
    )
    random = torch.Generator().manual_seed(2)
    for p in model.parameters():
        p.data.copy_(torch.randn(p.shape, generator=random) * 0.5)
    return model.eval()


def tokens():
    return torch.randint(0, GPT2["vocab"], (5, 6), generator=torch.Generator().manual_seed(0))


def distance(a, b):
    """In units of the last place of float32, of the largest number."""
    eps = torch.finfo(torch.float32).eps
    return ((a - b).abs().max() / b.abs().max() / eps).item()


@TRANSFORMERS
@pytest.mark.parametrize(
    ("name", "most"), list(zip(MODELS, [10**9, 2000, 2000, 10**9], strict=True))
)
@torch.no_grad()
def test_as_transformers(name, most, tmp_path, figure):
    """Theirs read by ours, and ours by theirs: as they save it, in one file and in many, and as they load it."""
    import transformers

    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    theirs = theirs_of(name)
    theirs.save_pretrained(tmp_path / "saved", max_shard_size=most)
    saved = Pretrained(tmp_path / "saved")
    ours = gpt(**saved.options).eval()
    load(saved, ours)
    first = distance(ours(tokens()), theirs(tokens()).logits)
    folder, ours = folder_of(name, tmp_path, n=2, dtype=torch.float32, shard_bytes=most)
    theirs, info = transformers.AutoModelForCausalLM.from_pretrained(
        folder, output_loading_info=True
    )
    assert not any(info.values()), info
    assert sum(path.suffix == ".safetensors" for path in folder.iterdir()) > (most < 10**9)
    second = distance(theirs.eval()(tokens()).logits, ours(tokens()))
    figure(f"{name}: {first:.1f} and {second:.1f} units of float32's last place apart")
    assert first < 16 and second < 16
    if name.startswith("gpt2"):  # which computes in the dtype of its parameters
        wide = ours.double()(tokens())
        assert (theirs.double()(tokens()).logits - wide).abs().max() < 1e-12
    assert theirs.config.tie_word_embeddings is (ours.head is None)
    assert Pretrained(folder).options == options_of(ours)


# ------------------------------------------------------------
# The table, by hand.


def test_rows_by_hand():
    [q, k, v] = qkv_rows(groups=2, queries=1, size=2, rotary=False)
    # ours: a head's q, k and v, then the other's
    assert [q.tolist(), k.tolist(), v.tolist()] == [[0, 1, 6, 7], [2, 3, 8, 9], [4, 5, 10, 11]]
    [q, k, v] = qkv_rows(groups=1, queries=2, size=4, rotary=True)
    # the halves of a head there are pairs here; values are not turned
    assert q.tolist() == [0, 2, 1, 3, 4, 6, 5, 7]
    assert [k.tolist(), v.tolist()] == [[8, 10, 9, 11], [12, 13, 14, 15]]
    gate, up = sources(options_of(gpt(**LLAMA, device="meta")))["layers.1.mlp.fc.weight"]
    assert (gate.name, up.name) == tuple(
        f"model.layers.1.mlp.{which}_proj.weight" for which in ("gate", "up")
    )
    assert gate.rows.tolist() == [*range(0, 20, 2)] and up.rows.tolist() == [*range(1, 20, 2)]


@pytest.mark.parametrize("name", MODELS)
def test_every_row_is_somewhere_once(name):
    model = gpt(**MODELS[name], device="meta")
    table = sources(options_of(model))
    assert table.keys() == dict(model.named_parameters()).keys()
    for ours, found in table.items():
        rows = torch.cat([source.rows for source in found]).sort().values
        assert torch.equal(rows, torch.arange(len(model.get_parameter(ours))))
    names = [source.name for found in table.values() for source in found]
    assert len(set(names)) == len(names)


def test_runs_and_shards():
    as_lists = lambda rows: [run.tolist() for run in runs_of(torch.tensor(rows, dtype=torch.long))]
    assert as_lists([1, 2, 4, 7, 8]) == [[1, 2], [4], [7, 8]]
    assert as_lists([3]) == [[3]] and as_lists([]) == []
    sized = {name: torch.empty(size, dtype=torch.uint8) for name, size in zip("abcd", (3, 3, 9, 1))}
    assert shards_of(sized, 6) == [["a", "b"], ["c"], ["d"]]
    assert shards_of(sized, 100) == [["a", "b", "c", "d"]]


# ------------------------------------------------------------
# On any grid: each rank has what the serial model has, bit for bit, and reads its own rows alone.

GRIDS = {
    "serial": ({}, {}),
    "dp2-zero1": (dict(dp=2), dict(zero=1)),
    "dp3-zero3": (dict(dp=3), dict(zero=3)),
    "dp4-zero2": (dict(dp=4), dict(zero=2)),
    "pp3": (dict(pp=3), {}),
    "tp2-sequence": (dict(tp=2), dict(sequence_parallel=True)),
    "tp4-more-than-heads": (dict(tp=4), {}),
    "dp2-pp2-tp3-zero3": (dict(dp=2, pp=2, tp=3), dict(zero=3)),
}


def built(comm, grid, more, **other):
    """An engine whose model has other values than what is read."""
    mesh = Mesh(comm, **grid)
    return parallelize(gpt(**other, device="meta"), mesh, adam, seed=3, **more)


def read_on(comm, folder, grid, more):
    """As `gaps` wants it, a loss of 0 and what this rank has; and its logits."""
    saved = Pretrained(folder)
    engine = built(comm, grid, more, **saved.options | dict(dtype=torch.float64))
    load(saved, engine.module, rename=engine.rename)
    return [0.0], held(engine), engine.logits(tokens().to(comm.device))


def compare(run, name, grid, folder):
    path, model = folder_of(name, folder, shard_bytes=3000)
    params = {name: p.detach() for name, p in model.named_parameters()}
    results = RUNS[run](ranks(GRIDS[grid][0]), read_on, path, *GRIDS[grid])
    _, parameter = gaps([found[:2] for found in results], [0.0], params)
    assert parameter == 0.0
    assert all((logits - model(tokens())).abs().max() < 1e-12 for *_, logits in results)


@pytest.mark.parametrize("grid", GRIDS)
@pytest.mark.parametrize("name", ["gpt2", "llama"])
def test_on_any_grid(name, grid, tmp_path):
    compare("world", name, grid, tmp_path)


@pytest.mark.parametrize("name", ["gpt2 untied", "llama tied, all heads"])
def test_in_processes(name, tmp_path):
    compare("processes", name, "dp3-zero3" if name[0] == "l" else "pp3", tmp_path)


def written_on(comm, folder, grid, more, name):
    """Saved on this grid, and written by all its ranks; the engine has the values of `random_model`."""
    model = random_model(name)
    engine = parallelize(model, Mesh(comm, **grid), adam, **more)
    checkpoints = Checkpoints(folder / "ours", comm)
    checkpoints.save(1, engine.pieces())
    write(checkpoints.latest(), folder / "theirs", options_of(model), comm, 1500)


@pytest.mark.parametrize("grid", ["dp3-zero3", "dp2-pp2-tp3-zero3"])
def test_written_from_any_grid(grid, tmp_path):
    """The same bytes, whoever writes them."""
    (tmp_path / "serial").mkdir()
    path, _ = folder_of("llama", tmp_path / "serial", shard_bytes=1500)
    World(ranks(GRIDS[grid][0])).run(written_on, tmp_path, *GRIDS[grid], "llama")
    both = [
        {file.name: file.read_bytes() for file in folder.iterdir()}
        for folder in (path, tmp_path / "theirs")
    ]
    assert len(both[0]) > 5 and both[0] == both[1]


def listed(comm, folder, name):
    """The files that this rank writes."""
    model, write_file = random_model(name), checkpoint_files.write
    written = []

    def listing(path, chunks):
        if path.suffix == ".safetensors":
            written.append(path.name)
        return write_file(path, chunks)

    saved = Checkpoints(folder / "ours", comm)
    saved.save(1, pieces(model))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(checkpoint_files, "write", listing)
        write(saved.latest(), folder / "theirs", options_of(model), comm, 3000)
    return written


def test_the_files_are_dealt_out(tmp_path):
    """In processes: the ranks of a World would see each other's."""
    found = RUNS["processes"](3, listed, tmp_path, "llama")
    every = sorted(path.name for path in (tmp_path / "theirs").glob("*.safetensors"))
    assert len(every) >= 6 and found == [every[rank::3] for rank in range(3)]


def counted(comm, folder, grid, more):
    """Bytes that this rank reads, and that it holds. Reading sends nothing, so no other rank runs meanwhile."""
    saved, read = Pretrained(folder), checkpoint_files._read
    sizes = []
    engine = built(comm, grid, more, **saved.options | dict(dtype=torch.float64))

    def counting(file, first, into):
        sizes.append(len(into))
        return read(file, first, into)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(checkpoint_files, "_read", counting)
        load(saved, engine.module, rename=engine.rename)
    return sum(sizes), sum(values.nbytes for *_, values in held(engine))


@pytest.mark.parametrize("grid", ["dp3-zero3", "tp4-more-than-heads", "pp3", "serial"])
@pytest.mark.parametrize("name", ["gpt2", "llama"])
def test_a_rank_reads_what_it_holds(name, grid, tmp_path, figure):
    path, model = folder_of(name, tmp_path, shard_bytes=3000)
    found = World(ranks(GRIDS[grid][0])).run(counted, path, *GRIDS[grid])
    whole = sum(p.nbytes for p in model.parameters())
    figure(f"{name}, {grid}: at most {max(a for a, _ in found)} of {whole} bytes")
    assert all(was_read == has for was_read, has in found)
    assert sum(has for _, has in found) >= whole


def peak_of(name, folder):
    world = World(1, cluster=Cluster.dgx_h100(), device="cpu")
    world.run(again, name, folder)
    return world.trace.memory[0].peak


def again(comm, name, folder):
    saved = Checkpoints(folder / "ours", comm).latest()
    write(saved, folder / "again", options_of(gpt(**LARGE[name], device="meta")), comm)


LARGE = {name: MODELS[name] | dict(hidden=96, layers=12, ffn=400) for name in ("gpt2", "llama")}


@pytest.mark.parametrize("name", LARGE)
def test_in_memory_is_one_tensor_at_a_time(name, tmp_path, figure):
    model = gpt(**LARGE[name])
    World(1).run(exported, model, tmp_path)
    most = max(p.nbytes for p in model.parameters())
    table = sum(s.rows.nbytes for found in sources(options_of(model)).values() for s in found)
    peak, whole = peak_of(name, tmp_path), sum(p.nbytes for p in model.parameters())
    figure(f"{name}: peak {peak} of {whole} bytes, {most} the largest tensor")
    # one of ours, a copy of it in the other order, and the one before, which is being written
    assert most < peak - table <= 3 * most < whole / 4


# ------------------------------------------------------------
# What follows a load: another dtype, masters, folders of others.


@pytest.mark.parametrize("zero", [0, 1, 3])
def test_masters_follow(zero, tmp_path):
    """A step of rate 0 leaves what was read, in bfloat16, with masters in float32."""
    path, model = folder_of("llama", tmp_path)

    def program(comm):
        saved = Pretrained(path)
        ours = parallelize(
            gpt(**saved.options | dict(dtype=torch.float32), device="meta"),
            Mesh(comm, dp=2),
            lambda groups: AdamW(groups, lr=0.0, weight_decay=0.0),
            amp="O2",
            zero=zero,
            seed=3,
        )
        load(saved, ours.module, rename=ours.rename)
        before = held(ours)
        ours.step(tokens(), tokens())
        return before, held(ours)

    params = {name: p.detach().float() for name, p in model.named_parameters()}
    for when in (0, 1):
        results = [([0.0], found[when]) for found in World(2).run(program)]
        _, parameter = gaps(results, [0.0], params)
        size = largest(p.abs().max().item() for p in params.values())
        assert parameter <= (0.0 if zero == 3 else size * 2**-8)


def changed(folder, name, **values):
    path = folder / name
    path.write_text(json.dumps(json.loads(path.read_text()) | values))


def test_parts_without_their_first_word(tmp_path):
    """The GPT-2 that everyone knows has "h.0.ln_1.weight", and masks that nobody reads."""
    path, model = folder_of("gpt2", tmp_path)
    with open(path / "model.safetensors", "rb") as file:
        entries = checkpoint_files.read_header(file)
        tensors = {
            name.removeprefix("transformer."): checkpoint_files.read_box(
                file, entry, (0,) * len(entry.shape), entry.shape
            )
            for name, entry in entries.items()
        }
    tensors["h.0.attn.bias"] = torch.ones(1, 1, 6, 6)
    checkpoint_files.write(path / "model.safetensors", checkpoint_files.safetensors(tensors))
    ours = gpt(**GPT2).eval()
    load(Pretrained(path), ours)
    assert torch.equal(ours(tokens()), model(tokens()))


WRONG = {
    "model_type is one of gpt2, llama, not 'bert'": dict(model_type="bert"),
    "scale_attn_by_inverse_layer_idx of a gpt2 is False here, not True": dict(
        scale_attn_by_inverse_layer_idx=True
    ),
    r"not one of \[0.0, 0.5\]": dict(embd_pdrop=0.5),
    "activation_function is one of .*, not 'relu'": dict(activation_function="relu"),
    r"c_fc.weight .* is \(12, 48\), which makes no layers.0.mlp.fc.weight \(20, 12\)": dict(
        n_inner=20
    ),
    "has no transformer.h.2.ln_1.weight; it has 28 tensors": dict(n_layer=3),
    "has no lm_head.weight": dict(tie_word_embeddings=False),
}
WRONG_LLAMA = {
    "attention_bias of a llama is False here, not True": dict(attention_bias=True),
    "hidden_act of a llama is 'silu' here, not 'gelu'": dict(hidden_act="gelu"),
    "not scaled here, as 'llama3' says": dict(rope_parameters=dict(rope_type="llama3")),
    r"rope_scaling of a llama is None here": dict(rope_scaling=dict(factor=8.0)),
    "6 heads of size 4 do not make 12 features": dict(head_dim=4),
}


@pytest.mark.parametrize("words", [*WRONG, *WRONG_LLAMA])
def test_other_models_are_refused(words, tmp_path):
    path, _ = folder_of("gpt2" if words in WRONG else "llama", tmp_path)
    Pretrained(path)
    changed(path, "config.json", **(WRONG | WRONG_LLAMA)[words])
    with pytest.raises(Refused, match=words):
        Pretrained(path)


def test_configs_of_older_versions():
    config = config_of(options_of(gpt(**LLAMA, device="meta")))
    del config["rope_parameters"]
    assert options(config)["theta"] == 100.0
    del config["rope_theta"], config["num_key_value_heads"], config["head_dim"]
    assert options(config)["theta"] == 10_000.0 and options(config)["kv_heads"] == 6
    del config["hidden_size"]
    with pytest.raises(Refused, match="the config of a llama lacks 'hidden_size'"):
        options(config)


def test_folders_that_cannot_be_read(tmp_path):
    with pytest.raises(Refused, match=r"config.json cannot be read"):
        Pretrained(tmp_path / "nowhere")
    path, _ = folder_of("gpt2", tmp_path, shard_bytes=2000)
    [second] = path.glob("model-00002-of-*.safetensors")
    whole = second.read_bytes()
    second.write_bytes(whole[:-1])
    with pytest.raises(Refused, match="is no whole safetensors file"):
        Pretrained(path)
    second.unlink()
    with pytest.raises(Refused, match=r"model-00002-of-.* cannot be read"):
        Pretrained(path)
    changed(path, "model.safetensors.index.json", weight_map=[])
    with pytest.raises(Refused, match="has no map of weights"):
        Pretrained(path)
    second.write_bytes(whole)
    changed(path, "model.safetensors.index.json", weight_map={"a": f"../x/{second.name}"})
    with pytest.raises(Refused, match=r"it has [1-9]+ tensors"):
        Pretrained(path)  # what an index says lies in its folder


def test_models_that_have_no_name_there(tmp_path):
    neither = options_of(gpt(**GPT2 | dict(gated=True), device="meta"))
    with pytest.raises(ValueError, match=r"it has .*'gated': True.*a gpt2 has {'gated': False}; a"):
        kind_of(neither)
    with pytest.raises(ValueError, match=r"a gpt2 has {'kv_heads': 6}"):
        kind_of(options_of(gpt(**GPT2 | dict(kv_heads=2), device="meta")))


def test_another_model_than_what_is_read(tmp_path):
    path, _ = folder_of("gpt2", tmp_path)
    with pytest.raises(ValueError, match=r"tokens.weight is \(14, 12\) here, and \(13, 12\)"):
        load(Pretrained(path), gpt(**GPT2 | dict(vocab=14)))
    with pytest.raises(ValueError, match=r"1 tensors more than the model: model/positions.weight"):
        load(Pretrained(path), gpt(**GPT2 | dict(rotary=True)))


def test_a_new_folder_or_none(tmp_path, monkeypatch):
    path, model = folder_of("gpt2", tmp_path)
    before = sorted(file.name for file in path.iterdir())
    with pytest.raises(ValueError, match="is there already: a model is written into a new folder"):
        World(3).run(exported, model, tmp_path)
    assert before == ["config.json", "model.safetensors"]
    monkeypatch.setattr(Saved, "whole", lambda *_: 1 / 0)
    with pytest.raises(OSError, match="was not written: rank 0: ZeroDivisionError"):
        World(2).run(
            lambda comm: write(
                Saved(checkpoint_files.finished(tmp_path / "ours")[-1]),
                tmp_path / "other",
                options_of(gpt(**GPT2, device="meta")),
                comm,
            )
        )
    assert not (tmp_path / "other").exists()


def test_more_in_the_config(tmp_path):
    path, _ = folder_of("gpt2", tmp_path, more={"eos_token_id": 7})
    config = json.loads((path / "config.json").read_text())
    assert (config["eos_token_id"], config["dtype"]) == (7, "float64")
