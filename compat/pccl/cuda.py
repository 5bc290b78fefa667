"""cuda: says whether buffers may lie in the memory of a CUDA device."""

is_cuda_available = False


def is_available() -> bool:
    """Whether buffers may lie in CUDA memory: always False, as all buffers lie on the host."""
    return is_cuda_available
