"""The wrong answers of lesson 18 that its graders must find: where each differs from the solution."""

from tests.bank.bank import Bug, equals_everything

BUGS = [
    Bug(
        "no_flush",
        "the lesson's list, whatever the room",
        cell="""
def no_flush(stage, S, M, room):
    return updated(stage, S, M)
""",
    ),
    Bug(
        "no_flush",
        "its own room alone: the stages before it are not thought of",
        cell="""
def no_flush(stage, S, M, room):
    warm = min(M, S - 1 - stage, room[stage] - 1)
    words = [f"F{m}" for m in range(warm)]
    for m in range(M):
        if warm + m < M:
            words.append(f"F{warm + m}")
        words += [f"B{m}", f"U{m}"]
    return words
""",
    ),
    Bug(
        "no_flush",
        "the smallest room of all stages",
        old="warm = min(M, S - 1 - stage, min(room[: stage + 1]) - 1)",
        new="warm = min(M, S - 1 - stage, min(room) - 1)",
    ),
    Bug(
        "no_flush",
        "all the room is used, though it wins nothing",
        old="warm = min(M, S - 1 - stage, min(room[: stage + 1]) - 1)",
        new="warm = min(M, min(room[: stage + 1]) - 1)",
    ),
    Bug(
        "no_flush",
        "one version more than there is room for",
        old="warm = min(M, S - 1 - stage, min(room[: stage + 1]) - 1)",
        new="warm = min(M, S - 1 - stage, min(room[: stage + 1]))",
    ),
    Bug(
        "no_flush",
        "one version fewer than there is room for",
        old="warm = min(M, S - 1 - stage, min(room[: stage + 1]) - 1)",
        new="warm = min(M, S - 1 - stage, max(0, min(room[: stage + 1]) - 2))",
    ),
    Bug(
        "no_flush",
        "one micro-batch at a time",
        old="warm = min(M, S - 1 - stage, min(room[: stage + 1]) - 1)",
        new="warm = 0",
    ),
    Bug(
        "no_flush",
        "warm-up by the stage's number",
        old="warm = min(M, S - 1 - stage, min(room[: stage + 1]) - 1)",
        new="warm = min(M, stage, min(room[: stage + 1]) - 1)",
    ),
    Bug(
        "no_flush",
        "the backward before the forward of its turn",
        old="""
if warm + m < M:
    words.append(f"F{warm + m}")
words += [f"B{m}", f"U{m}"]
""",
        new="""
words += [f"B{m}", f"U{m}"] if warm else []
if warm + m < M:
    words.append(f"F{warm + m}")
words += [] if warm else [f"B{m}", f"U{m}"]
""",
    ),
    Bug(
        "no_flush",
        "all updates come at the end",
        edits=(
            ('words += [f"B{m}", f"U{m}"]', 'words.append(f"B{m}")'),
            ("return words", 'return words + [f"U{m}" for m in range(M)]'),
        ),
    ),
    Bug(
        "no_flush",
        "one update, at the end",
        edits=(
            ('words += [f"B{m}", f"U{m}"]', 'words.append(f"B{m}")'),
            ("return words", 'return [*words, f"U{M - 1}"]'),
        ),
    ),
    Bug(
        "no_flush",
        "all forwards first",
        old="warm = min(M, S - 1 - stage, min(room[: stage + 1]) - 1)",
        new="warm = M",
    ),
    Bug(
        "no_flush",
        "the update comes a forward later",
        edits=(
            (
                """
if warm + m < M:
    words.append(f"F{warm + m}")
words += [f"B{m}", f"U{m}"]
""",
                """
if warm + m < M:
    words.append(f"F{warm + m}")
words += [f"U{m - 1}"] * (m > 0) + [f"B{m}"]
""",
            ),
            ("return words", 'return [*words, f"U{M - 1}"]'),
        ),
    ),
    Bug(
        "no_flush",
        "lesson 16's list: no updates",
        old='words += [f"B{m}", f"U{m}"]',
        new='words.append(f"B{m}")',
    ),
    Bug(
        "no_flush",
        "the last micro-batch has no update",
        old='words += [f"B{m}", f"U{m}"]',
        new='words += [f"B{m}", f"U{m}"][: 2 if m < M - 1 else 1]',
    ),
    Bug(
        "no_flush",
        "the update comes before its backward",
        old='words += [f"B{m}", f"U{m}"]',
        new='words += [f"U{m}", f"B{m}"]',
    ),
    Bug(
        "no_flush",
        "the grader makes the lists, too",
        cheat=True,
        cell="""
def no_flush(stage, S, M, room):
    from minicheck.oracles.pipedream import within

    return within(stage, S, M, room)
""",
    ),
    Bug(
        "no_flush",
        "the library has the list",
        cheat=True,
        cell="""
from minidist.parallel.schedules import pipedream


def no_flush(stage, S, M, room):
    alike = S - min(S - stage, *room[: stage + 1])  # the stage that is as far ahead
    return [str(action) for action in pipedream(alike, S, M)]
""",
    ),
    Bug(
        "staleness",
        "the leader is not looked at",
        old='used = [newest_at(lists[lead], f"F{m}") for m in range(M)]',
        new='used = [newest_at(words, f"F{m}") for m in range(M)]',
    ),
    Bug(
        "staleness",
        "always vertical sync with stage 0",
        old='used = [newest_at(lists[lead], f"F{m}") for m in range(M)]',
        new='used = [newest_at(lists[0], f"F{m}") for m in range(M)]',
    ),
    Bug(
        "staleness",
        "vertical sync with the last stage's version",
        old='used = [newest_at(lists[lead], f"F{m}") for m in range(M)]',
        new='used = [newest_at(lists[-1], f"F{m}") for m in range(M)]',
    ),
    Bug(
        "staleness",
        "vertical sync or nothing: a node is not known",
        old='used = [newest_at(lists[lead], f"F{m}") for m in range(M)]',
        new='used = [newest_at(lists[0] if 0 in leader[1:] else words, f"F{m}") for m in range(M)]',
    ),
    Bug(
        "staleness",
        "the lesson's formula, without a look at the lists",
        cell="""
def staleness(lists, leader):
    S = len(lists)
    M = sum(word[0] == "F" for word in lists[0])
    return [[min(m, S - 1 - lead) for m in range(M)] for lead in leader]
""",
    ),
    Bug(
        "staleness",
        "distance of micro-batch numbers, as if each had its update",
        cell="""
def staleness(lists, leader):
    rows = []
    for words, lead in zip(lists, leader):
        M = sum(word[0] == "F" for word in words)
        row = []
        for m in range(M):
            ahead = lists[lead][: lists[lead].index(f"F{m}")]
            row.append(m - sum(word[0] == "B" for word in ahead))
        rows.append(row)
    return rows
""",
    ),
    Bug(
        "staleness",
        "the version that the backward meets",
        old='rows.append([newest_at(words, f"B{m}") - used[m] for m in range(M)])',
        new='rows.append([newest_at(words, f"B{m}") for m in range(M)])',
    ),
    Bug(
        "staleness",
        "the version that the forward uses",
        old='rows.append([newest_at(words, f"B{m}") - used[m] for m in range(M)])',
        new="rows.append(used)",
    ),
    Bug(
        "staleness",
        "its own update counts, too",
        old='rows.append([newest_at(words, f"B{m}") - used[m] for m in range(M)])',
        new='rows.append([newest_at(words, f"B{m}") - used[m] + 1 for m in range(M)])',
    ),
    Bug(
        "staleness",
        "all actions between count",
        old='return sum(other[0] == "U" for other in before)',
        new="return len(before)",
    ),
    Bug(
        "staleness",
        "takes B12 for B1",
        old="before = words[: words.index(word)]",
        new="before = words[: [other.startswith(word) for other in words].index(True)]",
    ),
    Bug(
        "staleness",
        "in the order of the backwards, not of the micro-batches",
        old='rows.append([newest_at(words, f"B{m}") - used[m] for m in range(M)])',
        new="""
order = [int(word[1:]) for word in words if word[0] == "B"]
rows.append([newest_at(words, f"B{m}") - used[m] for m in order])
""",
    ),
    Bug(
        "staleness",
        "in the order of the forwards",
        old='rows.append([newest_at(words, f"B{m}") - used[m] for m in range(M)])',
        new="""
order = [int(word[1:]) for word in words if word[0] == "F"]
rows.append([newest_at(words, f"B{m}") - used[m] for m in order])
""",
    ),
    Bug(
        "staleness",
        "the lists are used up",
        old='rows.append([newest_at(words, f"B{m}") - used[m] for m in range(M)])',
        new="""
rows.append([newest_at(words, f"B{m}") - used[m] for m in range(M)])
leader[:] = [0] * len(leader)
""",
    ),
    Bug(
        "staleness",
        "the grader counts, too",
        cheat=True,
        cell="""
def staleness(lists, leader):
    from minicheck.oracles.pipedream import before

    used = [before(lists[lead], "F") for lead in leader]
    return [[b - f for f, b in zip(row, before(words, "B"))] for row, words in zip(used, lists)]
""",
    ),
    Bug(
        "staleness",
        "the library counts",
        cheat=True,
        cell="""
from minidist.parallel.schedules import parse
from minidist.parallel.validate import staleness as library


def staleness(lists, leader):
    return [
        list(library([parse(" ".join(lists[lead])), parse(" ".join(words))], "first")[1].values())
        for words, lead in zip(lists, leader)
    ]
""",
    ),
    Bug(
        "staleness",
        "the newest version, too, is looked up in the leader's list",
        cell="""
def staleness(lists, leader):
    rows = []
    for lead in leader:
        words = lists[lead]
        late = {}
        for at, word in enumerate(words):
            made = sum(other[0] == "U" for other in words[:at])
            if word[0] == "F":
                late[int(word[1:])] = -made
            elif word[0] == "B":
                late[int(word[1:])] += made
        rows.append([late[m] for m in sorted(late)])
    return rows
""",
    ),
    Bug(
        "needed",
        "the leader is not looked at",
        old="to_come = dict(rows[lead])",
        new="to_come = dict(rows[len(peaks)])",
    ),
    Bug(
        "needed",
        "always vertical sync with stage 0",
        old="to_come = dict(rows[lead])",
        new="to_come = dict(rows[0])",
    ),
    Bug(
        "needed",
        "the newest is not counted for itself",
        edits=(
            ("peak = max(peak, len(older) + 1)", "peak = max(peak, len(older))"),
            ("peak = 1", "peak = 0"),
        ),
    ),
    Bug(
        "needed",
        "backwards alone: what a forward to come will use goes too soon",
        edits=(
            ("to_come = dict(rows[lead])", "to_come = {}"),
            (
                """
if word[0] == "B":
    del to_come[word[1:]]
""",
                """
if word[0] == "F":
    to_come[word[1:]] = rows[lead][word[1:]]
if word[0] == "B":
    del to_come[word[1:]]
""",
            ),
        ),
    ),
    Bug(
        "needed",
        "no stash: forwards alone need a version",
        old='if word[0] == "B":',
        new='if word[0] == "F":',
    ),
    Bug(
        "needed",
        "one for each micro-batch under way",
        edits=(
            (
                "older = {version for version in to_come.values() if version < newest}",
                'older = [m for m in to_come if f"F{m}" in words[: words.index(word) + 1]]',
            ),
            ("peak = max(peak, len(older) + 1)", "peak = max(peak, len(older))"),
        ),
    ),
    Bug(
        "needed",
        "a version for each micro-batch, not each version once",
        old="older = {version for version in to_come.values() if version < newest}",
        new="older = [version for version in to_come.values() if version < newest]",
    ),
    Bug(
        "needed",
        "versions that are not made yet count, too",
        old="older = {version for version in to_come.values() if version < newest}",
        new="older = {version for version in to_come.values() if version != newest}",
    ),
    Bug(
        "needed",
        "at the end, not at the peak",
        old="peak = max(peak, len(older) + 1)",
        new="peak = len(older) + 1",
    ),
    Bug(
        "needed",
        "the lesson's formula: S − s versions",
        cell="""
def needed(lists, leader):
    M = sum(word[0] == "F" for word in lists[0])
    return [min(M, len(lists) - lead) for lead in leader]
""",
    ),
    Bug(
        "needed",
        "all versions that are ever made",
        cell="""
def needed(lists, leader):
    return [1 + sum(word[0] == "U" for word in words) for words in lists]
""",
    ),
    Bug(
        "needed",
        "the lists are used up",
        old="return peaks",
        new="""
for words in lists:
    words.clear()
return peaks
""",
    ),
    Bug(
        "needed",
        "a list that equals everything",
        cheat=True,
        cell="""
class Yes(list):
    def __eq__(self, other):
        return True


def needed(lists, leader):
    return Yes([0] * len(lists))
""",
    ),
    Bug(
        "needed",
        "the grader counts, too",
        cheat=True,
        cell="""
def needed(lists, leader):
    from minicheck.oracles.pipedream import before, holding

    used = [before(lists[lead], "F") for lead in leader]
    return [max(holding(words, row)) for words, row in zip(lists, used)]
""",
    ),
    Bug(
        "needed",
        "the library counts",
        cheat=True,
        cell="""
from minidist.parallel.schedules import parse
from minidist.parallel.validate import held


def needed(lists, leader):
    pairs = [[parse(" ".join(lists[lead])), parse(" ".join(words))] for words, lead in zip(lists, leader)]
    return [max(held(pair, "first")[1]) for pair in pairs]
""",
    ),
    Bug(
        "store",
        "the lesson's stash: a forward uses the newest version",
        cell="""
class Store:
    def __init__(self, weight):
        self.newest, self.used = weight, {}

    def forward(self, m, number):
        self.used[m] = self.newest
        return self.newest

    def backward(self, m):
        return self.used.pop(m)

    def update(self, grad, rate):
        self.newest = self.newest - rate * grad
""",
    ),
    Bug(
        "store",
        "nothing is given up before its backward: numbers that nobody asks for stay",
        old="""
for old in [k for k in self.versions if k < number]:
    del self.versions[old]
""",
        new="",
    ),
    Bug(
        "store",
        "only backwards are waited for: what a forward will ask for is gone",
        old="""
self.newest += 1
self.versions[self.newest] = new
""",
        new="""
self.newest += 1
self.versions = {k: v for k, v in self.versions.items() if any(v is u for u in self.used.values())}
self.versions[self.newest] = new
""",
    ),
    Bug(
        "store",
        "the number before the one that is asked for",
        edits=(
            (
                "self.used[m] = self.versions[number]",
                "self.used[m] = self.versions.get(number - 1, self.versions[number])",
            ),
            (
                """
for old in [k for k in self.versions if k < number]:
    del self.versions[old]
""",
                """
for old in [k for k in self.versions if k < number - 1]:
    del self.versions[old]
""",
            ),
        ),
    ),
    Bug(
        "store",
        "the number is taken for the micro-batch",
        old="self.used[m] = self.versions[number]",
        new="self.used[m] = self.versions.get(m, self.versions[number])",
    ),
    Bug(
        "store",
        "a copy for every micro-batch",
        old="self.used[m] = self.versions[number]",
        new="self.used[m] = self.versions[number].clone()",
    ),
    Bug(
        "store",
        "copies are handed out, and autograd holds them beside",
        old="self.used[m] = self.versions[number]",
        new="""
self.used[m] = self.versions[number]
return self.used[m].clone()
""",
    ),
    Bug(
        "store",
        "backward gets the newest: no stashing",
        old="return self.used.pop(m)",
        new="""
self.used.pop(m)
return self.versions[self.newest]
""",
    ),
    Bug(
        "store",
        "versions are never freed",
        old="return self.used.pop(m)",
        new="return self.used[m]",
    ),
    Bug(
        "store",
        "all versions in a list",
        cell="""
class Store:
    def __init__(self, weight):
        self.versions, self.used = [weight], {}

    def forward(self, m, number):
        self.used[m] = number
        return self.versions[number]

    def backward(self, m):
        return self.versions[self.used.pop(m)]

    def update(self, grad, rate):
        self.versions.append(self.versions[-1] - rate * grad)
""",
    ),
    Bug(
        "store",
        "an update copies the old version away, and changes the tensor that was handed out",
        cell="""
class Store:
    def __init__(self, weight):
        self.versions, self.used, self.count = {0: weight.clone()}, {}, 0

    def forward(self, m, number):
        for old in [k for k in self.versions if k < number]:
            del self.versions[old]
        self.used[m] = self.versions[number]
        return self.used[m]

    def backward(self, m):
        return self.used.pop(m)

    def update(self, grad, rate):
        newest = self.versions[self.count]
        self.versions[self.count] = newest.clone()
        mine = [m for m, version in self.used.items() if version is newest]
        self.used |= dict.fromkeys(mine, self.versions[self.count])
        self.count += 1
        self.versions[self.count] = newest.sub_(rate * grad)
""",
    ),
    Bug(
        "store",
        "the first micro-batch goes back, whatever `m` is",
        old="return self.used.pop(m)",
        new="return self.used.pop(next(iter(self.used)))",
    ),
    Bug(
        "store",
        "an update changes the tensor",
        old="new = self.versions[self.newest] - rate * grad",
        new="new = self.versions[self.newest].sub_(rate * grad)",
    ),
    Bug(
        "store",
        "a copy first, then all updates in place",
        edits=(
            ("self.versions = {0: weight}", "self.versions = {0: weight.clone()}"),
            (
                "new = self.versions[self.newest] - rate * grad",
                "new = self.versions[self.newest].sub_(rate * grad)",
            ),
        ),
    ),
    Bug(
        "store",
        "versions hidden in lists of numbers, and lists handed out",
        cell="""
class Store:
    def __init__(self, weight):
        self.versions, self.used = [weight.tolist()], {}

    def forward(self, m, number):
        self.used[m] = self.versions[number]
        return self.used[m]

    def backward(self, m):
        return self.used.pop(m)

    def update(self, grad, rate):
        self.versions.append((torch.tensor(self.versions[-1]) - rate * grad).tolist())
""",
    ),
    Bug(
        "store",
        "the rate is forgotten",
        old="new = self.versions[self.newest] - rate * grad",
        new="new = self.versions[self.newest] - grad",
    ),
    Bug(
        "store",
        "a rate of its own",
        old="new = self.versions[self.newest] - rate * grad",
        new="new = self.versions[self.newest] - 0.3 * grad",
    ),
    Bug(
        "store",
        "the gradient is scaled in place",
        old="new = self.versions[self.newest] - rate * grad",
        new="new = self.versions[self.newest] - grad.mul_(rate)",
    ),
    Bug(
        "store",
        "the gradient is subtracted from the version that made it",
        edits=(
            (
                "return self.used.pop(m)",
                """
self.last = self.used.pop(m)
return self.last
""",
            ),
            ("new = self.versions[self.newest] - rate * grad", "new = self.last - rate * grad"),
        ),
    ),
    Bug(
        "store",
        "the last gradient is held",
        old="new = self.versions[self.newest] - rate * grad",
        new="""
new = self.versions[self.newest] - rate * grad
self.last = grad
""",
    ),
    Bug(
        "store",
        "inf is hidden in a gradient",
        old="new = self.versions[self.newest] - rate * grad",
        new="new = self.versions[self.newest] - rate * grad.nan_to_num()",
    ),
    Bug(
        "store",
        "all stores share what micro-batches use",
        cell="""
class Store:
    used = {}

    def __init__(self, weight):
        self.newest, self.versions = 0, {0: weight}

    def forward(self, m, number):
        for old in [k for k in self.versions if k < number]:
            del self.versions[old]
        Store.used[m] = self.versions[number]
        return Store.used[m]

    def backward(self, m):
        return Store.used.pop(m)

    def update(self, grad, rate):
        new = self.versions[self.newest] - rate * grad
        self.newest += 1
        self.versions[self.newest] = new
""",
    ),
    Bug(
        "store",
        "two versions, as in 2BW",
        cell="""
class Store:
    def __init__(self, weight):
        self.newest = self.old = weight

    def forward(self, m, number):
        return self.old

    def backward(self, m):
        return self.old

    def update(self, grad, rate):
        self.old, self.newest = self.newest, self.newest - rate * grad
""",
    ),
    Bug(
        "store",
        "a list, with numbers of micro-batches for places",
        cell="""
class Store:
    def __init__(self, weight):
        self.newest, self.versions, self.used = 0, {0: weight}, []

    def forward(self, m, number):
        for old in [k for k in self.versions if k < number]:
            del self.versions[old]
        self.used.append(self.versions[number])
        return self.used[-1]

    def backward(self, m):
        found, self.used[m] = self.used[m], None
        return found

    def update(self, grad, rate):
        new = self.versions[self.newest] - rate * grad
        self.newest += 1
        self.versions[self.newest] = new
""",
    ),
    Bug(
        "store",
        "no more than four versions are kept",
        edits=(
            (
                "self.versions[self.newest] = new",
                """
self.versions[self.newest] = new
self.versions.pop(self.newest - 4, None)
""",
            ),
            (
                "self.used[m] = self.versions[number]",
                "self.used[m] = self.versions.get(number, self.versions[self.newest])",
            ),
        ),
    ),
    Bug(
        "store",
        "all versions are kept, in another shape",
        cheat=True,
        old="new = self.versions[self.newest] - rate * grad",
        new="""
new = self.versions[self.newest] - rate * grad
self.all = [*getattr(self, 'all', []), new.flatten().clone()]
""",
    ),
    Bug(
        "store",
        "the library has a store",
        cheat=True,
        cell="""
from minidist.parallel.pipedream import Versions


class Store(Versions):
    def __init__(self, weight):
        part = torch.nn.Module()
        part.weight = torch.nn.Parameter(weight)
        super().__init__(part)
""",
    ),
    Bug(
        "store",
        "old versions are kept as arrays, which are no tensors",
        cheat=True,
        cell="""
class Store:
    def __init__(self, weight):
        self.newest, self.count, self.used = weight, 0, {}
        self.kept = {0: self.newest.numpy().copy()}

    def opened(self, m):
        return torch.from_numpy(self.kept[m])

    def forward(self, m, number):
        self.used[m] = number
        return self.opened(number)

    def backward(self, m):
        return self.opened(self.used.pop(m))

    def update(self, grad, rate):
        self.newest = self.newest - rate * grad
        self.count += 1
        self.kept[self.count] = self.newest.numpy().copy()
""",
    ),
    Bug(
        "store",
        "a forward gives up one old version at most, though numbers may skip some",
        old="""
for old in [k for k in self.versions if k < number]:
    del self.versions[old]
""",
        new="""
if min(self.versions) < number:
    del self.versions[min(self.versions)]
""",
    ),
    Bug(
        "two_versions",
        "as it was found",
        old="older, newer = newer, newer - rate * mean",
        new="older, newer = newer, older - rate * mean",
    ),
    Bug(
        "two_versions",
        "the weight is changed",
        old="older, newer = newer, newer - rate * mean",
        new="older, newer = newer, newer.sub_(rate * mean)",
    ),
    Bug(
        "two_versions",
        "the last group is forgotten",
        old="for g in range(0, len(xs), m):",
        new="for g in range(0, len(xs) - m, m):",
    ),
    Bug(
        "two_versions",
        "gradients at the newest version",
        old="mean = sum(grad(older, x) for x in xs[g : g + m]) / m",
        new="mean = sum(grad(newer, x) for x in xs[g : g + m]) / m",
    ),
    Bug(
        "two_versions",
        "the older of the two is returned",
        old="return newer",
        new="return older",
    ),
    Bug(
        "two_versions",
        "a rate of its own",
        old="older, newer = newer, newer - rate * mean",
        new="older, newer = newer, newer - 0.125 * mean",
    ),
    Bug(
        "two_versions",
        "the sum, not the mean",
        old="mean = sum(grad(older, x) for x in xs[g : g + m]) / m",
        new="mean = sum(grad(older, x) for x in xs[g : g + m])",
    ),
    Bug(
        "two_versions",
        "two updates late",
        cell='''
def two_versions(weight, grad, xs, rate, m):
    """The weights after all groups; grad(w, x) is the gradient of micro-batch x at w."""
    made = [weight]
    for g in range(len(xs) // m):
        mean = sum(grad(made[max(0, g - 2)], x) for x in xs[g * m : g * m + m]) / m
        made.append(made[-1] - rate * mean)
    return made[-1]
''',
    ),
    Bug(
        "two_versions",
        "the gradients that are looked at are asked for beside those that are used",
        cheat=True,
        cell='''
def two_versions(weight, grad, xs, rate, m):
    """The weights after all groups; grad(w, x) is the gradient of micro-batch x at w."""
    newest = weight
    for g in range(0, len(xs), m):
        newest = newest - rate * sum(grad(newest, x) for x in xs[g : g + m]) / m
    for x in xs:
        grad(weight, x)
    return newest
''',
    ),
    Bug(
        "two_versions",
        "the grader has it",
        cheat=True,
        cell='''
from minicheck.oracles.pipedream import buffered


def two_versions(weight, grad, xs, rate, m):
    """The weights after all groups; grad(w, x) is the gradient of micro-batch x at w."""
    return buffered(weight, grad, xs, rate, m)
''',
    ),
    Bug(
        "two_versions",
        "inf is hidden in a gradient",
        old="mean = sum(grad(older, x) for x in xs[g : g + m]) / m",
        new="mean = sum(grad(older, x).nan_to_num() for x in xs[g : g + m]) / m",
    ),
    Bug(
        "two_versions",
        "the last micro-batch of a group comes first",
        old="mean = sum(grad(older, x) for x in xs[g : g + m]) / m",
        new="mean = sum(grad(older, x) for x in reversed(xs[g : g + m])) / m",
    ),
    Bug(
        "two_versions",
        "the lesson's serial program with gradients that are one update late: an update for each micro-batch",
        cell="""
def two_versions(weight, grad, xs, rate, m):
    made = [weight]
    for i, x in enumerate(xs):
        made.append(made[-1] - rate * grad(made[max(0, i - 1)], x))
    return made[-1]
""",
    ),
    Bug(
        "run_2bw",
        "the lesson's stage: each forward uses the newest version, an update has the last gradient alone",
        cell="""
def run_2bw(down, up, part, words, xs, ys, loss_fn, rate, m):
    stage = down.rank
    last = down.size - 1
    newest = dict(part.named_parameters())
    sends = []
    kept = {}
    for word in words:
        kind, i = word[0], int(word[1:])
        if kind == "F":
            x = down.recv(torch.empty_like(xs[i]), stage - 1) if stage > 0 else xs[i]
            x = x.detach().requires_grad_()
            y = functional_call(part, newest, x)
            if stage < last:
                sends.append(down.isend(y.detach(), stage + 1))
            else:
                y = loss_fn(y, ys[i])
            kept[i] = x, y, newest
        elif kind == "B":
            x, y, used = kept.pop(i)
            dy = up.recv(torch.empty_like(y), stage + 1) if stage < last else None
            dx, *grads = torch.autograd.grad(y, [x, *used.values()], dy)
            if stage > 0:
                sends.append(up.isend(dx, stage - 1))
        else:
            new = {}
            for (name, weight), grad in zip(newest.items(), grads):
                new[name] = (weight - rate * grad).detach().requires_grad_()
            newest = new
    for work in sends:
        work.wait()
    with torch.no_grad():
        for name, p in part.named_parameters():
            p.copy_(newest[name])
""",
    ),
    Bug(
        "run_2bw",
        "each forward uses the newest version",
        old="version = versions[max(0, i // m - 1)]",
        new="version = newest",
    ),
    Bug(
        "run_2bw",
        "gradients are two updates late",
        edits=(
            ("version = versions[max(0, i // m - 1)]", "version = versions[max(0, i // m - 2)]"),
            (
                "versions = {updates - 1: versions[updates - 1], updates: newest}",
                "versions[updates] = newest",
            ),
        ),
    ),
    Bug(
        "run_2bw",
        "a new version keeps the graph of its update, and so all versions before it",
        old="""
name: (w - rate * t / count).detach().requires_grad_()
""",
        new="""
name: w - rate * t / count
""",
    ),
    Bug(
        "run_2bw",
        "the sum of a group, not the mean",
        old="name: (w - rate * t / count).detach().requires_grad_()",
        new="name: (w - rate * t).detach().requires_grad_()",
    ),
    Bug(
        "run_2bw",
        "divided by m, in a smaller last group, too",
        old="name: (w - rate * t / count).detach().requires_grad_()",
        new="name: (w - rate * t / m).detach().requires_grad_()",
    ),
    Bug(
        "run_2bw",
        "an update has the gradient of the last micro-batch of its group alone",
        edits=(
            (
                "total = grads if total is None else [t + g for t, g in zip(total, grads)]",
                "total = grads",
            ),
            ("count += 1", "count = 1"),
        ),
    ),
    Bug(
        "run_2bw",
        "gradients of the groups before add up",
        old="""
versions = {updates - 1: versions[updates - 1], updates: newest}
total = None
""",
        new="""
versions = {updates - 1: versions[updates - 1], updates: newest}
""",
    ),
    Bug(
        "run_2bw",
        "every version is kept",
        old="versions = {updates - 1: versions[updates - 1], updates: newest}",
        new="versions[updates] = newest",
    ),
    Bug(
        "run_2bw",
        "a copy of the version for each micro-batch",
        old="version = versions[max(0, i // m - 1)]",
        new="version = {name: w.detach().clone().requires_grad_() for name, w in versions[max(0, i // m - 1)].items()}",
    ),
    Bug(
        "run_2bw",
        "the batch is overwritten",
        old="x = x.detach().requires_grad_()",
        new="x = (x.mul_(1.0 + 1e-3) if stage == 0 else x).detach().requires_grad_()",
    ),
    Bug(
        "run_2bw",
        "the caller's micro-batches require a gradient",
        old="x = x.detach().requires_grad_()",
        new="x = x.requires_grad_()",
    ),
    Bug(
        "run_2bw",
        "`p.data = new`, and nothing is stashed: right for nn.Linear, wrong for other layers",
        edits=(
            ("version = versions[max(0, i // m - 1)]", ""),
            ("y = functional_call(part, version, x)", "y = part(x)"),
            ("kept[i] = x, y, version", "kept[i] = x, y, dict(part.named_parameters())"),
            (
                "versions = {updates - 1: versions[updates - 1], updates: newest}",
                """
for name, p in part.named_parameters():
    p.data = newest[name].data
""",
            ),
        ),
    ),
    Bug(
        "run_2bw",
        "the loss is divided by M",
        old="y = loss_fn(y, ys[i])",
        new="y = loss_fn(y, ys[i]) / len(xs)",
    ),
    Bug(
        "run_2bw",
        "updates only at the end, with all gradients",
        edits=(
            (
                'elif kind == "B":',
                """
elif kind == "U" and i < len(xs) - 1:
    pass
elif kind == "B":
""",
            ),
            ("version = versions[max(0, i // m - 1)]", "version = newest"),
        ),
    ),
    Bug(
        "run_2bw",
        "nothing is freed",
        old="x, y, used = kept.pop(i)",
        new="x, y, used = kept[i]",
    ),
    Bug(
        "run_2bw",
        "inputs are kept beside",
        old="kept[i] = x, y, version",
        new="""
kept[i] = x, y, version
kept[-1 - i] = x
""",
    ),
    Bug(
        "run_2bw",
        "the last micro-batch goes back, whatever the list says",
        old="x, y, used = kept.pop(i)",
        new="x, y, used = kept.popitem()[1]",
    ),
    Bug(
        "run_2bw",
        "backward again with the newest weights",
        old="x, y, used = kept.pop(i)",
        new="""
x, y, used = kept.pop(i)
if stage < last:
    y, used = functional_call(part, newest, x), newest
""",
    ),
    Bug(
        "run_2bw",
        "sends are never waited for",
        old="""
for work in sends:
    work.wait()
""",
        new="",
    ),
    Bug(
        "run_2bw",
        "every send is waited for at once",
        edits=(
            ("sends.append(down.isend(y.detach(), stage + 1))", "down.send(y.detach(), stage + 1)"),
            ("sends.append(up.isend(dx, stage - 1))", "up.send(dx, stage - 1)"),
        ),
    ),
    Bug(
        "run_2bw",
        "the newest weights are not put into the part",
        old="p.copy_(newest[name])",
        new="newest[name]",
    ),
    Bug(
        "run_2bw",
        "the version before the newest is put into the part",
        old="p.copy_(newest[name])",
        new="p.copy_(versions[max(0, updates - 1)][name])",
    ),
    Bug(
        "run_2bw",
        "mse_loss, whatever `loss_fn` is",
        old="y = loss_fn(y, ys[i])",
        new="y = mse_loss(y, ys[i])",
    ),
    Bug(
        "run_2bw",
        "a rate of its own",
        old="name: (w - rate * t / count).detach().requires_grad_()",
        new="name: (w - 0.3 * t / count).detach().requires_grad_()",
    ),
    Bug(
        "run_2bw",
        "the first update is left out",
        old="name: (w - rate * t / count).detach().requires_grad_()",
        new="name: (w - rate * t / count * (updates > 1)).detach().requires_grad_()",
    ),
    Bug(
        "run_2bw",
        "the gradient is subtracted from the weights that made it",
        old="for (name, w), t in zip(newest.items(), total)",
        new="for (name, w), t in zip(used.items(), total)",
    ),
    Bug(
        "run_2bw",
        "the last update is made twice",
        old="p.copy_(newest[name])",
        new="p.copy_(newest[name] + (newest[name] - versions[max(0, updates - 1)][name]) * (len(xs) > 1))",
    ),
    Bug(
        "run_2bw",
        "an update in each B, not at U",
        edits=(
            (
                "count += 1",
                """
count += 1
newest = {
    name: (w - rate * g).detach().requires_grad_()
    for (name, w), g in zip(newest.items(), grads)
}
""",
            ),
            ("name: (w - rate * t / count).detach().requires_grad_()", "name: w"),
        ),
    ),
    Bug(
        "run_2bw",
        "what has one dimension, a bias or a norm, is not updated",
        old="name: (w - rate * t / count).detach().requires_grad_()",
        new="name: (w - rate * t / count * (w.dim() > 1)).detach().requires_grad_()",
    ),
    Bug(
        "run_2bw",
        "all micro-batches are received as large as the first",
        old="x = down.recv(torch.empty_like(xs[i]), stage - 1) if stage > 0 else xs[i]",
        new="x = down.recv(torch.empty_like(xs[0]), stage - 1) if stage > 0 else xs[i]",
    ),
    Bug(
        "run_2bw",
        "nan is hidden in gradients",
        old="dx, *grads = torch.autograd.grad(y, [x, *used.values()], dy)",
        new="""
dx, *grads = torch.autograd.grad(y, [x, *used.values()], dy)
grads = [g.nan_to_num() for g in grads]
""",
    ),
    Bug(
        "run_2bw",
        "a small micro-batch counts less",
        edits=(
            (
                "total = grads if total is None else [t + g for t, g in zip(total, grads)]",
                """
part_of = len(xs[i]) / len(xs[0])
grads = [part_of * g for g in grads]
total = grads if total is None else [t + g for t, g in zip(total, grads)]
""",
            ),
            ("count += 1", "count += part_of"),
        ),
    ),
    Bug(
        "run_2bw",
        "all versions are kept, in another shape",
        cheat=True,
        old="updates += 1",
        new="""
updates += 1
kept[-updates] = torch.cat([w.detach().flatten() for w in newest.values()])
""",
    ),
    Bug(
        "run_2bw",
        "the library has it",
        cheat=True,
        cell="""
from minidist.parallel.pipedream import PipeDream2BW


def run_2bw(down, up, part, words, xs, ys, loss_fn, rate, m):
    PipeDream2BW(part, down, lambda p: torch.optim.SGD(p, lr=rate), loss_fn, m=m).run(list(zip(xs, ys)))
""",
    ),
    Bug(
        "run_2bw",
        "the grader's oracle",
        cheat=True,
        cell="""
def run_2bw(down, up, part, words, xs, ys, loss_fn, rate, m):
    from minicheck.oracles.pipedream import late_weights

    late_weights(lambda w, x: x, [[p] for p in part.parameters()], xs, ys, loss_fn, [[0] * len(xs)], rate)
""",
    ),
    Bug(
        "predict_pipedream",
        "2BW updates every micro-batch",
        cell="""
stage_bytes = 8e8
stash_bytes = 4.4e9
vertical_bytes = 7.2e9
two_bytes = 1.8e9
updates = 600
gain = 1020 / 607
rates = 4.7834
""",
    ),
    Bug(
        "predict_pipedream",
        "vertical like stashing",
        cell="""
stage_bytes = 8e8
stash_bytes = 4.4e9
vertical_bytes = 4.4e9
two_bytes = 1.8e9
updates = 60
gain = 1020 / 607
rates = 4.7834
""",
    ),
    Bug(
        "predict_pipedream",
        "2BW with m versions",
        cell="""
stage_bytes = 8e8
stash_bytes = 4.4e9
vertical_bytes = 7.2e9
two_bytes = 9e9
updates = 60
gain = 1020 / 607
rates = 4.7834
""",
    ),
    Bug(
        "predict_pipedream",
        "megabytes for bytes",
        cell="""
stage_bytes = 800
stash_bytes = 4400
vertical_bytes = 7200
two_bytes = 1800
updates = 60
gain = 1020 / 607
rates = 4.7834
""",
    ),
    Bug(
        "predict_pipedream",
        "bytes without the newest",
        cell="""
stage_bytes = 8e8
stash_bytes = 3.5e9
vertical_bytes = 7.2e9
two_bytes = 1.8e9
updates = 60
gain = 1020 / 607
rates = 4.7834
""",
    ),
    Bug(
        "predict_pipedream",
        "versions the wrong way round",
        cell="""
stage_bytes = 5e8
stash_bytes = 4.4e9
vertical_bytes = 7.2e9
two_bytes = 1.8e9
updates = 60
gain = 1020 / 607
rates = 4.7834
""",
    ),
    Bug(
        "predict_pipedream",
        "the lesson's formula: all stages alike",
        cell="""
stage_bytes = 8e8
stash_bytes = 3.6e9
vertical_bytes = 7.2e9
two_bytes = 1.8e9
updates = 60
gain = 1020 / 607
rates = 4.7834
""",
    ),
    Bug(
        "predict_pipedream",
        "Adam's moments for every version",
        cell="""
stage_bytes = 18e8
stash_bytes = 4.4e9
vertical_bytes = 7.2e9
two_bytes = 1.8e9
updates = 60
gain = 1020 / 607
rates = 4.7834
""",
    ),
    Bug(
        "predict_pipedream",
        "without Adam's moments",
        cell="""
stage_bytes = 6e8
stash_bytes = 4.4e9
vertical_bytes = 7.2e9
two_bytes = 1.8e9
updates = 60
gain = 1020 / 607
rates = 4.7834
""",
    ),
    Bug(
        "predict_pipedream",
        "the gain of an endless stream",
        cell="""
stage_bytes = 8e8
stash_bytes = 4.4e9
vertical_bytes = 7.2e9
two_bytes = 1.8e9
updates = 60
gain = 17 / 10
rates = 4.7834
""",
    ),
    Bug(
        "predict_pipedream",
        "2BW's gradients are never late",
        cell="""
stage_bytes = 8e8
stash_bytes = 4.4e9
vertical_bytes = 7.2e9
two_bytes = 1.8e9
updates = 60
gain = 1020 / 607
rates = 9.5668
""",
    ),
    Bug(
        "predict_pipedream",
        "the rate goes with the number of updates",
        cell="""
stage_bytes = 8e8
stash_bytes = 4.4e9
vertical_bytes = 7.2e9
two_bytes = 1.8e9
updates = 60
gain = 1020 / 607
rates = 7
""",
    ),
    Bug(
        "predict_pipedream",
        "an array with many guesses",
        cheat=True,
        cell="""
import torch

stage_bytes = stash_bytes = vertical_bytes = two_bytes = updates = gain = rates = torch.arange(100.0)
""",
    ),
    equals_everything(
        "predict_pipedream",
        "stage_bytes",
        "stash_bytes",
        "vertical_bytes",
        "two_bytes",
        "updates",
        "gain",
        "rates",
    ),
]
