# %% [markdown]
# # 26 · Survive
#
# A single GPU rarely fails. Yours may run for years before it does, or before its cable, its power supply or the operating system of its node gives up. If you have only one, that is no reason to worry. But a large run is a team in which everybody waits for everybody: in each step every rank needs a message from the others, so the first one that dies stops them all.
#
# [OPT-175B](paper:zhang2022) was trained on 992 GPUs in about two months. Its authors report at least 35 restarts by hand and more than 70 automatic ones. **How many hours did that run last, on average, between two failures?**

# %%
guess_hours = 200.0  # hours: change this number

# %% [markdown]
# In this lesson you make a run that survives: it saves what it needs, in files that no power cut can spoil, finds the newest good ones after a crash, and goes on as if nothing had happened, *bit for bit*. Then we ask how often it should save, what a training step pays for that, and how to go on when the machine that comes back has fewer GPUs than the one that failed.

# %%
import json
import math
import os
import pickle
import signal
import tempfile
import threading
import time
import warnings
from hashlib import sha256
from pathlib import Path

import torch

from minidist import study
from minidist.comm import World, launch

temporary = tempfile.TemporaryDirectory()  # gone with the notebook
HERE = Path(temporary.name)

hours_between = 60 * 24 / (35 + 70)  # 60 days, 105 restarts
gpu_hours_between = 992 * hours_between

# %% tags=["answer"]
ns = [2**k for k in range(13)]
study.reveal(
    guess_hours,
    round(hours_between, 1),
    study.curves(
        {"a GPU fails every 13,600 h": (ns, [gpu_hours_between / n for n in ns])},
        points={"OPT-175B": ([992], [hours_between])},
        logx=True,
        logy=True,
        xlabel="GPUs",
        ylabel="hours between failures",
        title="n GPUs fail n times as often",
    ),
    unit="h",
    words="The run lasted at most that long, since there were at least so many restarts. For a single GPU it amounts to one failure in 19 months.",
)

# %% tags=["maintainer"]
[opt] = [row for row in study.published("training_runs") if row["quantity"] == "manual_restarts"]
assert opt["value"] == 35 and "70+ automatic" in opt["note"] and "2 months" in opt["note"]
assert 13 < hours_between < 14 and 18 < 12 * gpu_hours_between / 8760 < 19

# %% [markdown]
# The average time from one failure to the next is called the [mean time between failures](term:mean-time-between-failures), or MTBF. If parts fail independently, *n* of them fail *n* times as often as one, and the MTBF of the whole is an *n*-th of theirs. If failures come at random, the chance that a run of length *t* meets none is $e^{-t/M}$, with *M* for the MTBF. For two months it is e⁻¹⁰⁵, so hoping for luck is not a plan.
#
# ## On paper: 3 ranks, 6 numbers
#
# A [checkpoint](term:checkpoint) is a copy, on a disk, of everything that a run needs to go on. (It has nothing to do with the checkpoints of [Memory for compute](lesson:remat), which live in memory for the length of one step.) In a run of one process it is one file. In a large run nobody *has* everything: the weights and the optimizer's states are spread over the ranks, and after [ZeRO](lesson:zero), [Tensor parallel](lesson:tensor) and [Pipelines](lesson:pipelines) each rank holds a few pieces of a few tensors.
#
# So let each rank write what it has, in a file of its own, all at the same time. Somebody must then know how the pieces fit together. Let a tensor `x` be the six numbers 0 to 5, with two of them on each of three ranks, and let a single number `scale` be the same on all. Each rank describes each piece in three facts: the *name* of the whole tensor, the *shape* of the whole, and *where* its own part begins. Rank 1 says "of `x`, which is (6,), I have two numbers from 2 on".

# %%
from minidist.checkpoint import Checkpoints, Piece, files


def save_six(comm, folder):
    x = torch.arange(6.0)[2 * comm.rank : 2 * comm.rank + 2]
    my_pieces = [
        Piece("x", x, whole=(6,), first=(2 * comm.rank,)),
        Piece("scale", torch.tensor(8.0)),  # whole, and alike on all ranks
    ]
    Checkpoints(folder, comm).save(50, my_pieces)  # 50: the step


World(3).run(save_six, HERE / "six")
[path] = files.finished(HERE / "six")
manifest = json.loads((path / "manifest.json").read_text())
rows = []
for name in ("scale", "x"):
    for file, first, size in manifest["tensors"][name]["pieces"]:
        rows.append((name, str(first), str(size), file))
study.table(
    rows, ["tensor", "begins at", "size", "lies in"], title=f"The manifest of {path.name}: tensors"
)

# %% [markdown]
# `x` lies in three files. `scale`, which all three ranks had, was written once, by one of them: there is no need for three copies. (A single number has no dimensions, hence the empty lists.) The table of contents is called the [manifest](term:manifest). Besides the tensors it lists the files, with the size of each and a [checksum](term:checksum), a number computed from all its bytes. If a single bit of the file changes, so does the checksum. This one is called SHA-256 and has 256 bits; the table shows the first 64.

# %%
study.table(
    [(name, nbytes, digest[:16] + "…") for name, (nbytes, digest) in manifest["files"].items()],
    ["file", "bytes", "SHA-256"],
    title="The manifest: what each file must be",
)

# %% [markdown]
# ![A checkpoint in files. Four ranks write four files at the same time. When all are on the disk, rank 0 writes the manifest. Each file is written as name.partial, flushed to the disk with fsync, and renamed.](../course/26_survive/figures/checkpoint_files.svg)
#
# The picture has two halves: the files of all ranks above, the life of one file below. The next two sections explain why each is as it is.
#
# ## Naive first: one file, with pickle
#
# The obvious way to save a run is to send everything to rank 0 and to let it write `pickle.dumps(state)` over the previous file. It has three faults. The first shows when the power fails. Here it fails half-way through the second save. **What can be loaded afterwards?**

# %%
guess_left = "step 50"  # or "step 40", or "neither"


