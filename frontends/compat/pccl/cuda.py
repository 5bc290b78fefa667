"""cuda: says whether buffers may lie in the memory of a CUDA device."""

is_cuda_available = False
