"""predict_pipedream: an array with many guesses"""

import torch

versions = stale = stash_bytes = vertical_bytes = two_bytes = updates = torch.arange(100.0)
