# %% [markdown] nbgrader={"grade_id": "top"}
# # 26 Survive and plan: exercises
#
# You say how often a run should save, save so that a power cut spoils nothing, find the newest checkpoint that is
# whole, and read it on another grid. Then you foretell the numbers of a real run.
#
# Five exercises, 15 points. After each, run the check. It says what is wrong. Try as often as you like. What your
# function prints is not shown there; to see it, call it in a cell of your own.
#
# `minidist.checkpoint`, `minidist.train`, `minidist.collectives` and `minidist.parallel` are refused. Files are, too:
# you save on a `Disk` in memory, whose power can be cut.

# %% nbgrader={"grade_id": "setup"}
import json
from math import sqrt
from zlib import crc32

import torch

import minicheck as check

from minidist import study
from minicheck.lessons.survive import Disk
from minidist.comm import World

# %% [markdown] nbgrader={"grade_id": "save_every_spec"}
# ## 1 · How often? (2 points)
#
# A failure of any device stops all of them. They restart, and compute again what came after the last save.
#
# | | |
# |---|---|
# | call | `save_every(cost, restart, hours, devices)` |
# | `cost`, `restart` | seconds that a save takes, and a restart |
# | `hours` | mean time between failures of **one** device |
# | `devices` | how many there are; they fail independently |
# | returns | `(seconds, lost)`: √(2·cost·M), M the mean time between failures of all; and the share lost |
#
# Lost is a save in every interval, and for each failure half an interval (on average) and a restart:
# cost/seconds + (seconds/2 + restart)/M. About 4 lines.


# %% nbgrader={"grade_id": "save_every", "solution": true}
def save_every(cost, restart, hours, devices):
    """Seconds between saves, and the share of the time that is then lost."""
    ### BEGIN SOLUTION
    between = hours * 3600 / devices
    seconds = sqrt(2 * cost * between)
    return seconds, cost / seconds + (seconds / 2 + restart) / between
    ### END SOLUTION


# %% nbgrader={"grade_id": "save_every_test", "points": 2}
check.save_every(save_every)

# %% [markdown] nbgrader={"grade_id": "save_every_target"}
# **Target:** with 64 times the devices one saves 8 times as often, and still loses far more. (A save 60 s, a restart
# 10 minutes, 20,000 hours a device.)

# %%
devices = [2**k for k in range(6, 15)]
every, lost = zip(*(save_every(60, 600, 20_000, n) for n in devices))
assert abs(every[0] / every[6] - 8) < 1e-9
study.curves(
    {"lost, with your interval": (devices, [100 * x for x in lost])},
    logx=True,
    xlabel="devices",
    ylabel="% of the time",
    title="What failures take",
)

# %% [markdown] nbgrader={"grade_id": "save_parts_spec"}
# ## 2 · Save, whole or not at all (4 points)
#
# All ranks see one disk. Any moment the power may fail.
#
# | | |
# |---|---|
# | `disk.write(name, data)` | a file of these bytes; until synced, a power cut leaves all, a part, or none |
# | `disk.sync(name)` | returns when the file's bytes are safe |
# | `disk.rename(old, new)` | atomic, and safe at once |
#
# | | |
# |---|---|
# | call | `save_parts(comm, disk, step, data)`, on every rank |
# | `data` | `bytes`: this rank's part |
# | afterwards | `f"{step}/rank-{r}"` is rank r's data; `f"{step}/manifest"` the JSON of the dict below |
# | invariant | wherever the power fails: a manifest that is there is whole, and so is all it names |
# | | files that were there are not touched |
# | returns | on no rank before the manifest is there |
# | cost | each rank writes its part once; 2(n−1) messages of 64 bytes at most: all tell rank 0, which tells all |
#
# The manifest: `{"step": step, "ranks": n, "files": {"50/rank-0": [its bytes, its crc32], …}}`, as JSON. CRC-32 finds
# accidents; minidist takes SHA-256, which nobody can forge.
#
# About 18 lines.
#
# <details><summary>Hint</summary>
#
# A part: write, sync. Then tell rank 0: `comm.send(torch.tensor([len(data), crc32(data)]), 0)`, there
# `comm.recv(torch.zeros(2, dtype=torch.int64), r)`. Only then the manifest: write it under another name, sync, rename.
# At the end a message of one number to each: done.
#
# </details>


