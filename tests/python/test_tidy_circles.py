"""No files of a layer of the engine import each other in a circle, but for those that are listed.

The list only gets shorter: a file that is in no circle any more leaves it. Where two files need
each other, what both need goes to a third that imports neither. How circles are found:
tests/python/circles.py.
"""

from __future__ import annotations

import circles
import pytest

# Circles that are left, each with the reason that holds it together.
ALLOWED: dict[str, list[str]] = {
    "net": [
        # Memberships and works take the lock of their engine, which tells them what its session
        # says of them.
        "membership.zig peer_engine.zig work.zig",
    ],
}


@pytest.mark.parametrize("layer", circles.LAYERS)
def test_no_files_of_a_layer_import_each_other_in_a_circle(layer: str) -> None:
    edges = circles.graph(layer)
    assert "root.zig" in edges, "there is no such layer"
    found = circles.circles(edges)
    allowed = [listed.split() for listed in ALLOWED.get(layer, [])]
    for circle in found:
        homes = [listed for listed in allowed if set(circle) <= set(listed)]
        assert homes, f"engine/{layer}: these import each other in a circle: {', '.join(circle)}"
    free = {name for listed in allowed for name in listed} - {n for c in found for n in c}
    assert not free, f"engine/{layer}: in no circle any more, take from ALLOWED: {sorted(free)}"


def test_a_circle_is_seen_and_what_only_tests_import_is_not() -> None:
    code = (
        'const a = @import("a.zig");\nconst b = @import("b.zig").B;\nconst c = @import("c.zig");\n'
        "const unused = b.x;\n\npub fn f() void {\n    helper();\n}\n\n"
        "fn helper() void {\n    a.g(); // unused\n}\n\n"
        'fn test_helper() void {\n    c.g();\n}\n\ntest "b" {\n    test_helper();\n}\n'
    )
    assert circles.imports(code) == {"a.zig"}
    assert circles.imports(code.replace("a.g()", "unused.g()")) == {"b.zig"}
    edges = {"a": {"b"}, "b": {"c"}, "c": {"a", "d"}, "d": {"e"}, "e": set(), "f": {"f"}}
    assert circles.circles(edges) == [["a", "b", "c"], ["f"]]
