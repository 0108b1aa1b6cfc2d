"""Training beyond the plain step, on one device and on many: precision, memory for compute, fused operators,
optimizers and large batches, compressed gradients, local SGD, checkpoints.
"""
