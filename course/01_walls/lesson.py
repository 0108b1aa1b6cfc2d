# %% [markdown]
# # 01 · The walls
#
# You have a network that learns well, and everyone tells you that a larger one would learn better. So you make it larger, and one of two things happens. Either the graphics card says *out of memory*, or the training would end in the year 2350. These are the two walls of large-scale training, and every technique in this course is a way over one of them. In this lesson you will measure both.
#
# You need no GPU and no knowledge of clusters, just Python and a little PyTorch: what a module is, what `loss.backward()` does, what an optimizer is for. Run the cells from top to bottom with Shift+Enter. Where a cell asks for a guess, make one before you go on; a guess that turns out wrong is the best way to remember a number. Answers stay folded until you click on them, and so do the cells that draw them.
#
# Here is the first question. A graphics card has 32 GB of memory, and a number in half precision takes 2 bytes. **How many parameters may a network have if this card is to train it?**

# %%
guess = 16_000_000_000  # parameters: change this number

# %% [markdown]
# ## The memory wall
#
# ### On paper: 3 layers, 6 numbers
#
# Let us begin with the smallest deep network there is: three weights in a row, 2, 3 and 4, each of which multiplies what comes in. Its batch has two samples, 1 and 5. In the [forward](term:forward) pass the samples become 2 and 10, then 6 and 30, then 24 and 120.
#
# How does the second weight learn? If it grew by a little, each of its outputs would grow by that amount times *what came in*, and the loss would change by that growth times *what the rest of the network makes of it*. So a weight's gradient is a sum of products: what came in, times what comes back from the layers behind. The second factor is known only in the [backward](term:backward) pass, which reaches the first layer last. Until then the layer has to *keep what came in*. Those kept numbers are called [activations](term:activation), and they are where most surprises with memory come from.
#
# Let us do the backward pass by hand. The loss is the sum of the outputs, so what comes back to the third layer is 1 for each sample. What came in were 6 and 30, so the gradient of the third weight is 6 · 1 + 30 · 1 = 36. Back to the second layer go 1 and 1 times the weight 4, which is 4 and 4; its gradient is 2 · 4 + 10 · 4 = 48. Back to the first layer go 3 times as much, 12 and 12, and its gradient is 1 · 12 + 5 · 12 = 72.
#
# The next cell performs the same step and records after every move how many numbers are held: three weights, whatever is kept, and the gradients that are already there. (The two numbers on their way back are not counted.)

# %%
from minidist import study

weights = [2, 3, 4]
kept = [[1, 5]]  # what came in, of each layer that has run
gradients = []
rows = []
for layer in range(3):
    rows.append([f"forward {layer + 1}", str(kept)[1:-1], "", 3 + 2 * len(kept)])
    kept.append([weights[layer] * value for value in kept[-1]])
outputs = kept.pop()  # the last outputs are the result: nobody needs them for a gradient
back = [1, 1]  # the loss is the sum of the outputs
for layer in reversed(range(3)):
    came_in = kept.pop()
    gradients.append(came_in[0] * back[0] + came_in[1] * back[1])
    back = [weights[layer] * value for value in back]
    held = 3 + 2 * len(kept) + len(gradients)
    rows.append([f"backward {layer + 1}", str(kept)[1:-1], str(gradients)[1:-1], held])
study.table(
    rows,
    ["", "kept for the backward", "gradients", "numbers held"],
    title="A training step, on paper",
)

# %% [markdown]
# Read the last column from top to bottom: 5, 7, 9, then 8, 7, 6. Memory *climbs* through the forward pass, [peaks](term:peak-memory) where the forward pass ends, and *falls* through the backward pass, because each layer can let go of its input once its gradient has been computed. This hill is the most important picture in the lesson. The two strips below it are there all the time: the parameters, and what the optimizer remembers about them.
#
# ![Memory over one training step: activations climb through the forward pass, peak where it ends and fall through the backward pass, while gradients grow; parameters and optimizer states stay at the same height throughout.](../course/01_walls/figures/step_memory.svg)
#
# ### Measured
#
# Does a real network behave like the one on paper? Here is a training step, as everybody writes it.

# %%
import torch
from torch.nn.functional import cross_entropy, mse_loss


def step(model, optimizer, x, y, loss_fn):
    optimizer.zero_grad()
    loss = loss_fn(model(x), y)
    loss.backward()
    optimizer.step()


# %% [markdown]
# And here is a network with six hidden layers that learns to read handwritten digits, all 1,437 in a single batch. The function `measure` from the package calls a function once and watches every operator that PyTorch runs in it: who allocates memory, who frees it, and what it is for. The step itself need not be changed. We measure the second step, since an optimizer allocates what it needs in its first.

# %%
from functools import partial

from minidist.models import mlp
from minidist.study.charts import memory_timeline
from minidist.study.meter import measure
from minidist.tasks import digits


def profile(model, make_optimizer, x, y, loss_fn, step=step):
    """Take two training steps and measure the second."""
    optimizer = make_optimizer(model.parameters())
    step(model, optimizer, x, y, loss_fn)  # the optimizer allocates its numbers
    return measure(step, model, optimizer, x, y, loss_fn)


task = digits(torch.float32)
x = task.x.clone()  # tensors of their own, not views of larger ones
y = task.y.clone()
sizes = [64, 256, 256, 256, 256, 256, 256, 10]
network = mlp(sizes)
small = profile(network, torch.optim.Adam, x, y, cross_entropy)
memory_timeline(small, title="A training step of an MLP")

