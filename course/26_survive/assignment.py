# %% [markdown] nbgrader={"grade_id": "top"}
# # 26 Survive: exercises
#
# The lesson saved a run on one disk that was never full. Here a run has two places to save to: a fast one, which some failures wipe out, and a slow one, which is safe. The disk may be full on one rank and not on another. You find the newest checkpoint that is whole, read a matrix on another grid, predict the numbers of a large run, and decide what to do when a node is gone.
#
# There are six exercises, worth 17 points. Each of the first five ends with a check, which says what is wrong. Try as often as you like. The check does not show what your function prints; to see that, call it in a cell of your own. The sixth is an open question, worth 2 points, which your teacher grades.
#
# Calls to `minidist.checkpoint`, `minidist.train`, `minidist.collectives` and `minidist.parallel` are refused, and so are files: you save on a `Disk` in memory, whose power can be cut after any call.

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
# ## 1 · Two places to save to (2 points)
#
# Most failures take a single node. So each node can copy its state into the memory of *another* node, which is quick, and when a node is lost, all start again from these copies. But once in a while everything stops at once, because the power or the network fails. Then all memory is lost, and only the disk is left. The run therefore saves to both, each in a rhythm of its own.
#
# | | |
# |---|---|
# | call | `save_every(memory, disk, node_hours, nodes, all_hours)` |
# | `memory`, `disk` | `(cost, restart)` of either place: the seconds that training stands still for a save, and the seconds of a restart from there |
# | `node_hours` | mean time between failures of **one** node; nodes fail independently of each other |
# | `nodes` | how many nodes there are |
# | `all_hours` | mean time between the failures that take everything |
# | returns | `(memory_seconds, disk_seconds, lost)`: the interval between saves to memory, the interval between saves to the disk, both such that the least time is lost; and the share of the time that is then lost |
#
# Count as the lesson did: each interval pays for its save, and each failure costs half an interval, on average, of the place that it restarts from, and that place's restart. A node's failure restarts from memory, a failure of everything from the disk. The two kinds happen independently, and the share may come out above 1. Numbers are compared to rounding. About 7 lines.
#
# <details><summary>Hint</summary>
#
# Write down the whole sum, with both intervals. Which terms change when you change only one of them?
#
# </details>


# %% nbgrader={"grade_id": "save_every", "solution": true}
def save_every(memory, disk, node_hours, nodes, all_hours):
    """Seconds between saves to memory and to the disk, and the share of the time that is then lost."""
    ### BEGIN SOLUTION
    found = []
    lost = 0.0
    for (cost, restart), hours in ((memory, node_hours / nodes), (disk, all_hours)):
        between = hours * 3600
        seconds = sqrt(2 * cost * between)
        lost += cost / seconds + (seconds / 2 + restart) / between
        found.append(seconds)
    return *found, lost
    ### END SOLUTION


# %% nbgrader={"grade_id": "save_every_test", "points": 2}
check.save_every(save_every)

# %% [markdown] nbgrader={"grade_id": "save_every_target"}
# **Target:** with 64 times the nodes, the run saves 8 times as often to memory and as often as before to the disk. The dashed line saves to the disk alone, at the lesson's interval. (A save to memory takes 1 second and one to the disk 60, a restart 2 and 10 minutes; a node fails every 5,000 hours, everything once a month.)

# %%
nodes = [2**k for k in range(3, 12)]
with check.limit(10):
    found = [save_every((1, 120), (60, 600), 5000, n, 720) for n in nodes]
assert abs(found[0][0] / found[6][0] - 8) < 1e-9 and found[0][1] == found[6][1]
alone = []
for n in nodes:
    mtbf = 3600 / (n / 5000 + 1 / 720)
    alone.append(100 * (sqrt(2 * 60 / mtbf) + 600 / mtbf))
study.curves(
    {"two places": (nodes, [100 * lost for _, _, lost in found]), "disk alone": (nodes, alone)},
    logx=True,
    xlabel="nodes",
    ylabel="% of the time lost",
    title="What failures take",
)

