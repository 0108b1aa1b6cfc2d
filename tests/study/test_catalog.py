"""Models by name and by number, clusters by a word and by a file."""

import pytest
import torch

from minidist.comm.cluster import HBM, Cluster
from minidist.study.catalog import MODELS, cluster_of, model_of
from minidist.study.predict import Transformer

OURS = """
like = "h100"
name = "ours"
nodes = 16
devices = 4

[device]
name = "H100 NVL"
memory = 94
bandwidth = 3.9
tflops = 835
efficiency = 0.6

[links.nic]
gigabytes = 25
microseconds = 20
share = 2

[host]
memory = 1000
"""


@pytest.fixture
def file(tmp_path):
    def write(text):
        path = tmp_path / "ours.toml"
        path.write_text(text)
        return str(path)

    return write


def test_a_model_by_its_numbers():
    numbers = dict(layers=2, hidden=64, heads=4, vocab=100, context=32, kv_heads=2, ffn=None)
    assert model_of(**numbers) == Transformer(2, 64, 4, 100, 32, kv_heads=2)
    assert model_of("gpt3-13b") is not None and model_of("gpt3-13b") == MODELS["gpt3-13b"]
    assert model_of("gpt3-13b", context=8192).context == 8192
    with pytest.raises(
        ValueError, match="needs layers, hidden, heads, vocab, context: vocab missing"
    ):
        model_of(layers=2, hidden=64, heads=4, context=32)
    with pytest.raises(ValueError, match="'gpt5'"):
        model_of("gpt5")


def test_a_cluster_in_a_file(file):
    found = cluster_of(file(OURS))
    like = Cluster.dgx_h100()
    assert (found.name, found.nodes, found.devices, found.size) == ("ours", 16, 4, 64)
    device = found.device
    assert (device.name, device.memory, device.bandwidth) == ("H100 NVL", int(94 * HBM), 3.9e12)
    assert device.peak(torch.bfloat16) == device.peak(torch.float16) == 835e12
    assert device.peak(torch.float32) == like.device.peak(torch.float32)
    assert device.efficiency == 0.6 and device.launch == like.device.launch
    card = found.links["nic"]
    assert card.alpha == pytest.approx(20e-6) and (card.beta, card.share) == (1 / 25e9, 2)
    assert found.links["nvlink"] == like.links["nvlink"] and found.host.memory == 10**12


def test_a_file_that_says_little(file):
    found = cluster_of(file('like = "a100"'))
    assert found == Cluster.dgx_a100().__class__(**{**vars(cluster_of("a100:1x8")), "name": "ours"})


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("like =", "cannot be read"),
        ("nodes = 2", "a cluster is v100, a100"),
        ('like = "h100"\nnode = 2', "a cluster has .*nodes.*, not 'node'"),
        ('like = "h100"\n[device]\nflops = 2', "device has .*tflops, not 'flops'"),
        ('like = "h100"\n[links.nic]\nbeta = 2', "links has .*share, not 'beta'"),
        ('like = "h100"\n[links.net]\nshare = 2', "the levels are .*, not 'net'"),
        ('like = "h100"\n[device]\nmemory = "94"', "memory is a number above 0, not '94'"),
        ('like = "h100"\n[links.nic]\ngigabytes = 0', "gigabytes is a number above 0, not 0"),
        ('like = "h100"\nnodes = true', "nodes is a number above 0, not True"),
        ('like = "h100"\n[links.device]\nshare = 1', "no link 'device', so it needs gigabytes"),
        ('like = "h100"\ndevices = 9', "1 to 8 devices a node, not 9"),
        ('like = "h100"\n[links.nic]\nshare = 3', "3 ranks cannot share a wire"),
    ],
)
def test_a_file_that_is_wrong(file, text, words):
    with pytest.raises(ValueError, match=words):
        cluster_of(file(text))


def test_no_file():
    with pytest.raises(ValueError, match=r"the cluster in nowhere\.toml cannot be read"):
        cluster_of("nowhere.toml")
