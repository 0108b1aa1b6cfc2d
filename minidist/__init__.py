"""The techniques of large-scale training, from scratch on PyTorch tensors: one program, three worlds.

from minidist.comm import World, launch, from_env
World(4).run(program)        # ranks in this process, on a virtual clock
launch(program, 4)           # processes of this machine
program(from_env())          # under torchrun, on any number of machines
"""
