"""flatten: PyTorch's parameters_to_vector: a copy"""

def flatten(params):
    flat = nn.utils.parameters_to_vector(params).detach()
    return flat, torch.zeros_like(flat)