# %% nbgrader={"grade_id": "save_parts", "solution": true}
def save_parts(comm, disk, step, data):
    """A checkpoint of all ranks' data, whole or not at all."""
    ### BEGIN SOLUTION
    part, done = f"{step}/rank-{comm.rank}", torch.zeros(1)
    disk.write(part, data)
    disk.sync(part)
    sums = torch.tensor([len(data), crc32(data)])
    if comm.rank > 0:
        comm.send(sums, 0)
        comm.recv(done, 0)
        return
    files = {part: sums.tolist()}
    for r in range(1, comm.size):
        files[f"{step}/rank-{r}"] = comm.recv(torch.zeros_like(sums), r).tolist()
    manifest, partial = f"{step}/manifest", f"{step}/manifest.partial"
    disk.write(partial, json.dumps({"step": step, "ranks": comm.size, "files": files}).encode())
    disk.sync(partial)
    disk.rename(partial, manifest)
    for r in range(1, comm.size):
        comm.send(done, r)
    ### END SOLUTION


# %% nbgrader={"grade_id": "save_parts_test", "points": 4}
check.save_parts(save_parts)

# %% [markdown] nbgrader={"grade_id": "save_parts_target"}
# **Target:** cut the power behind each of the calls. However much of what was not synced is left, there is no
# checkpoint until the last call, and then a whole one.


# %%
def whole(files, step):
    """Whether a manifest is there, and all that it names."""
    try:
        sums = json.loads(files[f"{step}/manifest"])["files"]
    except (KeyError, ValueError):
        return False
    return all([len(files[name]), crc32(files[name])] == pair for name, pair in sums.items())


def saving(comm):
    """All calls to the disk, in order."""
    disk = DISKS[comm.rank]
    save_parts(comm, disk, 50, bytes(range(50 * comm.rank, 50 * comm.rank + 50)))


disk = Disk()
DISKS = [disk.of(r) for r in range(3)]
World(3).run(saving)
found = [(when, whole(files, 50)) for when, files in disk.crashes()]
rows = [
    (found[i][0], *("whole" if ok else "none" for _, ok in found[i : i + 3]))
    for i in range(0, len(found), 3)
]
assert [row[1:] for row in rows] == [("none",) * 3] * (len(rows) - 1) + [("whole",) * 3]
study.table(
    rows,
    ["the power is cut", "nothing unsynced is left", "half of it", "all of it"],
    title="Is there a checkpoint?",
)

# %% [markdown] nbgrader={"grade_id": "newest_spec"}
# ## 3 · Find it again (3 points)
#
# The disk has checkpoints like yours, some damaged. Which is the newest that is whole?
#
# | | |
# |---|---|
# | call | `newest(disk)` |
# | `disk.names()`, `disk.size(name)`, `disk.read(name)` | of all files; bytes, without reading; reads |
# | returns | `(step, refused)`: the newest whole checkpoint's step, `None` if there is none; and a dict |
# | `refused` | what is wrong with the files of the checkpoints **after** it, `{name: word}` |
#
# | word | of | |
# |---|---|---|
# | `"damaged"` | a manifest | no JSON, or no dict with `"step"`, `"ranks"` and `"files"` |
# | `"foreign"` | a manifest | its `"step"` is another one |
# | `"missing"` | a part `f"{step}/rank-{r}"`, r below `"ranks"` | not in the manifest, or not on the disk |
# | `"size"`, `"checksum"` | a part | it has other bytes than the manifest says |
#
# If a manifest is damaged or foreign, its parts are not looked at. A step without a manifest was never finished: it is
# passed over, and not mentioned. **Cost:** no file is read twice, none that has the wrong size, nothing of checkpoints
# older than the newest whole one. What was read is never run. About 20 lines.


