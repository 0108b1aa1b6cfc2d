"""Eight bits and TF32 on the chip beside their emulation on a CPU.

python -m tests.gpu.eight_bits      # on a CPU: PyTorch's kernels for CPUs beside the emulation, where it has some
"""

import torch

from minidist.train.amp import TIES, tf32, tf32_products
from minidist.train.fp8 import GRAINS, Present, has_eight_bits, linear, on_tensor_cores, product

SIZES = ((64, 128, 48), (37, 200, 50), (256, 512, 384))  # tokens, inputs, outputs
# A sum in a tensor core's registers keeps fewer bits than fp32, about 14 (DeepSeek-V3, section 3.3.2), and results with
# more than one scale come in bf16.
BOUND = 2.0**-7


def operands(tokens, inputs, outputs):
    random = torch.Generator().manual_seed(tokens)
    draw = lambda *shape: torch.randn(*shape, generator=random)
    return draw(tokens, inputs), draw(outputs, inputs) / inputs**0.5, draw(tokens, outputs) * 1e-6


def gradients(device, grain, sizes):
    """y, dx, dW of one layer in eight bits, on the CPU."""
    x, w, dy = (t.to(device) for t in operands(*sizes))
    x, w = x.requires_grad_(), w.requires_grad_()
    y = linear(x, w, scaling=Present(grain))
    y.backward(dy)
    return [t.detach().cpu() for t in (y, x.grad, w.grad)]


def apart(found, want):
    return ((found - want).norm() / want.norm()).item()


def layers(device):
    """The largest difference of a layer and its gradients, by grain, on a device that has eight bits."""
    worst = {}
    for grain in GRAINS:
        pairs = [
            pair
            for sizes in SIZES
            for pair in zip(
                gradients(device, grain, sizes), gradients("cpu", grain, sizes), strict=True
            )
        ]
        worst[grain] = max(apart(found, want) for found, want in pairs)
        assert worst[grain] < BOUND, (grain, worst)
    return worst


def kernels_of_a_cpu():
    """The same of products alone, by PyTorch's kernel for CPUs, which has no blocks."""
    worst = {}
    for grain in ("tensor", "row"):
        differences = []
        for sizes in SIZES:
            x, w, _ = operands(*sizes)
            a, b = Present(grain)(x, "x"), Present(grain)(w, "weight")
            found = on_tensor_cores(a, b, torch.float32)
            differences.append(apart(found, product(a, b, torch.float32)))
        worst[grain] = max(differences)
        assert worst[grain] < BOUND, (grain, worst)
    return worst


def rounding_of_tf32():
    """How the GPU's products round fp32: a product with ones on the diagonal gives what it has read."""
    bits = torch.arange(0, 2**14, 7, dtype=torch.int32) + (127 << 23)
    x = bits[:2304].view(torch.float32).reshape(48, 48)
    x = torch.cat([x, -x])
    with tf32_products():
        read = (x.cuda() @ torch.eye(48, device="cuda")).cpu()
    fits = [ties for ties in TIES if torch.equal(read, tf32(x, ties))]
    assert fits, "products of fp32 are rounded neither as TF32 to the nearest nor towards zero"
    with tf32_products(False):
        assert torch.equal((x.cuda() @ torch.eye(48, device="cuda")).cpu(), x)
    return fits[0]


def words(worst):
    return ", ".join(f"{grain} {value:.1e}" for grain, value in worst.items())


def main():
    if not torch.cuda.is_available():
        print(
            f"seen: PyTorch's kernels on a CPU differ from the emulation by {words(kernels_of_a_cpu())}"
        )
        return
    name = torch.cuda.get_device_name()
    if torch.cuda.get_device_capability() >= (8, 0):
        print(f"seen: {name} rounds fp32 to TF32 in products, ties: {rounding_of_tf32()}")
    if has_eight_bits(torch.device("cuda")):
        print(f"seen: {name} differs from the emulation in 8 bits by {words(layers('cuda'))}")
    else:
        print(f"seen: {name} has no products in 8 bits")


if __name__ == "__main__":
    main()
