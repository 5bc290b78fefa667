"""The demo: five processes train one model with PCCL, and one of them dies in the middle of an
all_reduce.

The training program is `peer.py`, with `model.py` and `corpus.py` below it, and DiLoCo of
`pccl_train`; for PyTorch it is `peer_torch.py`, for JAX `peer_jax.py`. `orchestrator.py` starts and
watches the processes; `story.py` keeps what they report, `verdict.py` judges it, `view.py`,
`plot.py` and `report.py` show it. Start reading at `peer.py`.
"""
