"""`python -m pccl_py.cli`: the `pccl` command where its script is not on the PATH. See __init__."""

from pccl_py.cli import main

main()
