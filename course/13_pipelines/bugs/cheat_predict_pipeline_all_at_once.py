"""predict_pipeline: an array with many guesses"""

import torch

bubble = gpipe_keeps = keeps = interleaved = enough = idle = torch.arange(100.0)
