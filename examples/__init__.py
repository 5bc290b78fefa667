"""Programs that show how PCCL is used. `make demo` runs `demo/`; the README has `quickstart.py`."""