# %% [markdown]
# It is the hill from the table. The height is measured in bytes on your machine; the time on the horizontal axis is what a modelled GPU would need, so that the picture is the same everywhere. The peak lies a little after the end of the forward pass, where nearly all activations are still there and the first numbers on their way back have been added. The memory of a step falls into four parts, and we shall use these words from now on:
#
# - [Model states](term:model-states) stay from one step to the next: the parameters, their gradients, and whatever [the optimizer remembers](term:optimizer-states). Adam remembers two numbers for each parameter, a running average of its gradients and a running average of their squares.
# - **Activations** are what the forward pass keeps for the backward pass.
# - **Temporary buffers** come and go within a step: the gradients of outputs on their way back, intermediate results, and on a GPU the workspace that a library such as cuDNN asks for to run its fastest algorithm. The meter calls them "other".
# - **Fragmentation** is memory that is free and yet of no use. It gets a section of its own below.
#
# The strip that remains at the very end is the batch itself.
#
# #### A formula beside the measurement
#
# A number that has only been measured is only half understood, so let us predict these bytes. Let the network have Ψ parameters (the Greek letter psi, as in the papers). In single precision, [fp32](term:fp32), a number has 4 bytes: 4Ψ for the weights, 4Ψ for the gradients, 8Ψ for Adam's two numbers. And the activations? A linear layer keeps its input. ReLU keeps its *output*, because where the output is positive the gradient passes. That output is also the input of the next linear layer, so it is one tensor, kept once. The loss keeps its own output of ten numbers a sample, the logarithms of the probabilities. So each width counts once, and all together keep 4 bytes times the batch times the sum of the widths.

# %%
psi = sum(p.numel() for p in network.parameters())
batch = len(x)
predicted = {
    "parameters": 4 * psi,
    "gradients": 4 * psi,
    "optimizer states": 8 * psi,
    "activations": 4 * batch * sum(sizes),
}
at = {}
for phase, _, end in small.phases:  # forward, backward, step
    at[phase] = small.timeline.at(end)
measured = dict(at["step"])
measured["activations"] = at["forward"]["activations"]
rows = []
for part, nbytes in predicted.items():
    rows.append([part, nbytes, measured[part], measured[part] - nbytes])
study.table(
    rows,
    ["bytes", "formula", "measured", "difference"],
    title=f"Ψ = {psi:,} parameters, batch {batch:,}",
)

# %% tags=["maintainer"]
assert all(abs(measured[part] / nbytes - 1) < 0.002 for part, nbytes in predicted.items())

# %% [markdown]
# The formula is off by little more than one part in a thousand, and even that can be explained. Adam counts its steps, in 4 bytes for each of 14 tensors. The loss keeps the labels, 8 bytes for each of 1,437 samples, and two small numbers of its own.
#
# You may wonder whether the meter and the formula share a mistake. There is an independent witness: autograd itself reports what it saves. PyTorch's `saved_tensors_hooks` takes two functions, one for each tensor that is saved and one for each that is fetched again. The next cell uses the first to add up the memory of all saved tensors that are not parameters, each piece of memory once.

# %%
saved = {}
parameters = {p.untyped_storage().data_ptr() for p in network.parameters()}


def remember(tensor):
    storage = tensor.untyped_storage()  # the memory behind it, which views share
    if storage.data_ptr() not in parameters:
        saved[storage.data_ptr()] = storage.nbytes()
    return tensor


with torch.autograd.graph.saved_tensors_hooks(remember, lambda tensor: tensor):
    loss = cross_entropy(network(x), y)
witness = sum(saved.values())
study.bars(
    {
        "formula": predicted["activations"],
        "meter": measured["activations"],
        "autograd": witness,
    },
    unit="B",
    title="Activations at the end of the forward pass, by three witnesses",
)

# %% tags=["maintainer"]
assert abs(witness - measured["activations"]) <= 64  # some numbers of the loss

# %% [markdown]
# ### Only the peak counts
#
# A card overflows at one moment, the peak, and nobody cares how much is free before or after it. That makes some savings useless. Suppose you want to halve the peak of the step above. Which of these would do it?
#
# 1. half the batch
# 2. plain SGD, which keeps no states, instead of Adam
# 3. both of them
# 4. freeing the gradients at the end of the step, instead of at the beginning of the next one

# %%
guess_half = [1, 2]  # the numbers of those that halve the peak: change this list


# %%
def frees_at_end(model, optimizer, x, y, loss_fn):
    step(model, optimizer, x, y, loss_fn)
    optimizer.zero_grad()


