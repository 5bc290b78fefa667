"""Programs that show how PCCL is used. `demo/` is the one that `make demo` runs; `quickstart.py` is
the README's."""
