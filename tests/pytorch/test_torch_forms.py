"""Every form of a collective that PyTorch's own groups accept, and that no other is accepted.

The forms are read from the docstrings of the installed PyTorch (form_checks.py).
"""

from __future__ import annotations

import re

import form_checks
import pytest
from pccl_torch.forms import FORMS
from world import World

# On one worker, with one world of processes.
pytestmark = pytest.mark.xdist_group("torch")

ALL = form_checks.forms()


@pytest.mark.parametrize("form", ALL)
def test_a_form_of_pytorch_has_its_values(ranks: World, form: str) -> None:
    ranks.run("form_checks:call", form=form)


def test_what_fits_no_form_is_refused(ranks: World) -> None:
    ranks.run("form_checks:refusals")


def test_the_forms_are_those_of_pytorch() -> None:
    """By names and order; `gather_single` came after 2.13."""
    told = {form.partition(".")[2].replace("?", "") for form in ALL}
    named = {re.sub(r": [^,)]*", "", form) for form in told}
    ours = {f"{name}({form})" for name, forms in FORMS.items() for form in forms}
    assert len(told) > 30
    assert {re.sub(r": [^,)]*", "", form) for form in ours} - named == {
        "gather_single(output, input, opts)"
    }
    assert named <= {re.sub(r": [^,)]*", "", form) for form in ours}