adam = torch.optim.Adam
sgd = partial(torch.optim.SGD, lr=0.1)
half_x = x[: batch // 2].clone()
half_y = y[: batch // 2].clone()
peaks = {
    "as it was": small.peak,
    "1: half the batch": profile(mlp(sizes), adam, half_x, half_y, cross_entropy).peak,
    "2: SGD": profile(mlp(sizes), sgd, x, y, cross_entropy).peak,
    "3: both": profile(mlp(sizes), sgd, half_x, half_y, cross_entropy).peak,
    "4: gradients freed at the end": profile(
        mlp(sizes), adam, x, y, cross_entropy, frees_at_end
    ).peak,
}

# %% tags=["answer"]
study.reveal(
    guess_half,
    [3],
    study.bars(peaks, unit="B", target=small.peak / 2, note="half of it", title="Peak of a step"),
    words="Only both together come near half. What happens away from the peak does not matter at all: "
    "by the time the gradients were freed, the peak was long over.",
)

# %% [markdown]
# The numbers can be found without the meter. At the peak 4.2 MB are weights and Adam's numbers, and the other 12.1 MB grow with the batch. Half the batch saves 6.1 of them, SGD saves Adam's 2.8, and both together bring 16.3 MB down to 7.5.
#
# Two lessons for later. A technique that saves memory must save it *at the peak*. And since the peak is made of model states and activations, a technique that lowers only one of them soon meets the other.
#
# ### Two kinds of networks
#
# Which of the two is larger depends on the network, and this has shaped the history of the field. To see it we need large networks, larger than your memory. On the device `"meta"` a tensor has a shape and a type but no numbers, so the meter can watch a training step that no machine here could hold.
#
# First comes a convolutional network of the kind used for images: a ResNet with 101 layers, widened to 0.1 billion parameters, trained by SGD with momentum on 16 images of 416 × 416 pixels.

# %%
from minidist.models import TransformerLayer, gpt, next_token_loss, resnet
from minidist.study import predict

images = torch.empty(16, 3, 416, 416, device="meta")
classes = torch.empty(16, dtype=torch.long, device="meta")
momentum = partial(torch.optim.SGD, lr=0.1, momentum=0.9)
convolutional = profile(
    resnet(101, width=96, device="meta"), momentum, images, classes, cross_entropy
)
memory_timeline(convolutional, title="A ResNet of 0.1 billion parameters")

# %% [markdown]
# Nearly everything is activations, and after the step hardly anything is left. (The [`buffers`](term:buffer) of the legend are tensors that belong to the model and are not trained, here the running means of its batch norms. They are too thin to be seen.) ResNeSt-269, a deeper network of about the same number of parameters, is known for it: with this batch and these images it needs 28 GB at the peak, and 1.2 GB remain after the step. The 1.2 GB are easy to explain: 0.1 billion parameters times 12 bytes (4 for the weight, 4 for the gradient, 4 for the momentum). The other 27 are activations, together with the workspace of the convolution library.
#
# Now a transformer. We take *one* of the 96 layers of GPT-3, with two sequences of 2,048 words, each a vector of 12,288 numbers. What happens inside such a layer comes later in this lesson; for now it is enough that its matrices have 1.8 billion parameters. Such models are trained in **mixed precision**: the weights and gradients have 2 bytes each ([fp16](term:fp16)), which makes the matrix products fast. But Adam's numbers stay in 4 bytes, and so does a second copy of the weights, the [master copy](term:master-weights). The reason is that a step changes a weight by perhaps a ten-thousandth, and 2 bytes cannot tell 1.0000 from 1.0001; without the copy in 4 bytes, most steps would be lost to rounding. The lesson [Mixed precision](lesson:precision) shows this happening. The optimizer in the next cell is Adam with such a master copy, without the correction for the first few steps.


# %%
class MixedAdam(torch.optim.Optimizer):
    """Adam for weights in 2 bytes; it keeps three numbers of 4 bytes for each of them."""

    def __init__(self, parameters):
        super().__init__(parameters, {})

    @torch.no_grad()
    def step(self):
        for p in self.param_groups[0]["params"]:
            if p not in self.state:
                self.state[p] = {
                    "master": p.float(),
                    "mean": torch.zeros_like(p, dtype=torch.float32),
                    "square": torch.zeros_like(p, dtype=torch.float32),
                }
            state = self.state[p]
            gradient = p.grad.float()
            state["mean"].lerp_(gradient, 0.1)  # 0.9 of the old mean + 0.1 of the gradient
            state["square"].lerp_(gradient.square_(), 0.001)
            denominator = state["square"].sqrt().add_(1e-8)
            state["master"].addcdiv_(state["mean"], denominator, value=-1e-3)  # rate 1e-3
            p.copy_(state["master"])  # rounds to 2 bytes


# %%
def gpt3_layer(sequences, words=2048):
    """One training step of one layer of GPT-3, measured."""
    layer = TransformerLayer(  # vectors of 12,288 numbers, 96 heads
        12288, 96, dropout=0.1, attention="explicit", dtype=torch.float16, device="meta"
    )
    inputs = torch.empty(sequences, words, 12288, dtype=torch.float16, device="meta")
    return profile(layer, MixedAdam, inputs, None, lambda output, _: output.sum())


transformer = gpt3_layer(2)
memory_timeline(transformer, title="One layer of GPT-3")

# %% [markdown]
# Now the picture is reversed. The 1.8 billion parameters take 3.6 GB at 2 bytes each, and the optimizer's three numbers of 4 bytes take 21.7 GB. Gradients arrive faster than activations leave, so the peak has moved into the backward pass. Compare the two networks at their peaks; what is missing to 100 % are temporary buffers.


# %%
def parts(network):
    """Its row of the table."""
    at_peak = network.at_peak
    states = at_peak["parameters"] + at_peak["gradients"] + at_peak["optimizer states"]
    left = sum(network.timeline.at(network.time).values())
    return [
        network.peak / 1e9,
        f"{states / network.peak:.0%}",
        f"{at_peak['activations'] / network.peak:.0%}",
        left / 1e9,
    ]


study.table(
    [["ResNet", *parts(convolutional)], ["layer of GPT-3", *parts(transformer)]],
    ["", "peak, GB", "model states", "activations", "left after it, GB"],
    title="What the peak is made of",
)

# %% [markdown]
# Why does this matter? Model states are matrices, and matrices split well: give half of the columns to each of two cards, and each does half of the work ([Tensor parallel](lesson:tensor)). Activations of an image do not: at every convolution a pixel needs its neighbours, so the cut would have to be mended in each layer. A network whose memory is matrices can be spread over as many cards as you have. This is one reason why language models could grow a thousandfold within a few years and networks for images did not.
#
# ### Bytes per parameter
#
# So how much memory does a parameter cost, once all its companions are counted? Predict two numbers before you run the next cells: **bytes per parameter with Adam, in fp32 and in mixed precision.**

# %%
guess_bytes = {"fp32": 12, "mixed precision": 6}  # change these numbers


# %%
def stays(make_optimizer, dtype):
    """What is left after a step, in bytes per parameter: parameters, gradients, optimizer."""
    model = mlp([1024] * 9, dtype=dtype, device="meta")
    inputs = torch.empty(1, 1024, dtype=dtype, device="meta")
    measured = profile(model, make_optimizer, inputs, inputs.clone(), mse_loss)
    after = measured.timeline.at(measured.time)
    count = sum(p.numel() for p in model.parameters())
    kinds = ["parameters", "gradients", "optimizer states"]
    return [round(after[kind] / count, 2) for kind in kinds]


counted = {
    "plain SGD, fp32": stays(sgd, torch.float32),
    "SGD with momentum, fp32": stays(momentum, torch.float32),
    "Adam, fp32": stays(adam, torch.float32),
    "Adam, mixed precision": stays(MixedAdam, torch.float16),
}

# %% tags=["answer"]
study.reveal(
    guess_bytes,
    {
        "fp32": sum(counted["Adam, fp32"]),
        "mixed precision": sum(counted["Adam, mixed precision"]),
    },
    study.table(
        [[name, *numbers, sum(numbers)] for name, numbers in counted.items()],
        ["bytes per parameter", "parameters", "gradients", "optimizer", "all"],
        title="Model states, as the meter counts them",
    ),
)

# %% tags=["maintainer"]
pairs = {
    ("sgd", "fp32"): "plain SGD, fp32",
    ("momentum", "fp32"): "SGD with momentum, fp32",
    ("adam", "fp32"): "Adam, fp32",
    ("adam", "fp16"): "Adam, mixed precision",
}
for pair, name in pairs.items():
    assert counted[name] == list(predict.per_parameter(*pair).values())
assert predict.states(10**8, "momentum", "fp32").total == 1_200_000_000

# %% [markdown]
# ![Model states of one parameter in bytes. SGD with momentum in fp32: 4 parameter, 4 gradient, 4 momentum, 12 in all. With fp16 parameters and gradients: 2, 2, 4 for the master copy, 4 momentum, again 12. Adam in fp32: 4, 4, 4 and 4, 16 in all. With fp16: 2, 2, 4 for the master copy, 4 and 4, again 16.](../course/01_walls/figures/bytes_a_parameter.svg)
#
# **16 bytes with Adam, in either precision.** In fp32 they are 4 + 4 + 8. In mixed precision they are 2 + 2 + 12: what the weights and gradients save, the master copy takes back. SGD with momentum costs 12 bytes in both cases, 4 + 4 + 4 or 2 + 2 + 8. Half precision halves the activations and makes the products several times as fast, but it saves nothing on the model states.
#
# Remember the 16. With it you can do sums in your head for which people write programs: 1.5 billion parameters (GPT-2) need 24 GB, and the 175 billion of GPT-3 need 2.8 TB. It also answers the question at the top of the lesson. The last bar in the answer is what the authors of ZeRO, a method that you will build in a [later lesson](lesson:zero), could really train on such a card; the rest of the memory went into activations and buffers.

# %%
card = 32 * 10**9
bars = {
    "your guess": guess,
    "2 bytes each": card // 2,
    "16 bytes each": card // 16,
}

# %% tags=["answer"]
from minidist.study.literature import published

for row in published("zero"):
    if row["table_or_figure"] == "Table 2" and row["MP"] == 1 and row["stage"] == "baseline":
        if row["quantity"] == "measured_max_model_size":
            bars["trained (ZeRO, Table 2)"] = row["value"] * 10**9
study.reveal(
    guess,
    card // 16,
    study.bars(bars, title="Parameters on a card of 32 GB"),
    words="2 billion parameters, and then nothing else fits.",
)

# %% [markdown]
# ### What a transformer keeps
#
# Model states are easy to count. For activations we have to walk through a layer. Let a batch have *b* sequences of *s* words, each word a vector of *h* numbers.
#
# A transformer layer has two parts. In the first, [attention](term:attention), the words look at each other. Three matrices make three vectors of every word: a *query*, which says what the word looks for, a *key*, which says what it has to offer, and a *value*, which it hands over. The product of a query and a key is a [score](term:score). Softmax turns the scores of a word into weights that add up to 1, and the word gets the sum of all values with these weights. All this is done *a* times side by side, in *a* [heads](term:attention-head), each with its own part of the vectors. The second part, the [MLP](term:mlp), treats each word by itself: a matrix makes its vector four times as long, GELU (a smooth relative of ReLU) is applied, and another matrix makes it as short as before. Before each part stands a [layer norm](term:layer-norm), which scales every vector to the same spread, and behind it [dropout](term:dropout), which sets a tenth of all numbers to zero at random. What comes out is added to what went in, the two plus signs of the picture.
#
# ![One transformer layer from top to bottom: layer norm, the products for queries, keys and values, the scores of size a·s² per sequence, softmax, dropout, their use, the output product, dropout, then layer norm, the two products of the MLP with GELU between them, dropout. Beside every arrow stands what is kept for the backward, in multiples of sbh bytes.](../course/01_walls/figures/transformer_layer.svg)
#
# A tensor with a vector for each word of the batch has *sbh* numbers, and 2*sbh* bytes in half precision. What has each operation to keep? The derivative of a product of two tensors needs both of them. A matrix needs its input only, since the matrix itself is there anyway. Softmax can be differentiated from its output. Dropout needs to know which numbers it has dropped, a mask of one byte for each. Additions need nothing. With these rules count what the layer keeps, as [Korthikanti et al. 2023](paper:korthikanti2023) did:
#
# - **Attention: 11*sbh* + 5*as²b*.** The three matrices have a common input (2*sbh*). Queries and keys are kept for their product (4*sbh*). The matrix at the end (`linear` in the picture) keeps its input (2*sbh*), and the dropout behind it a mask (*sbh*). For each head the scores are a table of every word against every word, *as²b* numbers in all. The softmax keeps its output (2*as²b*), and the dropout behind it a mask (*as²b*). Then the table is multiplied with the values, so both are kept (2*as²b* and 2*sbh*).
# - **MLP: 19*sbh*.** The first matrix keeps its input (2*sbh*). GELU keeps its input and the second matrix its own, both four times as wide (8*sbh* each), and dropout a mask (*sbh*).
# - **Two layer norms: 4*sbh*.** They keep their inputs.
#
# Together that makes
#
# $$\text{bytes of a layer} = sbh\left(34 + 5\,\frac{as}{h}\right).$$
#
# The first term grows with the number of words. The second grows with its *square*, since every word is compared with every other. They are equal at $s = \frac{34h}{5a}$. GPT-3 has *h* = 12,288 and *a* = 96, so that is at 870 words, and at its 2,048 words the tables are more than twice everything else. Let the meter check it with sequences of growing length.


# %%
def formula(s, b=1, h=12288, a=96, table=5):
    """Bytes of activations of one layer; table=0 leaves out the tables of the heads."""
    return 34 * s * b * h + table * a * s * s * b


lengths = [512, 1024, 2048, 3072, 4096]
points = []
for length in lengths:
    measured_layer = gpt3_layer(1, length)
    end_of_forward = measured_layer.phases[0][2]
    points.append(measured_layer.timeline.at(end_of_forward)["activations"])

fine = list(range(256, 4097, 256))
study.curves(
    {
        "34sbh + 5as²b": (fine, [formula(s) for s in fine]),
        "34sbh alone": (fine, [formula(s, table=0) for s in fine]),
    },
    points={"counted": (lengths, points)},
    yunit="B",
    xlabel="words in a sequence, s",
    ylabel="bytes of activations",
    title="One sequence in one layer of GPT-3",
)

# %% tags=["maintainer"]
assert all(abs(point / formula(s) - 1) < 0.002 for s, point in zip(lengths, points))

# %% [markdown]
# This layer computes attention in the straightforward way and stores its tables (that is what `attention="explicit"` asked for). Modern kernels never store them ([Operators and graphs](lesson:operators) builds one), and then the first term is all there is. Where the course counts activations, it says which of the two is meant.
#
# ### Units: find the error
#
# A GB is 10⁹ bytes and a GiB is 2³⁰, which is 7 % more. Makers of cards and authors of papers use both, and like to call both GB. Here is a sum that has been published for a model with 13 billion parameters (40 layers, *b* = 1, *s* = 1,024, *h* = 5,120, *a* = 40): "208 GB of model states and 14.5 GB of activations make 222.5 GB." What is wrong with it? `predict.listing` writes sizes in both units. Look at both columns before you read on.

# %%
states_13b = 16 * 13 * 10**9
activations_13b = 40 * formula(1024, 1, 5120, 40)
predict.listing(
    {"model states": states_13b, "activations": activations_13b},
    title="13 billion parameters, in both units",
)

# %% [markdown]
# The 208 are GB, but the 14.5 are GiB. The sum is 223.5 GB or 208.2 GiB; 222.5 is neither. The slip is small here, but with a card of 80 GiB and a plan in GB it can decide whether a run starts. In this course GB is always 10⁹, bytes are integers, and every size has its unit.
#
# ### Temporary buffers
#
# The gradients of a model lie in many tensors, and to send or to add up many small tensors one by one is slow, as you will see in later lessons. Libraries therefore copy all gradients into one flat buffer before they send them or compute their norm. A buffer in fp32 takes 4 bytes per parameter, on top of everything else. The authors of ZeRO add it all up for GPT-2 with its 1.5 billion parameters and 32 sequences of 1,024 words. (Their estimate of the activations, 24*sbh* a layer, is rougher than ours, and lower.) The functions of `predict` in the next cell are formulas that you know by now: 16 bytes per parameter, 24*sbh* per layer, and 4 bytes per parameter.

# %%
gpt2 = predict.Transformer(layers=48, hidden=1600, heads=16, vocab=50257, context=1024)
predict.listing(
    {
        "model states": predict.states(15 * 10**8).total,
        "activations, 24sbh a layer": predict.rough(gpt2, 32),
        "gradients in one buffer": predict.fused_gradients(15 * 10**8),
    },
    title="Training GPT-2, for a card of 32 GB",
)

# %% [markdown]
# Each of the three alone fills a good part of the card, or overflows it. There is a cure for each, and you will build all three: [ZeRO](lesson:zero) shares out the first, [recomputation](lesson:remat) throws the second away and computes it again, and [buckets](lesson:buckets) of a fixed size replace the third.
#
# ### Out of memory, with more than 3 GiB free
#
# The fourth part of memory is the strangest. Asking the driver for memory is slow, so PyTorch asks for large **segments** and cuts tensors out of them; what a tensor gives back is kept for the next. This has a price: a tensor needs its bytes *in one piece*. Think of eight places that are filled from left to right, with an activation, a gradient, an activation, a gradient and so on. When the four activations go, half of the places are free, but no two of them lie side by side. A tensor that needs two places does not fit.
#
# We can replay it without a GPU. The package records a training step of 1.2 billion parameters, with all its allocations in order, and plays it back to a simulated allocator that follows PyTorch's rules, on a small card of 8 GiB, of which the driver takes a quarter of a GiB for itself. Parameters and gradients have 2 bytes each, 2.25 GiB for either. At the end the step asks for one buffer for all gradients, another 2.25 GiB.

# %%
from minidist.study import allocator

recording = allocator.backward_in_pieces()
small_card = allocator.Allocator(allocator.CARD)
try:
    allocator.replay(recording, small_card)
except allocator.OutOfMemory as error:
    print(error)
allocator.blocks(small_card, title="The card at the moment when it gives up")

# %% [markdown]
# The rows are the memory in the order of its addresses, and black lines separate the segments. Blue are the parameters ("there before"), orange the gradients ("long-lived"). You can see what happened: during the backward pass gradients, which stay, were put between activations, which went away. Of the 3.25 GiB that are free, 1.23 GiB lie in 99 holes, the largest of them 129 MiB. The other 2.01 GiB, at the end, are still with the driver. They count as one piece, and even that is too small for the buffer. This is [fragmentation](term:fragmentation). It happens on large cards as well: the authors of ZeRO report extreme cases in which a run was out of memory with more than 30 % of it free.
#
# There are three ways out. PyTorch can be told to make segments that grow (`PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True`), so that holes at their ends join up. The large buffer can be allocated first, before anything else is in its way. Or the program can ask for smaller pieces.


# %%
def outcome(recording, **settings):
    try:
        allocator.replay(recording, allocator.Allocator(allocator.CARD, **settings))
    except allocator.OutOfMemory as error:
        return f"out of memory, {error.free / error.capacity:.0%} free"
    return "fits"


rows = [
    ["as it was", outcome(recording)],
    ["segments that grow", outcome(recording, expandable=True)],
    ["the buffer allocated first", outcome(allocator.backward_in_pieces(first=True))],
    ["pieces of 200 MiB", outcome(allocator.backward_in_pieces(bucket=200 * 2**20))],
]
study.table(rows, ["", "1.2 billion parameters on 8 GiB"])

# %% [markdown]
# ### How large a model fits?
#
# Put it together: 16 bytes for every parameter and the activations of one sequence of 2,048 words. GPT-3 and its smaller relatives have a simple shape: with *L* layers, a word is a vector of about 128*L* numbers and there are *L* heads. So we can draw one line through the whole family, from 8 layers to the 96 of GPT-3 itself.
#
# **How many layers can a model of this family have and still fit on a card of 80 GB?** GPT-3 has 96.

# %%
guess_layers = 60  # change this number


# %%
def needs(layers):
    """Parameters of the family's model with that many layers, its model states, and all it needs."""
    model = predict.Transformer(layers, 128 * layers, layers, vocab=50257, context=2048)
    psi = predict.parameters(model)
    activations = layers * formula(2048, 1, 128 * layers, layers)
    return psi, 16 * psi, 16 * psi + activations


family = [needs(layers) for layers in range(8, 97, 4)]
billions = [psi / 1e9 for psi, _, _ in family]
lines = {
    "model states": (billions, [states for _, states, _ in family]),
    "with activations": (billions, [total for _, _, total in family]),
}
for size in (32, 80, 141):
    lines[f"a card of {size} GB"] = ([billions[0], billions[-1]], [size * 1e9] * 2)
picture = study.curves(
    lines,
    logx=True,
    logy=True,
    yunit="B",
    xlabel="parameters, billion",
    ylabel="bytes to train",
    title="GPT-3's family and one card",
)
rows = []
for size in (32, 80, 141):
    fitting = max(layers for layers in range(1, 97) if needs(layers)[2] <= size * 10**9)
    rows.append([f"{size} GB", fitting, needs(fitting)[0] / 1e9])

# %% tags=["answer"]
crossings = study.table(rows, ["a card of", "layers that fit", "billion parameters"])
study.reveal(guess_layers, rows[1][1], [picture, crossings], unit="layers")

# %% [markdown]
# With 26 layers the vectors have 3,328 numbers and the model 3.6 billion parameters. Their states take 58 GB, and the activations of one sequence another 20. The model states of GPT-3 alone would fill 35 cards of 80 GB. That is the **memory wall**.
#
# The sliders show what is needed for four models, and what the techniques of later lessons do about it. A model can be cut over several ranks by its columns (*tensor-parallel ranks*) and by its layers (*stages*). Both cuts divide parameters, gradients and optimizer states alike. At least one published calculator forgets the gradients; GPT-3's, at 2 bytes each, are 350 GB in one piece, and 5.5 GB on each of 64 cards. [ZeRO](lesson:zero) shares out the model states among *data-parallel ranks*, which have a batch of their own each. *Recomputation* throws activations away and computes them again. Begin as you see it, with GPT-3's relative of 6.7 billion parameters on a single card: 138 GB. Then try to fit GPT-3 itself, which needs 3,070 GB on one card and 52 GB on each of 8 · 8 = 64.

# %%
study.memory_calculator(
    ["gpt2-1.5b", "gpt3-6.7b", "gpt3-13b", "gpt3-175b"],
    data=(1, 8),
    tensor=(1, 2, 8),
    pipeline=(1, 2, 8),
    start={
        "model": "gpt3-6.7b",
        "data": 1,
        "tensor": 1,
        "pipeline": 1,
        "zero": 0,
        "recompute": "none",
    },
    title="Memory of one rank, beside a card of 80 GB",
)

# %% [markdown]
# ## The compute wall
#
# Suppose memory were free. How long would training take?
#
# We count [FLOPs](term:flop), additions and multiplications of numbers, and [tokens](term:token), the words or pieces of words that the model reads. In the forward pass each weight is multiplied with a number of every token, and the product is added to a sum: 2 FLOPs per weight and token. The backward pass makes two products for each one of the forward, one for the gradient of the weights and one for the gradient of what came in, which makes another 4 FLOPs. So training Ψ parameters on *T* tokens takes
#
# $$6\,\Psi\,T \text{ FLOPs}.$$
#
# The rule comes from [Kaplan et al. 2020](paper:kaplan2020). Let us see whether four models of different shapes obey it.


# %%
def flops_of(layers, hidden, heads, tokens=1024):
    """Parameters of a GPT, and the FLOPs of a step on one sequence."""
    model = gpt(layers, hidden, heads, 50257, tokens, device="meta")
    words = torch.empty(1, tokens, dtype=torch.long, device="meta")
    # forward and backward, without an optimizer; the loss is that of guessing each next token
    work = measure(lambda: next_token_loss(model(words), words).backward())
    return sum(p.numel() for p in model.parameters()), work.flops


models = [flops_of(4, 1024, 16), flops_of(12, 768, 12), flops_of(24, 1024, 16)]
models.append(flops_of(24, 2048, 16))
billions = [psi / 1e9 for psi, _ in models]
study.curves(
    {"6ΨT": (billions, [6 * psi * 1024 / 1e12 for psi, _ in models])},
    points={"counted": (billions, [flops / 1e12 for _, flops in models])},
    xlabel="parameters Ψ, billion",
    ylabel="TFLOP of a step of 1,024 tokens",
    title="Four GPTs and the rule 6ΨT",
)

# %% tags=["maintainer"]
assert all(1.08 < flops / (6 * psi * 1024) < 1.18 for psi, flops in models)

# %% [markdown]
# Nearly. The counted points lie 8 to 17 % above the line, and most of that is attention, which works without parameters. In each layer the query of a token is multiplied with *s* keys, and the weights that softmax makes of the scores with *s* values, 2*sh* FLOPs each, and with the backward pass that is 12*sh* per layer and token. For the third model (24 layers, *h* = 1,024, *s* = 1,024) it makes 0.30 billion FLOPs per token, beside 6Ψ = 2.1 billion.
#
# GPT-3 read 300 billion tokens. The A100, which came out in the same year, can do 312·10¹² FLOPs per second in half precision if everything goes perfectly, which it never does. The fraction that a run really gets is its [MFU](term:mfu), *model FLOPs utilization*: the FLOPs that the model needs, divided by those that the cards could have done in that time. Good runs reach 40 to 50 %.
#
# **How many years would one A100 take to train GPT-3, at an MFU of 45 %?**

# %%
guess_years = 20  # change this number

# %%
work = 6 * 174_600_000_000 * 300 * 10**9  # FLOPs
peak = 312e12  # FLOP/s of an A100 in half precision, from its data sheet
year = 365.25 * 24 * 3600
years = {
    "MFU 100 %": round(work / peak / year),
    "MFU 45 %": round(work / (0.45 * peak) / year),
}

# %% tags=["answer"]
study.reveal(
    guess_years,
    years["MFU 45 %"],
    study.bars(years, unit="years", title="GPT-3 on one A100"),
    unit="years",
)


# %% tags=["maintainer"]
def draw_runs(every_run, mfu):
    cards_used = {row["model"]: row["gpus"] for row in every_run if row["gpus"]}
    rows = []
    for row in every_run:
        name = row["model"]
        if row["quantity"] != "gpu_hours":
            continue
        if not name.startswith(("LLaMA", "OPT", "BLOOM", "Llama 2 7")):
            continue
        hours = row["value"]
        tokens = row["tokens"]
        psi = row["params"] or int(name[:-1].replace("-", " ").split()[-1]) * 10**9
        utilization = f"{mfu(psi, tokens, hours):.0%}" if tokens else None
        trillion = tokens / 1e12 if tokens else None
        days = None
        if name in cards_used:
            days = f"{hours / cards_used[name] / 24:.0f} on {cards_used[name]:,}"
        rows.append([name, psi / 1e9, trillion, hours, utilization, round(hours / 8766), days])
    columns = ["run", "Ψ, billion", "tokens, trillion", "GPU-hours", "MFU", "years of one GPU"]
    columns.append("days on its GPUs")
    return study.table(rows, columns, title="Training runs on A100 cards")


def draw_utilization(every_run):
    used = {}
    for row in every_run:
        if row["quantity"] in ("MFU", "HFU"):
            used[f"{row['model']}, {row['quantity']}"] = row["value"]
    return study.bars(used, unit="%", title="Utilization, as the authors of PaLM report it")


# %% [markdown]
# That is the **compute wall**. The only way over it is many cards at once. Let us look at what published runs cost, in hours of one A100, and compute their MFU. LLaMA-65B, for example, has 65.2 billion parameters and read 1.4 trillion tokens: it needed 6 · 65.2·10⁹ · 1.4·10¹² = 5.5·10²³ FLOPs. In the 1,022,362 hours that it took, the cards could have done 1,022,362 · 3,600 · 312·10¹² = 11.5·10²³. That is an MFU of 48 %. The figures come with the package; `published` returns them, each with its source. Where a run's authors do not give a number, the table has a dash.

# %%
from minidist.study.literature import published


def mfu(psi, tokens, gpu_hours):
    return 6 * psi * tokens / (gpu_hours * 3600 * peak)


every_run = published("training_runs")
draw_runs(every_run, mfu)

# %% [markdown]
# You will meet a second word, [HFU](term:hfu), *hardware FLOPs utilization*. To save memory a run may compute its activations twice. The hardware then executes more than the model needs, so its HFU is higher than its MFU.
#
# ![Two bars, each all that the hardware could do in a step. Without recomputation the model's FLOPs are a part of the bar, and MFU and HFU are the same. With full recomputation the forward runs twice: the FLOPs that are computed again count for HFU and not for MFU.](../course/01_walls/figures/utilization.svg)
#
# If you compare two runs, compare their MFU: it is the one that says how fast the training gets on. The authors of [PaLM](paper:chowdhery2023), who coined the terms, report both for their own run, and only the MFU for other people's.

# %%
draw_utilization(every_run)

# %% [markdown]
# This wall can be attacked on three levels. At the level of **operators**, you run fewer and larger ones, nearer to the data ([Operators and graphs](lesson:operators)). At the level of the *graph*, the same work is put into a better order, fused, and overlapped with messages ([Buckets and overlap](lesson:buckets)). At the level of the *task*, you decide which work goes to which card, and how much memory to trade for how much time: that is most of this course.
#
# ## Many cards
#
# Both walls call for the same thing: many cards. The simplest way is this. Each of four [ranks](term:rank), copies of the program, has a copy of the network and a quarter of the batch. Which part of a rank's memory will fall? Decide first.

# %%
guess_falls = "both"  # or "activations", "model states", "neither"

# %% [markdown]
# The package runs such programs inside the notebook. `World(4)` calls a function four times, each time with a communicator `comm` that knows its number, `comm.rank`. How ranks talk to each other is the subject of the [next lesson](lesson:messages); here they need not.

# %%
from minidist.comm import World, launch


def my_peak(comm, x, y):
    """The memory of a step on this rank's share of the batch, at its peak."""
    share = slice(comm.rank, None, comm.size)  # every n-th sample, from sample `rank` on
    found = profile(mlp(sizes), adam, x[share].clone(), y[share].clone(), cross_entropy)
    states = found.at_peak["parameters"] + found.at_peak["optimizer states"]
    return states, found.at_peak["activations"], found.peak


rows = []
for n in (1, 2, 4):
    ranks = World(n).run(my_peak, x, y)
    rows.append([f"{n} rank{'s' * (n > 1)}", *ranks[0]])

# %% tags=["answer"]
study.reveal(
    guess_falls,
    "activations",
    study.table(
        rows,
        ["bytes of rank 0", "weights and optimizer", "activations", "peak"],
        title="Each rank has a copy of the network and a share of the batch",
    ),
    words="The activations fall with n. The model states do not: a copy is a copy.",
)

# %% [markdown]
# So copies get us over the compute wall, since each card does a quarter of the work, but not over the memory wall. What to do about the model states is a question that has to wait until [ZeRO](lesson:zero).
#
# The same function also runs in four real processes, which `launch` starts, and measures the same bytes. (Rank 0 has a little more, because four do not divide 1,437: it has 360 samples, the others 359.)

# %%
in_processes = launch(my_peak, 4, x, y)
study.table(
    [[f"rank {rank}", *found] for rank, found in enumerate(in_processes)],
    ["bytes", "weights and optimizer", "activations", "peak"],
    title="Four processes",
)

# %% tags=["maintainer"]
assert list(in_processes) == list(World(4).run(my_peak, x, y))

# %% [markdown]
# ## The library's files
#
# The meter of this lesson is [minidist/study/meter.py](file:minidist/study/meter.py); it sits below autograd, at the point where PyTorch looks up the code for each operator, so forward, backward and optimizer all pass it. The simulated card is [minidist/study/allocator.py](file:minidist/study/allocator.py), whose first lines state PyTorch's rules. All formulas are in [minidist/study/predict.py](file:minidist/study/predict.py), which also knows what is still to come: *n* ranks and all ways to split a model over them. Its table of model states is short enough to read here:

# %%
study.source(predict.states, docstring=False)

# %% [markdown]
# `per` holds the bytes of a precision: in fp16 2 for a parameter, 2 for its gradient, 4 for the master copy. `moments` begins as a number of numbers, 2 for Adam, and becomes their bytes. The rest of the last three lines, with `zero`, `data` and `rank`, belongs to a later lesson; with their defaults every `part` is the whole. The largest model for a card is found by doubling until it no longer fits, and then by halving the interval. `predict.largest(32 * 10**9)` is 2,000,000,000, the answer to the first question of this lesson.

# %%
study.source(predict.largest, docstring=False)

# %% tags=["maintainer"]
assert predict.largest(32 * 10**9) == 2 * 10**9
calculator = study.memory_calculator(
    ["gpt3-6.7b", "gpt3-175b"], data=(1,), tensor=(1, 8), pipeline=(1, 8)
)
for model, ranks, want in [("gpt3-6.7b", 1, 138), ("gpt3-175b", 1, 3070), ("gpt3-175b", 8, 52)]:
    grid = {"data": 1, "tensor": ranks, "pipeline": ranks, "zero": 0, "recompute": "none"}
    found = sum(calculator.at(model=model, **grid).values()) / 1e9
    assert abs(found / want - 1) < 0.005, (model, found)

# %% [markdown]
# ## Takeaways
#
# - A step's memory is model states, activations, temporary buffers and fragmentation. It peaks where the forward ends, or soon after.
# - Only the peak counts, and both halves of it: a technique that lowers only states or only activations soon meets the other.
# - With Adam a parameter costs 16 bytes, in fp32 and in mixed precision. A card of 32 GB holds 2 billion parameters, and then nothing else.
# - A convolutional network is nearly all activations. A transformer is matrices, and matrices can be split.
# - Memory must be free *in one piece*.
# - Training takes 6Ψ*T* FLOPs, which for a large language model means years to centuries on one card. An MFU of 40 to 50 % is good.
# - Copies on many cards divide the work, but not the model states.
#
# ## Further reading
#
# - paper:rajbhandari2020 Section 3: where did all the memory go?
# - paper:korthikanti2023 Section 4 counts what a transformer layer keeps.
# - paper:chowdhery2023 MFU and HFU: appendix B.
# - paper:kaplan2020 The rule 6Ψ*T*: section 2.1.
# - paper:touvron2023 What a family of models cost.
# - paper:zhang2020 The network whose activations fill a card.
