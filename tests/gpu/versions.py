"""What the first hour ran on: versions and devices, a line each. Fails where a part that the rest needs is missing.

python -m tests.gpu.versions --backend nccl
"""

import argparse
import platform
import sys
from importlib.util import find_spec

import torch
import torch.distributed as dist


def versions():
    """{what: which}, of what is there."""
    found = {
        "Python": platform.python_version(),
        "system": platform.platform(),
        "PyTorch": torch.__version__,
        "CUDA": torch.version.cuda or "none: PyTorch is built without it",
    }
    if torch.cuda.is_available():
        found |= {
            "GPUs": str(torch.cuda.device_count()),
            "driver": driver(),
            "cuDNN": str(torch.backends.cudnn.version()),
        }
        for i in range(torch.cuda.device_count()):
            about = torch.cuda.get_device_properties(i)
            found[f"GPU {i}"] = (
                f"{about.name}, {about.major}.{about.minor}, {about.total_memory / 2**30:.0f} GiB"
            )
    if dist.is_nccl_available():
        found["NCCL"] = ".".join(map(str, torch.cuda.nccl.version()))
    if find_spec("triton"):
        import triton

        found["Triton"] = triton.__version__
    return found


def driver():
    """The version of NVIDIA's driver, as it says it itself."""
    try:
        with open("/proc/driver/nvidia/version") as file:
            return next((word for word in file.readline().split() if word[0].isdigit()), "unknown")
    except OSError:
        return "unknown"


def works(backend):
    """A device that multiplies rightly, the backend, and over NCCL what compiles kernels; in words what was seen."""
    device = "cuda" if backend == "nccl" else "cpu"
    a = torch.arange(64.0 * 64, dtype=torch.float64).view(64, 64)
    assert torch.equal((a.to(device) @ a.to(device)).cpu(), a @ a), (
        f"a product is wrong on {device}"
    )
    assert dist.is_backend_available(backend), f"PyTorch is built without {backend}"
    assert backend != "nccl" or find_spec("triton"), (
        "Triton is not installed: PyTorch's builds for CUDA bring it along"
    )
    return f"{device} multiplies, PyTorch has {backend}"


def main():
    flags = argparse.ArgumentParser(description="Versions and devices.")
    flags.add_argument("--backend", help="that must work; none: only the versions")
    backend = flags.parse_args().backend
    for what, which in versions().items():
        print(f"version: {what}: {which}")
    sys.stdout.flush()
    if backend:
        print("seen:", works(backend))


if __name__ == "__main__":
    main()
