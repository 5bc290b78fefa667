"""cuda: says whether buffers may lie in the memory of a CUDA device."""

is_cuda_available = False


def is_available() -> bool:
    """Whether they may: never here, as all buffers lie on the host."""
    return is_cuda_available
