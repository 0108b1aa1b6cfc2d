"""copy_to: the library's f"""

def copy_to(x, comm):
    from minidist.parallel import tensor

    return tensor.copy_to(x, comm)
