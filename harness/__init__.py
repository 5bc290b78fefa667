"""Processes that tests, benchmarks and the demo start (`child.py`); not part of the wheel."""