# %% [markdown] nbgrader={"grade_id": "save_parts_spec"}
# ## 2 · Save, whole or not at all, on a disk that may be full (4 points)
#
# All ranks see one disk. At any moment the power may fail. And a write may fail, too, on any rank and at any time: then *no* rank may believe that the step was saved. In the lesson's `save_sharded` the other ranks would wait for the one that failed.
#
# | | |
# |---|---|
# | `disk.write(name, data)` | a file of these bytes; until synced, a power cut leaves all, a part, or none; **raises `OSError` if there is no room**, and then writes nothing |
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
# | raises | if any write of any rank fails: `OSError` on **every** rank, and there is never a manifest of this step; parts that have been written may stay |
# | cost | each rank writes its part, once, and rank 0 the manifest besides; 2(n−1) messages, of 64 bytes at most: all tell rank 0, which tells all |
#
# The manifest is this dict as JSON: `{"step": step, "ranks": n, "files": {"50/rank-0": [its bytes, its crc32], …}}`. CRC-32, from Python's `zlib`, finds accidents. It has 32 bits, more than a float32 can hold exactly, so send it as int64. (minidist uses SHA-256, which nobody can forge.)
#
# About 28 lines.
#
# <details><summary>Hint</summary>
#
# Write and sync the part. Then tell rank 0, `comm.send(torch.tensor([len(data), crc32(data)]), 0)`, which calls `comm.recv(torch.zeros(2, dtype=torch.int64), r)` for each r. A rank that could not write must tell rank 0, too: for instance a size of −1. Only then comes the manifest: write it under another name, sync, rename. At the end rank 0 sends each rank one number: whether all went well. Raise only when you have sent what the others wait for.
#
# </details>


# %% nbgrader={"grade_id": "save_parts", "solution": true}
def save_parts(comm, disk, step, data):
    """A checkpoint of all ranks' data, whole or not at all."""
    ### BEGIN SOLUTION
    part, done = f"{step}/rank-{comm.rank}", torch.ones(1)
    sums = torch.tensor([len(data), crc32(data)])
    try:
        disk.write(part, data)
        disk.sync(part)
    except OSError:
        sums = torch.tensor([-1, 0])
    if comm.rank > 0:
        comm.send(sums, 0)
        comm.recv(done, 0)
    else:
        files = {part: sums.tolist()}
        for r in range(1, comm.size):
            files[f"{step}/rank-{r}"] = comm.recv(torch.zeros_like(sums), r).tolist()
        manifest, partial = f"{step}/manifest", f"{step}/manifest.partial"
        body = json.dumps({"step": step, "ranks": comm.size, "files": files})
        try:
            if any(size < 0 for size, _ in files.values()):
                raise OSError("a part could not be written")
            disk.write(partial, body.encode())
            disk.sync(partial)
            disk.rename(partial, manifest)
        except OSError:
            done.zero_()
        for r in range(1, comm.size):
            comm.send(done, r)
    if not done.all():
        raise OSError(f"step {step} could not be saved")
    ### END SOLUTION


# %% nbgrader={"grade_id": "save_parts_test", "points": 4}
check.save_parts(save_parts)

# %% [markdown] nbgrader={"grade_id": "save_parts_target"}
# **Target:** cut the power after each of the calls. Whether nothing, half or all of the unsynced bytes is left, there is no checkpoint before the last call, and a whole one after it.


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
with check.limit(10):
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
# The lesson's `is_checkpoint` says whether one folder is whole. Here a disk has several checkpoints like yours, and some are damaged. Which is the newest that is whole, and what exactly is wrong with those after it?
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
# | `"foreign"` | a manifest | its `"step"` is not that of its name |
# | `"missing"` | a part `f"{step}/rank-{r}"`, r below `"ranks"` | not in the manifest, or not on the disk |
# | `"size"`, `"checksum"` | a part | its size, or its crc32, is not what the manifest says |
#
# If a manifest is damaged or foreign, its parts are not looked at. A step without a manifest was never finished: it is passed over, and not mentioned. Steps are numbers, and the newest has the largest. What was read is never run, and nothing on the disk is changed. **Cost:** no file is read twice, none that has the wrong size, and nothing of checkpoints older than the newest whole one. About 20 lines.


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
with check.limit(10):
    before = newest(shelf)
