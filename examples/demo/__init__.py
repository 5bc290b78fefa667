"""The demo: five processes train one model with PCCL, and one process dies in the middle of an
all_reduce.

The training program is `peer.py`, which uses `model.py`, `corpus.py` and DiLoCo of `pccl_train`.
For PyTorch it is `peer_torch.py`, for JAX `peer_jax.py`. `orchestrator.py` starts and watches the
processes; `story.py` collects their reports; `verdict.py` judges the run; `view.py`, `plot.py` and
`report.py` show the run. Start reading at `peer.py`.
"""
