"""Prepares the README for the page of a package index, where relative links lead nowhere.

Hatchling calls `Hook` for the metadata of the wheel and of the sdist. If the project's URLs in
pyproject.toml have a `Source`, relative links lead to the `Source`; without it they become plain
text, and pictures are left out.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface

RELATIVE_LINK = re.compile(r"(!?)\[([^\]\n]+)\]\((?!\w+:|#)([^)\s]+)\)")


def for_package_page(text: str, source: str | None) -> str:
    """Replaces relative links in `text` by links to `source`, or by plain text if it is None."""

    def replaced(found: re.Match[str]) -> str:
        is_picture, label, target = found[1] == "!", found[2], found[3]
        if source is None:
            return "" if is_picture else label
        kind = "raw" if is_picture else "blob"
        return f"{found[1]}[{label}]({source.rstrip('/')}/{kind}/main/{target})"

    return RELATIVE_LINK.sub(replaced, text)


class Hook(MetadataHookInterface):
    """Fills in the metadata field `readme`, which is dynamic in pyproject.toml."""

    def update(self, metadata: dict[str, Any]) -> None:
        text = Path(self.root, "README.md").read_text(encoding="utf-8")
        page = for_package_page(text, metadata.get("urls", {}).get("Source"))
        metadata["readme"] = {"content-type": "text/markdown", "text": page}