shelf.files["50/rank-1"] = bytes([shelf.files["50/rank-1"][0] ^ 1]) + shelf.files["50/rank-1"][1:]
with check.limit(10):
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
# The lesson overlapped rows. Here a matrix was saved in boxes of rows *and* columns, some of them by several ranks, and some may be lost. A rank of another grid wants a box that fits none of them.
#
# | | |
# |---|---|
# | call | `load_box(wanted, files, read)` |
# | a box | `((top, bottom), (left, right))`: rows top…bottom − 1, columns left…right − 1 of the matrix |
# | `files` | `{name: box}`, **not changed**; two boxes are the same (replicas) or have nothing in common |
# | `read(name, rows, columns)` | reads these rows `(first, end)` and columns `(first, end)` of a file, **counted from where its box begins** |
# | returns | a float64 tensor, the wanted box |
# | errors | `ValueError` if no file has some part of it |
# | cost | each number is read once, no other number is, and no file of which nothing is wanted; nothing is kept from one call to the next |
#
# About 14 lines.
#
# <details><summary>Hint</summary>
#
# What two boxes share begins at one place in the file and at another in your tensor: subtract the corner of the one, then of the other. Count what you have filled. A number that was saved may be 0, −1 or nan, so none can mark a hole.
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
    with check.limit(10):
        found = load_box(((2 * r, 2 * r + 2), (0, 8)), files, read)
    assert found.equal(matrix[2 * r : 2 * r + 2])
    rows.append((f"rank {r}", f"rows {2 * r} and {2 * r + 1}", ", ".join(log)))
study.table(
    rows, ["of 3 × 1", "wants", "reads the files of"], title="Saved on 2 × 2, your way to 3 × 1"
)

# %% [markdown] nbgrader={"grade_id": "predict_survive_spec"}
# ## 5 · Predict (2 points)
#
# A model has 20 billion parameters and trains for 40 days on 32 nodes of 8 GPUs. For each parameter a checkpoint has 2 bytes of bf16 and the optimizer's 12 (an fp32 copy and two moments). All ranks have equal shares, and no byte is written twice. Each **node** writes 2 GB/s to the disk. A snapshot is copied into the host's memory at 20 GB/s by each **GPU**. One GPU fails every 20,000 hours, and a restart takes 10 minutes.
#
# - `whole_bytes`, `rank_bytes`: of a checkpoint, and what each GPU has of it
# - `save_seconds`, `snapshot_seconds`: how long training stands still if it waits for the disk, and if it waits for the snapshot alone
# - `mtbf_seconds`: between two failures of the run
# - `every_seconds`: between two saves that wait for the disk, after Young
# - `lost`: the share of the time that is then lost: saves, work that is done again, and restarts
# - `failures`: how many to expect in the 40 days
# - `read_bytes`: the run is moved to three quarters of its nodes, and all ranks have equal shares again; what each GPU then reads
#
# Write numbers or formulas; they must be right within 1 %.

# %% nbgrader={"grade_id": "predict_survive", "solution": true}
STUDENT = None  # your name, as "Ada": you then have numbers of your own
check.predict_survive.numbers(STUDENT)
whole_bytes = rank_bytes = save_seconds = snapshot_seconds = mtbf_seconds = None
every_seconds = lost = failures = read_bytes = None
### BEGIN SOLUTION
psi, gpus = 20e9, 256
whole_bytes = 14 * psi
rank_bytes = whole_bytes / gpus
save_seconds = whole_bytes / (32 * 2e9)
snapshot_seconds = rank_bytes / 20e9
mtbf_seconds = 20_000 * 3600 / gpus
every_seconds = sqrt(2 * save_seconds * mtbf_seconds)
lost = save_seconds / every_seconds + (every_seconds / 2 + 600) / mtbf_seconds
failures = 40 * 24 * 3600 / mtbf_seconds
read_bytes = whole_bytes / (0.75 * gpus)
### END SOLUTION

# %% nbgrader={"grade_id": "predict_survive_test", "points": 2}
check.predict_survive(
    whole_bytes,
    rank_bytes,
    save_seconds,
    snapshot_seconds,
    mtbf_seconds,
    every_seconds,
    lost,
    failures,
    read_bytes,
    of=STUDENT,
)

# %% [markdown] nbgrader={"grade_id": "predict_survive_target"}
# **Target:** what failures take of the time of a GPU, if saves wait for the disk.