# %% nbgrader={"grade_id": "newest", "solution": true}
def newest(disk):
    """The newest whole checkpoint's step, and what is wrong with those after it."""
    ### BEGIN SOLUTION
    names, refused = set(disk.names()), {}
    for step in sorted(
        (int(name.split("/")[0]) for name in names if name.endswith("/manifest")), reverse=True
    ):
        wrong, manifest = {}, f"{step}/manifest"
        try:
            body = json.loads(disk.read(manifest))
            saved = body["step"]
            ranks = body["ranks"]
            files = body["files"]
        except (ValueError, KeyError, TypeError):
            refused[manifest] = "damaged"
            continue
        if saved != step:
            refused[manifest] = "foreign"
            continue
        for part in [f"{step}/rank-{r}" for r in range(ranks)]:
            if part not in files or part not in names:
                wrong[part] = "missing"
            elif disk.size(part) != files[part][0]:
                wrong[part] = "size"
            elif crc32(disk.read(part)) != files[part][1]:
                wrong[part] = "checksum"
        if not wrong:
            return step, refused
        refused |= wrong
    return None, refused
    ### END SOLUTION


# %% nbgrader={"grade_id": "newest_test", "points": 3}
check.newest(newest)

# %% [markdown] nbgrader={"grade_id": "newest_target"}
# **Target:** one bit of 400 is flipped, and the checkpoint before is used.

# %%
shelf = Disk()
for step in (40, 50):
    parts = {f"{step}/rank-{r}": bytes(range(step + r, step + r + 25)) for r in range(2)}
    sums = {name: [len(data), crc32(data)] for name, data in parts.items()}
    shelf.files |= parts | {
        f"{step}/manifest": json.dumps({"step": step, "ranks": 2, "files": sums}).encode()
    }
before = newest(shelf)
shelf.files["50/rank-1"] = bytes([shelf.files["50/rank-1"][0] ^ 1]) + shelf.files["50/rank-1"][1:]
after = newest(shelf)
assert before == (50, {}) and after == (40, {"50/rank-1": "checksum"})
study.table(
    [
        (what, step, ", ".join(f"{name}: {why}" for name, why in refused.items()))
        for what, (step, refused) in (("as saved", before), ("one bit flipped", after))
    ],
    ["", "newest", "refused"],
    title="Your search",
)

# %% [markdown] nbgrader={"grade_id": "load_box_spec"}
# ## 4 · On another grid (4 points)
#
# A matrix was saved in boxes by one grid of ranks. A rank of another grid wants a box that fits none of them.
#
# | | |
# |---|---|
# | call | `load_box(wanted, files, read)` |
# | a box | `((top, bottom), (left, right))`: rows top…bottom − 1, columns left…right − 1 of the matrix |
# | `files` | `{name: box}`; two boxes are the same (replicas) or have nothing in common |
# | `read(name, rows, columns)` | rows `(first, end)` and columns `(first, end)` **counted from where its box begins** |
# | returns | a float64 tensor, the wanted box |
# | errors | `ValueError` if no file has some part of it |
# | cost | each number is read once, no other number is, and no file of which nothing is wanted |
#
# About 14 lines.
#
# <details><summary>Hint</summary>
#
# Two ranges a…b and c…d share max(a, c)…min(b, d), if that is a range. What they share of a box begins at another place
# in the file than in your tensor: subtract the corner of the one, then of the other. Count what you have filled.
#
# </details>


# %% nbgrader={"grade_id": "load_box", "solution": true}
def load_box(wanted, files, read):
    """The wanted box of a matrix, out of the files' boxes."""
    ### BEGIN SOLUTION
    (top, bottom), (left, right) = wanted
    found, filled = torch.empty(bottom - top, right - left, dtype=torch.float64), 0
    for box, name in {box: name for name, box in files.items()}.items():  # of replicas, one
        (a, b), (c, d) = (
            (max(low, first), min(high, end)) for (low, high), (first, end) in zip(box, wanted)
        )
        if a < b and c < d:
            row, column = box[0][0], box[1][0]
            part = read(name, (a - row, b - row), (c - column, d - column))
            found[a - top : b - top, c - left : d - left] = part
            filled += part.numel()
    if filled < found.numel():
        raise ValueError(f"of {wanted} {found.numel() - filled} numbers are in no file")
    return found
    ### END SOLUTION


