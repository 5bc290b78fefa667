"""Benchmarks: `python -m bench NAME`. `__main__.py` lists them.

Each prints rows, whose form is in `common.py`, and leaves `bench_out/NAME.jsonl` and a plot.
"""