# %%
bills = {
    "saving": save_seconds / every_seconds,
    "computed again": every_seconds / 2 / mtbf_seconds,
    "restarts": lost - save_seconds / every_seconds - every_seconds / 2 / mtbf_seconds,
}
study.bars({name: 100 * share for name, share in bills.items()}, unit="%", title="What is lost")

# %% [markdown] nbgrader={"grade_id": "wait_or_shrink_spec"}
# ## 6 · Wait, or go on with fewer? (2 points, graded by hand)
#
# A run has *n* nodes and no spare. One is lost. You may wait until it is repaired, and then restart all *n* from the last checkpoint, which takes 5 minutes. Or you may re-shard that checkpoint at once and go on with n − 1; when the repaired node arrives, you save, re-shard again, and go on with all. Assume that a step takes n/(n − 1) times as long on n − 1 nodes, that each re-sharding with its restart takes 15 minutes, and that nothing else fails meanwhile. **For 8 nodes and for 64: from which time of repair on is it better to go on with fewer?** And what if only a power of two of nodes can be used, because the batch divides evenly by no other number?
#
# Answer with a plot and about ten sentences. Your teacher gives:
#
# - **1 point for the search.** The work lost, in hours of the whole run, by both choices for repairs of ten minutes to a day, for 8 and 64 nodes, with names and units on both axes; the times of repair at which the choice changes; and the same with a power of two.
# - **1 point for the doubt.** What the run on fewer nodes does not reproduce bit for bit, and how you would check it; what one more failure meanwhile would change; one thing that the sum leaves out, with its size; and whether a spare node would pay.


# %% nbgrader={"grade_id": "wait_or_shrink_plot", "solution": true}
### BEGIN SOLUTION
repairs = [1 / 6, 1 / 3, 0.5, 1, 2, 4, 8, 16, 24]  # hours
MOVE = 0.25
RESTART = 1 / 12


def lost_by_shrinking(repair, share):
    """Hours of the whole run that are lost: two moves, and between them the nodes that stand idle."""
    return MOVE + max(0, repair - MOVE) * (1 - share) + MOVE


lines = {"wait": (repairs, [repair + RESTART for repair in repairs])}
for name, share in {"7 of 8": 7 / 8, "63 of 64": 63 / 64, "half of them": 1 / 2}.items():
    lines[name] = repairs, [lost_by_shrinking(repair, share) for repair in repairs]
study.curves(
    lines,
    logx=True,
    logy=True,
    xlabel="hours until the node is repaired",
    ylabel="hours of work lost",
    title="Wait, or go on with fewer nodes?",
)
### END SOLUTION

# %% [markdown] nbgrader={"grade_id": "wait_or_shrink", "solution": true, "points": 2}
# Waiting loses the repair of t hours and one restart, t + 1/12 h. Going on with fewer loses a move of 0.25 h, then 1/n of the remaining t − 0.25 h, then another move. Both are equal at t = (25 − 15/n)/(1 − 1/n) minutes: 26 minutes for 8 nodes and 25 for 64. From there on each hour of repair costs an hour of waiting, or 7.5 minutes of 8 nodes, or one minute of 64. With a power of two half of the nodes work, and the change comes at 35 minutes. After a day 64 nodes have lost 24.1 h by waiting, 12.4 h with half of them, and 0.9 h with 63.
#
# The run on fewer nodes adds gradients in another order, so losses agree to rounding only, and dropout draws anew, since generators belong to ranks. I would compare the first losses after the move with those of the old grid, and see that the batch has kept its size: 64 sequences on 7 nodes must be divided unevenly. If one more node fails meanwhile, a move is paid again; with a failure every 14 hours and a repair of 2 hours the chance is 13 %, some 2 minutes of expected loss. The sum leaves out the work since the last checkpoint, 28 minutes on average at a save every 56 minutes, but both choices lose it. It also leaves out memory: on 7 nodes each GPU has 8/7 of the states, 14 % more, which may not fit. A spare costs 1/64 of the rent, 1.6 %, and needs a restart alone, 5 minutes in 14 hours, 0.6 %. With repairs of 8 hours going on with 63 loses 0.62 h in 14, 4.4 %, so the spare pays.