# %% nbgrader={"grade_id": "load_box_test", "points": 4}
check.load_box(load_box)

# %% [markdown] nbgrader={"grade_id": "load_box_target"}
# **Target:** saved on a grid of 2 × 2, read on one of 3 × 1: every number is read once.

# %%
matrix, log = torch.arange(48.0, dtype=torch.float64).view(6, 8), []
files = {
    f"rank {2 * i + j}": ((3 * i, 3 * i + 3), (4 * j, 4 * j + 4))
    for i in range(2)
    for j in range(2)
}


def read(name, rows, columns):
    (top, bottom), (left, right) = files[name]
    log.append(name)
    return matrix[top:bottom, left:right][rows[0] : rows[1], columns[0] : columns[1]].clone()


rows = []
for r in range(3):
    log.clear()
    assert load_box(((2 * r, 2 * r + 2), (0, 8)), files, read).equal(matrix[2 * r : 2 * r + 2])
    rows.append((f"rank {r}", f"rows {2 * r} and {2 * r + 1}", ", ".join(log)))
study.table(
    rows, ["of 3 × 1", "wants", "reads the files of"], title="Saved on 2 × 2, your way to 3 × 1"
)

# %% [markdown] nbgrader={"grade_id": "predict_survive_spec"}
# ## 5 · Predict (2 points)
#
# 20 billion parameters, 400 billion tokens, 32 nodes of 8 GPUs with 989 TFLOP/s each, of which the run reaches 40 %
# (MFU). Saved are, a parameter: 2 bytes of bf16, and the optimizer's 12 (an fp32 copy and two moments). All ranks have
# equal shares, no byte is written twice. Each **node** writes 2 GB/s. One GPU fails every 20,000 hours. The pipeline
# has 8 stages and 32 micro-batches, 1F1B.
#
# - `whole_bytes`, `rank_bytes`: of a checkpoint, and what each GPU writes
# - `save_seconds`: of a save that waits for the disk
# - `mtbf_seconds`: between two failures of the run
# - `every_seconds`: between two saves, after Young
# - `bubble`: the share of a step's time in which a stage waits
# - `gpu_hours`: of the run, if nothing fails
# - `failures`: how many to expect in those hours
#
# Write numbers or formulas, right within 1 %.

# %% nbgrader={"grade_id": "predict_survive", "solution": true}
STUDENT = None  # your name, as "Ada": you then have numbers of your own
check.predict_survive.numbers(STUDENT)
whole_bytes = rank_bytes = save_seconds = mtbf_seconds = every_seconds = bubble = gpu_hours = (
    failures
) = None
### BEGIN SOLUTION
psi, gpus = 20e9, 256
whole_bytes = 14 * psi
rank_bytes = whole_bytes / gpus
save_seconds = whole_bytes / (32 * 2e9)
mtbf_seconds = 20_000 * 3600 / gpus
every_seconds = sqrt(2 * save_seconds * mtbf_seconds)
bubble = 7 / (32 + 7)
gpu_hours = 6 * psi * 400e9 / (3600 * 989e12 * 0.4)
failures = gpu_hours / 20_000
### END SOLUTION

# %% nbgrader={"grade_id": "predict_survive_test", "points": 2}
check.predict_survive(
    whole_bytes,
    rank_bytes,
    save_seconds,
    mtbf_seconds,
    every_seconds,
    bubble,
    gpu_hours,
    failures,
    of=STUDENT,
)

# %% [markdown] nbgrader={"grade_id": "predict_survive_target"}
# **Target:** what takes the time of a GPU, in percent.

# %%
waits = {
    "saving": save_seconds / every_seconds,
    "computed again": every_seconds / 2 / mtbf_seconds,
    "bubble": bubble,
}
study.bars(
    {name: 100 * x for name, x in waits.items()},
    unit="%",
    title="What takes the time of a GPU, in percent",
)
