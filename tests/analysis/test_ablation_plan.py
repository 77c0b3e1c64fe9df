"""Which runs an ablation is made of, and the control of every policy."""

from __future__ import annotations

import json
from inspect import signature

import pytest

from tta_diffusion.allocation import parse_allocation
from tta_diffusion.analysis.ablation.plan import CONSTANT, FEEDBACKS, POLICIES, STEPS, Ablation, Cell, parse_steps, twin
from tta_diffusion.assets import MODEL
from tta_diffusion.bench.task import Task
from tta_diffusion.cli.ablation import ablation

STEERED = Task("mood", ("bad", "good"), 5, control="sentiment", prompts=("the lake",))
FREE = Task("free", ("free",), 5, prompts=("the lake",))


@pytest.mark.parametrize(
    ("policy", "control"),
    [
        ("adaptive:0.6", "matched(adaptive:0.6)"),
        ("linear", "matched(linear)"),
        ("random", "matched(random)"),
        ("matched(linear)", "matched(linear)"),  # a twin is its own
        ("centred:0.2", "constant"),  # its mean is u
        ("centred:0.2+warmup:0.1", "constant"),
        ("centred:0.2+monotone", "matched(centred:0.2+monotone)"),  # its mean is below u
        ("constant", "constant"),
        ("scaled:0.85", "scaled:0.85"),
        ("fixed:0.3", "fixed:0.3"),
    ],
)
def test_the_twin_has_one_time_for_all(policy: str, control: str) -> None:
    assert twin(policy) == control
    assert twin(twin(policy)) == twin(policy)


def test_constant_then_every_policy_and_its_twin_once() -> None:
    plan = Ablation(STEERED, ("linear", "centred:0.2", "scaled:0.85", "linear", "constant"), ("guided",), (10,))
    names = ["constant", "linear", "matched(linear)", "centred:0.2", "scaled:0.85"]
    assert list(plan.cells()) == [Cell(10, "guided", name) for name in names]


def test_every_combination_has_a_directory_of_its_own() -> None:
    cells = list(Ablation(STEERED).cells())
    assert {(c.steps, c.feedback) for c in cells} == {(t, f) for t in STEPS for f in FEEDBACKS}
    assert {c.policy for c in cells} >= {CONSTANT, *POLICIES, *map(twin, POLICIES)}
    assert len({c.name for c in cells}) == len(set(cells)) == len(cells)
    assert all(c.isalnum() or c in "._-" for cell in cells for c in cell.name)
    assert Cell(20, "plain", "matched(adaptive:0.6)").name == "T20-plain-matched_adaptive_0.6"


def test_the_policy_of_the_package_comes_first_and_the_command_has_the_same_list() -> None:
    default = json.loads((MODEL / "denoiser.json").read_text())["sampling"]["allocation"]
    assert next(cell.policy for cell in Ablation(STEERED).cells() if cell.policy != CONSTANT) == default
    told = {name: parameter.default for name, parameter in signature(ablation).parameters.items()}
    assert tuple(told["policies"].split()) == POLICIES
    assert parse_steps(told["steps"]) == (STEPS, {})
    assert tuple(told["feedback"].split(",")) == FEEDBACKS


def test_a_cell_sets_what_it_is_named_after() -> None:
    settings = Cell(20, "plain", "linear").settings
    assert settings == {"steps": 20, "feedback": "plain", "allocation": "linear"}


def test_without_control_there_is_no_feedback_and_nothing_that_needs_guidance() -> None:
    cells = list(Ablation(FREE, steps=(10, 20)).cells())
    assert {cell.feedback for cell in cells} == {"guided"}
    assert {cell.steps for cell in cells} == {10, 20}
    left = {cell.policy for cell in cells}
    assert not any(parse_allocation(policy).needs_guidance for policy in left)
    assert {"linear", "random", "settle", "matched(settle)", "matched(linear)"} <= left
    assert not left & {"adaptive:0.6", "matched(adaptive:0.6)"}


def test_texts_of_each_prompt() -> None:
    plan = Ablation(STEERED, steps=(10, 20, 50), samples={10: 2, 20: 100})
    assert [plan.limit(steps) for steps in plan.steps] == [2, 5, 5]  # never more than the task has


def test_steps_on_the_command_line() -> None:
    assert parse_steps("10, 20,200:5") == ((10, 20, 200), {200: 5})
    assert parse_steps("7") == ((7,), {})
    assert parse_steps("10,20,10:3") == ((10, 20), {10: 3})  # a cell is written once


@pytest.mark.parametrize("text", ["", "10,", "ten", "10:", "10:few", "-5", "2.5", ":3", "10 20"])
def test_what_is_no_number_of_steps(text: str) -> None:
    with pytest.raises(ValueError, match="is not a number of steps: write them like 10,20,50 or 200:20"):
        parse_steps(text)


def test_an_unknown_policy_is_named_before_anything_runs() -> None:
    with pytest.raises(ValueError, match="Did you mean 'adaptive'"):
        Ablation(STEERED, ("adaptve:0.6",))


@pytest.mark.parametrize(
    ("feedbacks", "steps", "traced", "said"),
    [
        (("guided", "plane"), (2,), 5, "feedback must be guided, plain or a share between 0 and 1, got 'plane'"),
        (("guided",), (20, 0), 5, "steps must be at least 1"),
        (("guided",), (20, 1), 5, "take 2 steps or more, or --traced 0"),
    ],
)
def test_what_is_wrong_with_the_last_cell_is_said_before_the_first(
    feedbacks: tuple[str, ...], steps: tuple[int, ...], traced: int, said: str
) -> None:
    with pytest.raises(ValueError, match=said):
        Ablation(STEERED, ("linear",), feedbacks, steps, traced=traced)
    assert Ablation(STEERED, ("linear",), ("guided",), (1,), traced=0)
