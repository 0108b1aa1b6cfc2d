"""autocast: torch has an autocast"""

class Autocast(TorchFunctionMode):
    def __init__(self, dtype, white, black, gray):
        super().__init__()
        self.dtype = dtype

    def __torch_function__(self, func, types, args=(), kwargs=None):
        with torch.autocast("cpu", self.dtype):
            return func(*args, **(kwargs or {}))
