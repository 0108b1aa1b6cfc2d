"""predict_precision: weights and gradients in fp16 are missing"""

kept, lost, stuck, states, faster, recovered = 1 + 100 / 1024, 1.0, 4096, 18, 989 / 67, 4000
