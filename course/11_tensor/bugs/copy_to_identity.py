"""copy_to: nothing backward either"""

def copy_to(x, comm):
    return x.view_as(x)