# %%
def naive_save(path, state, power_fails=False):
    data = pickle.dumps(state)
    if power_fails:
        data = data[: len(data) // 2]
    path.write_bytes(data)  # empties the old file first


def naive_load(path):
    return pickle.loads(path.read_bytes())


old_file = HERE / "naive.pkl"
naive_save(old_file, {"step": 40, "weights": list(range(100))})
naive_save(old_file, {"step": 50, "weights": list(range(100))}, power_fails=True)
try:
    loaded = f"step {naive_load(old_file)['step']}"
except pickle.UnpicklingError:
    loaded = "neither"

# %% tags=["answer"]
study.reveal(
    guess_left,
    loaded,
    options=["step 50", "step 40", "neither"],
    words="The old state was destroyed in order to write the new one, and the new one was not finished. The save "
    "that was meant to protect the run has killed it.",
)

# %% tags=["maintainer"]
assert loaded == "neither"

# %% [markdown]
# The second fault is [pickle](term:pickle) itself. A pickle is not data. It is a list of instructions, and among them is "import this function and call it". Whoever unpickles a stranger's file does what the stranger wants. This one is harmless:


# %%
class Surprise:
    def __reduce__(self):  # tells pickle how to build the object again: by a call
        words = "I am running while you load a checkpoint. I could have deleted your files."
        return print, (words,)


poisoned = pickle.dumps({"weights": Surprise()})
pickle.loads(poisoned)

# %% [markdown]
# So nothing in this course's checkpoints is ever unpickled. Tensors lie in [safetensors](term:safetensors) files: a header in JSON that says which tensor lies where, and then the plain bytes. The rest is JSON as well. Neither can call anything.
#
# The third fault is a matter of size. BLOOM was trained on 48 nodes of 8 GPUs, and its team gives the checkpoint as 2.3 TB: bf16 weights, and the fp32 copy and two moments that Adam keeps. No rank has the memory to hold it. And if every node can write 2 GB/s (an assumption, as disks differ widely in speed), one node takes 19 minutes for it, while 48 nodes that write side by side take 24 seconds. Meanwhile 384 GPUs wait. **Weights that are spread over many ranks must be saved by many ranks.**

# %%
BLOOM = 2.3e12  # bytes of a checkpoint
for nodes in (1, 48):
    print(f"{nodes:2} × 2 GB/s: {BLOOM / (nodes * 2e9):,.0f} s")

# %% tags=["maintainer"]
[size] = [
    row["value"] * 10**12
    for row in study.published("training_runs")
    if row["quantity"] == "checkpoint_size"
]
# bf16 parameters 2, fp32 copy and Adam's moments 12 bytes each
assert size == BLOOM and abs(14 * 176.2e9 / size - 1) < 0.08

# %% [markdown]
# ## Whole or not at all
#
# Take the first fault first. We want a file to be [atomic](term:atomic-write): whoever looks, at any moment, sees the whole old file or the whole new one, and never something in between. File systems give us one operation that is atomic: renaming. So write the new file under another name, and rename it when it is finished.
#
# Is that enough? Not against a power cut. What a program "writes" goes into the memory of the operating system, which brings it to the disk when it pleases, and in whatever order it pleases. The new *name* may reach the disk before the *bytes*. After the power cut there would be a file with the right name and nothing in it. Between writing and renaming the program must therefore wait until the bytes are on the disk. That call is [fsync](term:fsync).


# %%
def sync_folder(path):
    """Return when the names in a folder are safe."""
    folder = os.open(path, os.O_RDONLY)
    os.fsync(folder)
    os.close(folder)


def write_whole(path, data):
    """Write a file of these bytes, whole or not at all."""
    partial = path.with_name(path.name + ".partial")
    with open(partial, "wb") as file:
        file.write(data)
        file.flush()  # from Python to the operating system
        os.fsync(file.fileno())  # from there to the disk: returns when the bytes are safe
    os.replace(partial, path)  # atomic: the old file, or all of the new one
    sync_folder(path.parent)  # a name is an entry in its folder: now that is safe, too


# %% [markdown]
# Go through the lines and cut the power after each. After `write` and `flush` there may be a part of `x.partial`; nobody looks at that. After the first `fsync` there is all of it, still under the wrong name. After `os.replace` there is the old file or the new one, and both are whole. After the last `fsync` it is certainly the new one. This sequence is known as [atomic replace](paper:pillai2014), and databases and editors use it, too.
#
# ### Many files, one moment
#
# Now *n* ranks write *n* files, each of them atomically. That does not make the checkpoint atomic: the power may fail when five of eight files are new. The trick is to let *one* rename decide for all. A folder is a checkpoint if and only if there is a manifest in it, and the manifest is written when everything else is safe:
#
# 1. Each rank writes its own file, whole or not at all, in a *new* folder. Nothing old is touched.
# 2. Each rank tells the others the size and the checksum of its file. Since a rank speaks only after its last `fsync`, whoever has heard from all of them knows that all files are safe.
# 3. Rank 0 writes the manifest, whole or not at all. *At this moment the checkpoint comes into being.*
# 4. The new folder's own name must last, too: rank 0 calls `fsync` on the folder above.
# 5. Only then may an older checkpoint be removed, its manifest first.
#
# Whenever the power fails, there is either no manifest, and the folder counts for nothing, or there is one, and all that it names is there.

# %%
from minidist.collectives import all_gather_json, barrier


def save_sharded(comm, folder, step, data):
    """Save every rank's bytes as one checkpoint."""
    path = folder / f"step-{step}"
    path.mkdir(parents=True, exist_ok=True)
    name = f"rank-{comm.rank}"
    write_whole(path / name, data)
    entry = [name, len(data), sha256(data).hexdigest()]
    entries = all_gather_json(comm, entry)  # returns when all have written
    if comm.rank == 0:
        write_whole(path / "manifest", json.dumps(entries).encode())
        sync_folder(folder)  # the name of the new folder, too
    barrier(comm)  # no rank goes on before the checkpoint exists


def is_checkpoint(path):
    """Whether a folder was finished, and every file in it is as it was written."""
    if not (path / "manifest").exists():
        return False
    for name, nbytes, digest in json.loads((path / "manifest").read_text()):
        data = (path / name).read_bytes()
        if len(data) != nbytes or sha256(data).hexdigest() != digest:
            return False
    return True


World(3).run(lambda comm: save_sharded(comm, HERE, 50, bytes(100 * (comm.rank + 1))))
print(sorted(file.name for file in (HERE / "step-50").iterdir()), is_checkpoint(HERE / "step-50"))

# %% [markdown]
# The library's `Checkpoints` does the same for pieces of tensors. We shall read it below. First let us attack it: three real processes save step 40, and then step 50, and in the second save rank 2 is killed at the moment when its file should get its name. `SIGKILL` is the signal that no process can catch: the rank stops between two instructions, as it would in a power cut. (There is one difference: what the operating system has already taken still reaches the disk.)


# %%
def save_step(comm, folder, step):
    """A tensor of two numbers on each rank."""
    x = torch.full((2,), float(step + comm.rank))
    piece = Piece("x", x, whole=(2 * comm.size,), first=(2 * comm.rank,))
    Checkpoints(folder, comm).save(step, [piece])


def dying(comm, folder):
    save_step(comm, folder, 40)

    def die(*names):
        while len(list((folder / "000002-step-50").glob("*.safetensors"))) < 2:
            time.sleep(0.01)  # the other two are done first, so that you see what we see
        os.kill(os.getpid(), signal.SIGKILL)

    if comm.rank == 2:
        os.replace = die
    save_step(comm, folder, 50)


from minidist.comm.base import PeerLost

try:
    launch(dying, 3, HERE / "dying")
except PeerLost as error:
    print(str(error).splitlines()[0])

# %% [markdown]
# The survivors were told who is gone. What is on the disk, and which checkpoint does a new run find?


# %%
def newest(comm, folder):
    """Step and numbers of the newest good checkpoint, and what was said of others."""
    checkpoints = Checkpoints(folder, comm)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it warns; we print what it refused instead
        found = checkpoints.latest()
    refused = [why.split(str(folder) + os.sep)[1] for why in checkpoints.refused.values()]
    return found.step, found.whole("x").tolist(), refused


step, numbers, _ = World(3).run(newest, HERE / "dying")[0]
rows = []
for folder in files.begun(HERE / "dying"):
    names = ", ".join(sorted(file.name for file in folder.iterdir()))
    rows.append((folder.name, names, "yes" if f"step-{step}" in folder.name else "no"))
study.table(rows, ["folder", "files", "used?"], title="After the kill")

# %% tags=["maintainer"]
assert (step, numbers) == (40, [40, 40, 41, 41, 42, 42])
assert [row[0] for row in rows] == ["000001-step-40", "000002-step-50"]

# %% [markdown]
# Step 50 has no manifest, and one of its files never got its final name, so step 40 is used. The next save removes the debris.
#
# ## Break it
#
# A loss of power is not all that can happen. Disks flip bits, files are copied only in part, and someone tidies up. Here are two good checkpoints, 40 and 50, and six ways to harm the second. **How many of the six are noticed, so that step 40 is used?**

# %%
guess_noticed = 3  # of 6


# %%
def flip_a_bit(file):
    data = bytearray(file.read_bytes())
    data[-3] ^= 1
    file.write_bytes(data)


def cut_a_byte(file):
    file.write_bytes(file.read_bytes()[:-1])


def harm(folder, what):
    rank_1 = folder / "rank-00001.safetensors"
    if what == "a byte is missing":
        cut_a_byte(rank_1)
    if what == "one bit is flipped":
        flip_a_bit(rank_1)
    if what == "a rank's file is gone":
        rank_1.unlink()
    if what == "a bit of the manifest":
        flip_a_bit(folder / "manifest.json")
    if what == "no manifest":
        (folder / "manifest.json").unlink()
    if what == "a pickle as manifest":
        (folder / "manifest.json").write_bytes(poisoned)


def save_two(comm, folder):
    for step in (40, 50):
        save_step(comm, folder, step)


KINDS = [
    "a byte is missing",
    "one bit is flipped",
    "a rank's file is gone",
    "a bit of the manifest",
    "no manifest",
    "a pickle as manifest",
]
rows = []
for what in KINDS:
    folder = HERE / what.replace(" ", "-")
    World(3).run(save_two, folder)
    harm(folder / "000002-step-50", what)
    step, _, refused = World(3).run(newest, folder)[0]
    words = refused[0].split(": ")[0].split(" (")[0] if refused else "nothing"
    rows.append((what, step, words.removeprefix("000002-step-50/")))

# %% tags=["answer"]
study.reveal(
    guess_noticed,
    sum(step == 40 for _, step, _ in rows),
    study.table(
        rows,
        ["what was done", "step used", "what is said"],
        title="The newest of 40 and 50 that is whole",
    ),
    unit="of 6",
    words="A folder without a manifest was never finished, so there is nothing to complain about. The manifest has a "
    "checksum of its own. The pickle is read as JSON, which it is not, and runs nothing.",
)

# %% tags=["maintainer"]
assert rows[4] == ("no manifest", 40, "nothing") and [row[1] for row in rows] == [40] * 6

# %% [markdown]
# The price is that every byte is read once before anything is loaded, and the ranks share that work. What would happen without the check? A flipped bit in an fp32 weight may hardly matter, or may make the weight 2¹²⁸ times as large. Nobody would know, and no message would ever say so.
#
# ## What must be in it?
#
# Now the checkpoint is safe, but is it complete? The rule is short: **it contains everything that the next step depends on.** Weights come to mind first. The list of what people forget is longer, and here is a run that has five such things: dropout, which draws random numbers on each rank; a shuffled order of the data, and a position in it; AdamW with its moments; a cosine schedule for the learning rate; and a [loss scale](term:loss-scaling), since the gradients pass through fp16.

# %%
from torch import nn
from torch.nn.functional import cross_entropy

from minidist.checkpoint import load, pieces, random_state, set_random_state
from minidist.collectives import all_reduce_
from minidist.models import mlp
from minidist.parallel.data import DataParallel
from minidist.tasks import digits
from minidist.train.amp import LossScaler

task = digits()
torch.set_num_threads(1)  # as the processes have: with more, sums may be added in another order


class InHalf(nn.Module):
    """What comes through is fp16; gradients on their way back, too."""

    def forward(self, x):
        return x.half().float()


class Run:
    """All that one rank's training remembers."""

    def __init__(self, comm):
        torch.manual_seed(comm.rank)  # for dropout: other masks on each rank
        first, act, last = mlp([64, 32, 10])
        self.comm = comm
        self.module = nn.Sequential(first, act, nn.Dropout(0.2), InHalf(), last)
        self.model = DataParallel(self.module, comm)
        self.optimizer = torch.optim.AdamW(self.module.parameters(), lr=0.01)
        self.schedule = torch.optim.lr_scheduler.CosineAnnealingLR(self.optimizer, 60)
        self.scaler = LossScaler(growth_interval=4, comm=comm)
        self.order = torch.randperm(1400, generator=torch.Generator().manual_seed(5))
        self.position = 0
        self.step = 0


def train(run, steps, batch=21):
    """Train for some steps; returns the loss of each, averaged over the ranks."""
    losses = []
    for _ in range(steps):
        at = torch.arange(run.position, run.position + batch) % 1400
        rows = run.order[at][run.comm.rank :: run.comm.size]
        run.optimizer.zero_grad()
        loss = cross_entropy(run.model(task.x[rows].float()), task.y[rows])
        run.scaler.scale(loss).backward()
        run.scaler.step(run.optimizer)
        run.scaler.update()
        run.schedule.step()
        run.step += 1
        run.position += batch
        losses.append(all_reduce_(run.comm, loss.detach().clone(), "mean").item())
    return losses


# %% [markdown]
# Some of this is split over the ranks, some is alike on all, and some belongs to each. A checkpoint has a place for each kind. `pieces(model, optimizer)` describes the parameters and the optimizer's states, however they are split. `common` is alike on all ranks, so rank 0's copy is saved. `own` is each rank's: the state of its [random generators](term:random-state).


# %%
def save(run, folder):
    common = {
        "schedule": run.schedule.state_dict(),
        "scaler": run.scaler.state_dict(),
        "position": run.position,
    }
    own = {"random numbers": random_state()}
    checkpoints = Checkpoints(folder, run.comm)
    checkpoints.save(run.step, pieces(run.module, run.optimizer), common, own)


def resume(run, folder, forget=None):
    """Load the newest checkpoint into a run that was just built, but for what we forget."""
    checkpoints = Checkpoints(folder, run.comm)
    found = checkpoints.latest()
    common = checkpoints.common(found)
    own = checkpoints.own(found)
    load(found, run.module, None if forget == "optimizer" else run.optimizer)
    run.step = found.step
    if forget != "schedule":
        run.schedule.load_state_dict(common["schedule"])
    if forget != "scaler":
        run.scaler.load_state_dict(common["scaler"])
    if forget != "position in the data":
        run.position = common["position"]
    if forget != "random numbers":
        set_random_state(own["random numbers"])


# %% [markdown]
# Now in three real processes. The run saves at steps 20 and 40, and at step 50 rank 2 is killed.


# %%
def killed(comm, folder):
    run = Run(comm)
    for steps in (20, 20, 10, 10):
        train(run, steps)
        if run.step in (20, 40):
            save(run, folder)
        if run.step == 50 and comm.rank == 2:
            os.kill(os.getpid(), signal.SIGKILL)


try:
    launch(killed, 3, HERE / "run")
except PeerLost as error:
    print(str(error).splitlines()[0])

# %% [markdown]
# A killed rank must be *found*, *named* and *recovered from*. Found: the parent of the processes sees at once that a child has ended, and the others, who are waiting in an all-reduce for a message that will never come, are told. Named: the message says which rank and which signal, since the next question is which machine to take out. Recovered from: all ranks end, and all start again from the newest checkpoint. Could the two survivors not simply go on? They have copies of the weights here, but with ZeRO a third of the optimizer's states died with rank 2.
#
# So three new processes resume at step 40 and run to step 60. Another run of 60 steps was never disturbed. **By how much do the losses of steps 41 to 60 differ at most?**

# %%
guess_off = 0.01  # change this number


# %%
def undisturbed(comm):
    run = Run(comm)
    return train(run, 60), [p.detach() for p in run.module.parameters()]


def resumed(comm, folder, forget=None, last=60):
    run = Run(comm)
    resume(run, folder, forget)
    return train(run, last - run.step), [p.detach() for p in run.module.parameters()]


losses, parameters = launch(undisturbed, 3)[0]
losses_again, parameters_again = launch(resumed, 3, HERE / "run")[0]

# %% tags=["answer"]
study.reveal(
    guess_off,
    max(abs(a - b) for a, b in zip(losses[40:], losses_again)),
    study.curves(
        {"undisturbed": (list(range(1, 61)), losses)},
        points={"resumed at 40": (list(range(41, 61)), losses_again)},
        xlabel="step",
        ylabel="loss",
        title="Equal to the last bit",
        words="the loss falls over 60 steps; the points of the resumed run, from step 41 on, lie on the line",
    ),
    words="Zero. Every loss and every parameter is equal, to the last bit. Ten steps were computed twice; nothing else was lost.",
)

# %% tags=["maintainer"]
assert losses_again == losses[40:]
assert all(a.equal(b) for a, b in zip(parameters_again, parameters))

# %% [markdown]
# Why insist on the last bit, when training is noisy anyway? Because equality is the only test that cannot be fooled. "The curve looks right" is what people say of runs that forgot something, as you will see now.
#
# ### Leave one out
#
# Resume five times, and each time forget one thing. All five runs go on without any error. **Whose loss is the last to be off by more than 0.001?**

# %%
guess_longest = "optimizer"  # "random numbers", "position in the data", "schedule" or "scaler"

# %%
left_out = ["random numbers", "position in the data", "optimizer", "schedule", "scaler"]
gaps = {}
for forget in left_out:
    found, _ = World(3).run(resumed, HERE / "run", forget, 50)[0]
    gaps[forget] = [abs(a - b) for a, b in zip(found, losses[40:])]

# %% tags=["answer"]
study.reveal(
    guess_longest,
    max(gaps, key=lambda name: [gap > 0.001 for gap in gaps[name]].index(True)),
    study.curves(
        {
            name: (
                [step for step, gap in enumerate(gap_at, 41) if gap > 0],
                [gap for gap in gap_at if gap > 0],
            )
            for name, gap_at in gaps.items()
        },
        logy=True,
        xlabel="step",
        ylabel="difference from the undisturbed loss",
        title="Each line begins where the loss first differs",
        words="without random numbers or position the loss differs at once, without optimizer from step 42 on, without scaler from 43, without schedule from 44",
    ),
    options=left_out,
    words="Three losses without the schedule are exact, and the fourth is off in the third digit. The rate of step 41 was "
    "loaded with the optimizer, and step 42 is skipped, since its gradients overflow in fp16. From there on the rate "
    "falls as slowly as at the start of a run. No error says so.",
)


# %%
def rate_of_45(comm, forget):
    run = Run(comm)
    resume(run, HERE / "run", forget)
    train(run, 4)  # steps 41 to 44
    return run.optimizer.param_groups[0]["lr"]


for forget in (None, "schedule"):
    rate = World(3).run(rate_of_45, forget)[0]
    print(f"forgotten: {forget}; the learning rate of step 45 is {rate:.4f}")

# %% tags=["maintainer"]
again, _ = World(3).run(resumed, HERE / "run", None, 50)[0]
assert again == losses[40:50] and all(max(gap) > 0.01 for gap in gaps.values())
assert [n for n, gap in gaps.items() if gap[0] > 0] == ["random numbers", "position in the data"]
assert gaps["schedule"][:3] == [0, 0, 0] and 0.001 < gaps["schedule"][3] < 0.003
assert gaps["scaler"][2] > 0 and gaps["optimizer"][1] > 0.001

# %% [markdown]
# Random numbers and the position in the data show at once, since the first loss after the restart already depends on them. Without the optimizer's moments the first loss is still right, because it is the loss of the loaded parameters; only the step that follows is wrong. So a test that resumes, looks at one loss, and is content would have passed three of the five. Test yours like this: run 2k steps; run k, save, start a new process, run k more; compare *all* losses and parameters with `==`.
#
# A list to go through for your own program: weights and buffers, optimizer, fp32 masters, learning-rate schedule, loss scale, step and position in the data (and in the epoch's order), random generators on host and GPU, error feedback of a compressor ([Talk less](lesson:compress)), the tokenizer, and the flags with which the run was started.
#
# ## How often?
#
# Saving costs time, but so does not saving. Let a save take δ seconds, let a failure come every *M* seconds on average, let a restart take *R* seconds, and let τ be the seconds of training between two saves. Two bills arrive:
#
# - **Saves.** Each interval τ pays δ. That is δ/τ of the time, and falls with τ.
# - **Failures.** A failure destroys the work since the last save. It may come at any moment of the interval, early or late alike, so it destroys half an interval on average; and a restart comes on top. With one failure in *M* seconds, that is (τ/2 + *R*)/*M* of the time, and rises with τ.
#
# ![A run saves every 100 steps and is killed at step 250. It goes on from step 200, so 50 steps are done twice. Below, three bars: saving often, most of the cost is saving; seldom, most is lost work; in between both parts are equal.](../course/26_survive/figures/failure_on_a_time_line.svg)
#
# The sum is δ/τ + (τ/2 + *R*)/*M*. Where it is smallest, its slope is zero: −δ/τ² + 1/(2*M*) = 0, hence τ² = 2δ*M* and
#
# $$\tau = \sqrt{2\delta M}.$$
#
# This is Young's [checkpoint interval](term:checkpoint-interval), [published in 1974](paper:young1974). Notice three things. At the optimum both bills are equal. The restart has no say in it: it is paid however often one saves. And the interval changes only with the square root of *M*: with four times the GPUs, and a save that takes as long as before, one saves twice as often, and loses twice as much in saves and repeated work.
#
# Let BLOOM's checkpoint of 2.3 TB be written at 20 GB/s by all nodes together, let a restart take ten minutes (both are assumptions), and let failures come as they did to OPT. A save then takes 115 seconds. **How many minutes should pass between two saves?**

# %%
guess_minutes = 10  # change this number


# %%
def young(save, mtbf):
    return math.sqrt(2 * save * mtbf)


def lost(every, save, mtbf, restart):
    """Share of the time that is lost: the sum of both bills."""
    return save / every + (every / 2 + restart) / mtbf


SAVE = BLOOM / 20e9  # seconds
RESTART = 600
MTBF = 3600 * hours_between
best = young(SAVE, MTBF)

# %% [markdown]
# Is the formula right? It took two shortcuts: it neglects that a second failure may strike before the lost work is done again, and it counts both bills as shares of the useful time rather than of all time. If failures come at random, with no memory, we can do without both. The chance that a run lives longer than *t* is $e^{-t/M}$. A life of length *t* finishes as many intervals, each with its save, as fit: $\lfloor t/(\tau+\delta)\rfloor$. At least *k* fit with the chance $e^{-k(\tau+\delta)/M}$, and adding these chances for *k* = 1, 2, 3, … gives the mean number, a geometric series: $1/(e^{(\tau+\delta)/M}-1)$. Each of them is worth τ seconds of work, and a life with its restart takes *M* + *R* on average:
#
# $$\text{lost} = 1-\frac{\tau}{M+R}\cdot\frac{1}{e^{(\tau+\delta)/M}-1}.$$
#
# [Daly](paper:daly2006) derived a formula of this kind in 2006, and a series of corrections to Young's interval from it. Let us plot both, together with a simulated run whose 4,000 failures are drawn at random.


# %%
def lost_exactly(every, save, mtbf, restart):
    intervals = 1 / math.expm1((every + save) / mtbf)  # those that a life finishes
    return 1 - every * intervals / (mtbf + restart)


def simulate(every, failures=4000):
    """Work counts once it is saved; all else is lost."""
    generator = torch.Generator().manual_seed(0)
    lives = torch.empty(failures, dtype=torch.float64)
    lives.exponential_(1 / MTBF, generator=generator)
    worked = (lives / (every + SAVE)).floor() * every
    return 1 - float(worked.sum() / (lives + RESTART).sum())


minutes = [10, 20, 35, 56, 90, 150, 300]
fine = [10 * 30 ** (k / 60) for k in range(61)]
lines = {}
for name, formula in [("Young", lost), ("exact", lost_exactly)]:
    lines[name] = fine, [100 * formula(60 * m, SAVE, MTBF, RESTART) for m in fine]
simulated = [100 * simulate(60 * m) for m in minutes]

# %% tags=["answer"]
study.reveal(
    guess_minutes,
    round(best / 60),
    study.curves(
        lines,
        points={"simulated": (minutes, simulated)},
        logx=True,
        xlabel="minutes between saves",
        ylabel="% of the time lost",
        title="How often to save",
    ),
    unit="min",
    words="The simulated points lie on the exact line. Young's sum is somewhat too high where much is lost, "
    "but its lowest point is almost at the same interval.",
)

# %%
exact_best = min(fine, key=lambda m: lost_exactly(60 * m, SAVE, MTBF, RESTART))
at_best = lost(best, SAVE, MTBF, RESTART)
print(f"Young: every {best / 60:.0f} minutes, {at_best:.1%} lost")
print(f"exact: every {exact_best:.0f} minutes")
print(
    f"saves {SAVE / best:.1%}, computed again {best / 2 / MTBF:.1%}, restarts {RESTART / MTBF:.1%}"
)

# %% tags=["maintainer"]
assert 55 < best / 60 < 57 and 0.079 < at_best < 0.082
exact = [100 * lost_exactly(60 * m, SAVE, MTBF, RESTART) for m in minutes]
assert all(abs(a / b - 1) < 0.04 for a, b in zip(exact, simulated))
assert min(zip(simulated, minutes))[1] == 56 and 52 < exact_best < 57
eight = MTBF * 992 / 8
ten_hours = young(SAVE, eight)
assert 9 < eight / 604800 < 11 and 9.5 < ten_hours / 3600 < 10.5
assert lost(ten_hours, SAVE, eight, RESTART) < 0.01
half_more = lost(1.5 * best, SAVE, MTBF, RESTART) - at_best
assert 0.005 < half_more < 0.0065 and f"{at_best + half_more:.1%}" == "8.6%"

# %% [markdown]
# The valley is flat. With an interval half as long again as the best one, 84 minutes, the loss is 8.6 % of the time in place of 8.0 %. So do not measure δ and *M* to three digits; it is enough to know whether you should save every ten minutes or every ten hours. What helps is to save *faster*. Try it:


# %%
def bills(gpus, save, years):
    mtbf = years * 365 * 24 * 3600 / gpus
    every = young(save, mtbf)
    if every / 2 + RESTART > mtbf:
        raise ValueError("a failure comes before the next save: nothing gets done")
    return {
        "saves": 100 * save / every,
        "computed again": 100 * every / 2 / mtbf,
        "restarts": 100 * RESTART / mtbf,
        "a save every": f"{every / 60:.0f} min",
    }


study.explore(
    bills,
    gpus=[8, 64, 256, 1024, 4096, 16384],
    save=[1, 10, 30, 115, 300],
    years=[0.5, 1.5, 5],
    labels={"gpus": "GPUs", "save": "seconds of a save", "years": "years until a GPU fails"},
    start={"gpus": 1024, "save": 115, "years": 1.5},
    unit="%",
    stack=True,
    ylabel="of the time",
    title="What failures take, at Young's interval",
)

# %% [markdown]
# **When not to.** With 8 GPUs of this kind a failure comes every ten weeks. A save of 115 seconds is then due every ten hours, and less than 1 % is lost. Your own mistakes come more often, and so does the time limit of a job: save before it ends.
#
# ## What a step pays
#
# All this time the GPUs waited for the disk. Must they? A save has two parts: *copying* the state, so that it is the state of one step, and *writing* the copy. Only the copy must be made while training stands still, and it goes into the host's memory, over a link that is many times faster than a shared file system. Such a copy is a [snapshot](term:snapshot). The writing can go on during the following steps ([Check-N-Run](paper:eisenman2022) does that).
#
# ![Above, the GPUs wait while the disk writes. Below, they stop only for a short snapshot, and the disk writes beside the next steps. A failure before the disk is done falls back to the checkpoint before.](../course/26_survive/figures/snapshot.svg)
#
# In code it is one argument: `save(…, wait=False)`. Is the copy really a copy? Here is a disk that finishes nothing until the program has gone on and changed its numbers. The state is zero when `save` is called, and one when the disk begins.


# %%
def save_beside(comm, folder):
    gone_on = threading.Event()
    real_fsync = os.fsync

    def slow_fsync(file):
        gone_on.wait()
        real_fsync(file)

    os.fsync = slow_fsync
    checkpoints = Checkpoints(folder, comm)
    x = torch.zeros(1000)
    checkpoints.save(1, [Piece("x", x)], wait=False)
    x += 1  # the next step of training
    at_once = len(files.finished(folder))
    gone_on.set()
    checkpoints.wait()
    os.fsync = real_fsync
    saved = checkpoints.latest().whole("x")
    return at_once, len(files.finished(folder)), saved.max().item()


slow = launch(save_beside, 2, HERE / "slow")[0]
study.table(
    [slow],
    ["when save returns", "later", "largest number in it"],
    title="Checkpoints of a slow disk",
)

# %% tags=["maintainer"]
assert slow == (0, 1, 0.0)

# %% [markdown]
# When `save` returned, there was no checkpoint yet. Later there was one, and its largest number is the zero from the moment when `save` was called.
#
# Now let us do the sums again, with a snapshot. BLOOM's state is 6 GB on each of 384 GPUs; over PCIe, at 25 GB/s (assumed), the copy takes 0.24 seconds instead of 115. That is the new δ. Two things are new as well. A save must be on the disk before the next begins, so τ is at least 115 seconds. And a failure now loses more than half an interval: a save that is still being written counts for nothing, so the newest *finished* state is older by the 115 seconds that the disk takes. We lost 8 % with waiting saves. **How many percent do we lose with snapshots?**

# %%
guess_snapshot = 5.0  # percent: change this number

# %%
SNAPSHOT = BLOOM / 384 / 25e9
every = max(SAVE, young(SNAPSHOT, MTBF))
with_snapshots = {
    "saving": 100 * SNAPSHOT / every,
    "computed again": 100 * (every / 2 + SAVE) / MTBF,
    "restart": 100 * RESTART / MTBF,
}
waiting = {
    "saving": 100 * SAVE / best,
    "computed again": 100 * best / 2 / MTBF,
    "restart": 100 * RESTART / MTBF,
}
STEP = 105  # seconds of BLOOM's steps, as published
print(f"on average, a step of {STEP} s pays")
print(f"{SAVE * STEP / best:.1f} s for saves that wait, every {best / 60:.0f} min")
print(f"{SNAPSHOT * STEP / every:.1f} s for snapshots, every {every / 60:.1f} min")

# %% tags=["answer"]
study.reveal(
    guess_snapshot,
    round(sum(with_snapshots.values()), 1),
    study.stacked(
        {"saves that wait": waiting, "snapshots": with_snapshots},
        unit="%",
        title="BLOOM's checkpoint, OPT's failures: what is lost",
    ),
    unit="%",
    words="Young's interval is 154 s now, which leaves the disk its 115. Most of what is lost is the restart, which no "
    "rhythm of saves can change: that is what to make faster next.",
)

# %% tags=["maintainer"]
assert 0.2 < SNAPSHOT < 0.3 and 150 < every < 160
assert sum(with_snapshots.values()) < 0.25 * sum(waiting.values())
assert with_snapshots["restart"] > sum(with_snapshots.values()) / 2

# %% [markdown]
# A snapshot costs memory: as much of the host's as the state has, 6 GB for each GPU here. If the host already holds the optimizer ([offload](term:offload)), there may be no room for a second copy.
#
# ## On another grid
#
# One node is gone, no other is free, and 8 ranks become 6. Or you want to look at the model on your laptop. The checkpoint was written by other ranks than those that read it. [Re-sharding](term:re-sharding) sounds like another puzzle for every pair of grids: from tensor 4 to tensor 2, from ZeRO on 8 to ZeRO on 6, from a pipeline to none. It is one rule.
#
# ![A tensor of twelve rows was saved by four ranks, three rows each, and is loaded by three, four rows each. Each arrow is one read, where a saved piece and a wanted piece overlap.](../course/26_survive/figures/reshard.svg)
#
# What was saved is an interval of rows, and what is wanted is an interval of rows. Two intervals overlap in an interval. It begins at the later of the two beginnings and stops at the earlier of the two ends; if that end is not after the beginning, they have nothing in common. Ends are counted as in Python: the end is the first row that no longer belongs to the interval. By hand: the third file has rows 6, 7 and 8, which is (6, 9), and rank 1 wants rows 4 to 7, which is (4, 8). The overlap begins at max(6, 4) = 6 and ends at min(9, 8) = 8: rows 6 and 7. They are the first two rows of the file, and the last two of what rank 1 wants.


# %%
def shared(a, b):
    """What two intervals (first, end) have in common, or None."""
    first = max(a[0], b[0])
    end = min(a[1], b[1])
    return (first, end) if first < end else None


saved_rows = [(0, 3), (3, 6), (6, 9), (9, 12)]
wanted_rows = [(0, 4), (4, 8), (8, 12)]
for rank, wanted in enumerate(wanted_rows):
    reads = [(file, shared(wanted, rows)) for file, rows in enumerate(saved_rows)]
    print(f"rank {rank}:", ", ".join(f"file {file} {part}" for file, part in reads if part))

# %% [markdown]
# In two dimensions a piece is a box, and two boxes overlap in a box: take the rule once for the rows and once for the columns. Nothing needs to be known of the two grids, neither how many ranks there were nor which technique cut what. Here a matrix of 6 × 8 was saved by a grid of 2 × 2 ranks, and three ranks want two rows each.

# %%
from minidist.checkpoint.reshard import Box, Saved, overlap

matrix = torch.arange(48.0).view(6, 8)
saved_boxes = [Box((3 * i, 4 * j), (3, 4)) for i in range(2) for j in range(2)]
wanted_boxes = [Box((2 * r, 0), (2, 8)) for r in range(3)]
comes_from = []
for rank, wanted in enumerate(wanted_boxes):
    for file, box in enumerate(saved_boxes):
        part = overlap(wanted, box)
        if part:
            comes_from.append((f"rank {rank}", *part, file))
study.boxes(
    (6, 8),
    {
        "saved on 2 × 2": [(f"rank {r}", *box, r) for r, box in enumerate(saved_boxes)],
        "wanted on 3 × 1": [(f"rank {r}", *box, 4 + r) for r, box in enumerate(wanted_boxes)],
        "who reads it, in the file's colour": comes_from,
    },
    title="A matrix, 6 × 8",
)

# %% [markdown]
# Rank 1 needs parts of all four files. Each file has 12 numbers of 4 bytes, 48 bytes. **How many bytes of tensors does rank 1 read?**

# %%
guess_read = 192  # bytes: change this number


# %%
def save_box(comm, folder):
    box = saved_boxes[comm.rank]
    piece = Piece("w", box.view(matrix), whole=(6, 8), first=box.first)
    Checkpoints(folder, comm).save(1, [piece])


World(4).run(save_box, HERE / "boxes")
[path] = files.finished(HERE / "boxes")

counted = []
real_read_box = files.read_box


def read_and_count(*where):
    part = real_read_box(*where)
    counted.append(part.nbytes)
    return part


files.read_box = read_and_count
rows = []
for rank, box in enumerate(wanted_boxes):
    counted.clear()
    part = torch.empty(box.size)
    Saved(path).read([Piece("w", part, whole=(6, 8), first=box.first)])
    rows.append((f"rank {rank}", len(counted), sum(counted), part.equal(box.view(matrix))))
files.read_box = real_read_box

# %% tags=["answer"]
study.reveal(
    guess_read,
    rows[1][2],
    study.table(
        rows, ["of 3 × 1", "reads", "bytes", "right?"], title="Each its own bytes, no more"
    ),
    unit="B",
    words="It reads the 16 numbers that it wants, each once. A box of a file is read without the bytes around it, row by row.",
)

# %% tags=["maintainer"]
assert [row[1:] for row in rows] == [(2, 64, True), (4, 64, True), (2, 64, True)]
assert len(comes_from) == 8

# %% [markdown]
# ### A GPT moves
#
# Now the same for a whole model: a GPT trained on data 2 × pipeline 2 × tensor 2 with ZeRO 1 is saved after step 3 and goes on, once on a single rank, and once on data 4 × tensor 2. The model is built on `"meta"`, without numbers, and filled by the engine.

# %%
from minidist.comm.mesh import Mesh
from minidist.models import gpt
from minidist.parallelize import parallelize


def adam(groups):
    return torch.optim.AdamW(groups, lr=0.01)


def on_grid(comm, grid, first, last, folder):
    """Steps `first` to `last` on this grid; from the checkpoint, unless it begins at 0."""
    mesh = Mesh(comm, **grid)
    model = gpt(2, 12, 2, 13, 6, dtype=torch.float64, device="meta")
    engine = parallelize(model, mesh, adam, zero=int(mesh.dp.size > 1))
    checkpoints = Checkpoints(folder, comm)
    if first:
        engine.load(checkpoints.latest())
    losses = []
    for step in range(first, last):
        text = torch.randint(13, (8, 7), generator=torch.Generator().manual_seed(step))
        my_text = text.chunk(mesh.dp.size)[mesh.dp.rank]
        losses.append(engine.step(my_text[:, :-1], my_text[:, 1:]).item())
        if step == 2:
            checkpoints.save(3, engine.pieces())
    return losses


straight = World(8).run(on_grid, dict(dp=2, pp=2, tp=2), 0, 6, HERE / "gpt")[0]
others = {
    "1 rank": World(1).run(on_grid, dict(dp=1), 3, 6, HERE / "gpt")[0],
    "data 4 × tensor 2": World(8).run(on_grid, dict(dp=4, tp=2), 3, 6, HERE / "gpt")[0],
}
study.curves(
    {"2 × 2 × 2": (list(range(1, 7)), straight)},
    points={name: ([4, 5, 6], found) for name, found in others.items()},
    xlabel="step",
    ylabel="loss",
    title="Saved on 8 ranks at step 3, resumed on other grids",
)

# %%
for name, found in others.items():
    differences = [abs(a - b) for a, b in zip(found, straight[3:])]
    print(
        f"{name}: equal to 1e-10: {max(differences) < 1e-10}; to the bit: {max(differences) == 0}"
    )

# %% tags=["maintainer"]
for found in others.values():
    assert all(abs(a - b) < 1e-10 for a, b in zip(found, straight[3:]))

# %% [markdown]
# The losses agree to better than 1e-10, but not to the bit: another grid adds up in another order. And what belongs to a *rank*, such as its random generators, has no meaning on another grid. There `checkpoints.own(found)` returns `None`, and dropout draws other masks. Bit for bit on the same grid, to rounding on another: that is all one can have.
#
# ## The library's files
#
# [minidist/checkpoint/files.py](file:minidist/checkpoint/files.py) has the format. Its `write` is our `write_whole`, plus a checksum that is taken on the way and a clean-up when the disk is full:

# %%
study.source(files.write)

# %% [markdown]
# [minidist/checkpoint/checkpoint.py](file:minidist/checkpoint/checkpoint.py) has `Checkpoints`. Its `_write` is our `save_sharded`. `attempt` calls a function on every rank and tells all of them which ranks failed: so a full disk on one rank is an error on *all*, rather than a rank that is missing at the next collective while the others wait.

# %%
study.source(Checkpoints._write)

# %% [markdown]
# Finding the newest good one works in the same way: rank 0's list of folders counts, the ranks share the reading, and one complaint is enough.

# %%
study.source(Checkpoints.latest)

# %% [markdown]
# In [minidist/checkpoint/reshard.py](file:minidist/checkpoint/reshard.py) are the boxes. `overlap` is our `shared` for any number of dimensions, with sizes in place of ends:

# %%
study.source(overlap)

# %% [markdown]
# Three more things in these files are worth looking up. `writers` decides who writes what several ranks have, so that all have about the same number of bytes to write. `state_pieces` turns an optimizer's nested state into tensors and JSON. And `runs` cuts a ZeRO shard, which may begin and end in the middle of a row, into boxes, so that the one rule serves all.
#
# ## In real processes, and on a cluster
#
# You have already seen real processes die and others take over. The course's trainer, [examples/train_gpt.py](file:examples/train_gpt.py), saves beside the run with `--save-every`, and the same command goes on where it was, on this grid or another:
#
# ```
# export TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1
# torchrun --nproc-per-node 8 --max-restarts 3 examples/train_gpt.py \
#     --dp 2 --pp 2 --tp 2 --folder runs/one --save-every 50
# ```
#
# `torchrun` plays the part of our parent process: when one worker of a node dies, it ends the others and starts all of them again, at most three times. (Without the variable, the ranks that are started again wait for dead ones.) A job on many machines is started by [examples/train_gpt.slurm](file:examples/train_gpt.slurm), and the folder must lie on a file system that all nodes see. A rank that *hangs* instead of dying is worse, since nobody's child has ended. The others wait in a collective until its timeout, and [From here to your cluster](lesson:field_guide) shows how to find out which rank they are waiting for.
#
# PyTorch's own checkpoints are in `torch.distributed.checkpoint`. They are sharded, too, can be written during the run, and can be loaded on another grid ([ByteCheckpoint](paper:wan2024) describes such a system at the scale of thousands of GPUs). How does it keep its manifest?

# %%
import pickletools

import torch.distributed.checkpoint as dcp

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # it says that there is no process group
    dcp.save({"w": torch.zeros(3)}, checkpoint_id=HERE / "dcp", no_dist=True)
metadata = (HERE / "dcp/.metadata").read_bytes()
instructions = [op.name for op, *_ in pickletools.genops(metadata)]
print(sorted(file.name for file in (HERE / "dcp").iterdir()))
print("calls something when it is loaded:", "REDUCE" in instructions or "NEWOBJ" in instructions)

# %% tags=["maintainer"]
assert "REDUCE" in instructions or "NEWOBJ" in instructions

# %% [markdown]
# With pickle. So load such checkpoints only if you wrote them yourself, and publish weights in safetensors.
#
# ## Takeaways
#
# - *n* GPUs fail *n* times as often, and the first that dies stops them all. A killed rank must be found, named and recovered from.
# - Write, fsync, rename; the manifest last. Whenever the power fails, there is the old checkpoint or the new one, and it is whole.
# - Check sizes and checksums before loading, and never unpickle.
# - Save all that the next step depends on; then resuming is equal to the last bit. Compare with `==`, not by eye.
# - Save every √(2δ*M*) seconds. The valley is flat; a faster save helps more than a better rhythm.
# - A step should pay for the snapshot, not for the disk.
# - Save pieces of whole tensors, by name. Two boxes overlap in a box, so any grid reads what any grid wrote.
#
# ## Further reading
#
# - paper:young1974 The square root, on two pages.
# - paper:daly2006 The next terms, and when they matter.
# - paper:pillai2014 Section 2: what file systems promise, and what they do not.
# - paper:eisenman2022 Section 3: snapshots, and writing beside the run.
# - paper:wan2024 Checkpoints that any grid can read, on thousands of GPUs.
# - paper:zhang2022 Section 2.5: what failed in a run on 992 GPUs.
