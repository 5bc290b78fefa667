"""Processes that tests, benchmarks and the demo start (`child.py`). It is not part of the wheel."""
