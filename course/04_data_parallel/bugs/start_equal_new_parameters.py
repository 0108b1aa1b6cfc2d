"""start_equal: the module gets new parameters: ties and optimizers are lost"""

def start_equal(comm, module):
    for layer in module.modules():
        for name, p in list(layer.named_parameters(recurse=False)):
            setattr(layer, name, nn.Parameter(broadcast_(comm, p.detach().clone()), p.requires_grad))
    broadcast_(comm, list(module.buffers()))
