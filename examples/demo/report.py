"""Report: writes a run for other programs: `report.json` (a summary) and `events.jsonl` (all
events).
"""

from __future__ import annotations

import json
import platform
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

import pccl_py as pccl
from examples.demo.story import Peer, Story
from examples.demo.verdict import Check

SCHEMA = 1


def write(story: Story, checks: list[Check], seconds: float, folder: Path) -> list[Path]:
    """Writes report.json and events.jsonl to `folder`, and returns their paths."""
    report, events = folder / "report.json", folder / "events.jsonl"
    report.write_text(
        json.dumps(summarise(story, checks, seconds), indent=2) + "\n", encoding="utf-8"
    )
    ordered = sorted(story.events, key=lambda event: event["seconds"])
    events.write_text("".join(json.dumps(event) + "\n" for event in ordered), encoding="utf-8")
    return [report, events]


def summarise(story: Story, checks: list[Check], seconds: float) -> dict[str, Any]:
    """The contents of report.json."""
    return {
        "schema": SCHEMA,
        "passed": all(check.holds for check in checks),
        "seconds": round(seconds, 1),
        "checks": [asdict(check) for check in checks],
        "failure": story.failure,
        "settings": json.loads(story.settings.to_json()),
        "parameters": story.settings.model.size,
        "held_out_loss": [story.held_out[number] for number in sorted(story.held_out)],
        "peers": [peer_summary(story.peers[index]) for index in sorted(story.peers)],
        "lost_operation": story.broken_round(),
        "timeline": [
            asdict(moment) for moment in sorted(story.timeline, key=lambda moment: moment.seconds)
        ],
        "versions": {
            "pccl": pccl.__version__,
            "python": platform.python_version(),
            "numpy": np.__version__,
        },
        "machine": platform.machine(),
    }


def peer_summary(peer: Peer) -> dict[str, Any]:
    """The entry of one peer in report.json."""
    return {
        "name": peer.name,
        "pid": peer.pid,
        "peer_id": peer.peer_id,
        "state": peer.state,
        "exit_code": peer.exit_code,
        "error": peer.error,
        "rounds": [event["round"] for event in peer.rounds],
        "train_loss": [event["train_loss"] for event in peer.rounds],
        "reduce_seconds": [event["reduce_seconds"] for event in peer.rounds],
        "bytes_sent": peer.bytes_sent,
        "bytes_received": peer.bytes_received,
        "digest": peer.digest,
        "text": peer.text,
    }
