"""The noise-budget program: constraints, optimality, symmetry, and the gain over equal shares."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import optimize
from torch import Tensor

from tta_diffusion.theory.budget import affine_allocation, allocation_cost, linear_program_allocation

Problem = tuple[Tensor, Tensor, Tensor, float, float, float]


@st.composite
def problems(draw: st.DrawFn) -> Problem:
    """(weights, mask, budget, lower, upper, kappa) with a feasible budget and at least one free position."""
    rng = np.random.default_rng(draw(st.integers(0, 2**31 - 1)))
    rows, length = draw(st.integers(1, 4)), draw(st.integers(1, 9))
    weights = torch.tensor(rng.normal(size=(rows, length)))
    if draw(st.booleans()):
        weights = weights.round()
    mask = torch.tensor(rng.random((rows, length)) < 0.7)
    mask[:, 0] = True
    lower = draw(st.sampled_from([0.0, 0.1]))
    upper = lower + draw(st.sampled_from([0.0, 0.3, 0.8]))
    fill = torch.tensor(rng.choice([0.0, 1.0, *rng.random(4)], size=rows))
    budget = mask.sum(-1) * (lower + fill * (upper - lower))
    return weights, mask, budget, lower, upper, draw(st.sampled_from([1e-3, 0.2, 1.0, 30.0]))


def allocate_both(problem: Problem) -> list[Tensor]:
    weights, mask, budget, lower, upper, kappa = problem
    return [
        linear_program_allocation(weights, budget, lower, upper, mask),
        affine_allocation(weights, budget, lower, upper, kappa, mask),
    ]


@settings(deadline=None, max_examples=100)
@given(problems())
def test_constraints_hold_and_noise_falls_with_weight(problem: Problem) -> None:
    weights, mask, budget, lower, upper, _ = problem
    for sigma2 in allocate_both(problem):
        assert (sigma2[~mask] == 0).all()
        assert (sigma2[mask] >= lower - 1e-12).all()
        assert (sigma2[mask] <= upper + 1e-12).all()
        torch.testing.assert_close(sigma2.sum(-1), budget, rtol=0, atol=1e-10)
        for row in range(len(weights)):
            ordered = sigma2[row, mask[row]][weights[row, mask[row]].argsort()]
            assert (ordered.diff() <= 1e-12).all()


@settings(deadline=None, max_examples=40)
@given(problems())
def test_linear_program_matches_scipy(problem: Problem) -> None:
    weights, mask, budget, lower, upper, _ = problem
    cost = allocation_cost(weights, linear_program_allocation(weights, budget, lower, upper, mask), mask)
    for row in range(len(weights)):
        b = weights[row, mask[row]].numpy()
        # Rounding may leave the budget a hair outside the box, which the solver would call infeasible.
        total = float(np.clip(budget[row], lower * len(b), upper * len(b)))
        solved = optimize.linprog(b, A_eq=np.ones((1, len(b))), b_eq=[total], bounds=(lower, upper))
        assert solved.success, solved.message
        assert float(cost[row]) == pytest.approx(solved.fun, abs=1e-8)


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("kappa", [0.1, 0.5, 3.0])
def test_affine_rule_solves_the_regularised_program(seed: int, kappa: float) -> None:
    rng = np.random.default_rng(seed)
    b, lower, upper = rng.random(6), 0.05, 0.9
    budget = 6 * (lower + rng.uniform(0.1, 0.9) * (upper - lower))
    solved = optimize.minimize(
        lambda s: b @ s + s @ s / (2 * kappa),
        np.full(6, budget / 6),
        jac=lambda s: b + s / kappa,
        method="SLSQP",
        bounds=[(lower, upper)] * 6,
        constraints={"type": "eq", "fun": lambda s: s.sum() - budget, "jac": lambda s: np.ones(6)},
        options={"ftol": 1e-14, "maxiter": 500},
    )
    got = affine_allocation(torch.tensor(b), budget, lower, upper, kappa).numpy()
    np.testing.assert_allclose(got, solved.x, atol=1e-5)
    assert b @ got + got @ got / (2 * kappa) <= solved.fun + 1e-10


@settings(deadline=None, max_examples=60)
@given(problems(), st.integers(0, 2**31 - 1))
def test_permutation_equivariance(problem: Problem, seed: int) -> None:
    weights, mask, budget, lower, upper, kappa = problem
    order = torch.tensor(np.random.default_rng(seed).permutation(weights.shape[-1]))
    moved = allocate_both((weights[:, order], mask[:, order], budget, lower, upper, kappa))
    for before, after in zip(allocate_both(problem), moved, strict=True):
        torch.testing.assert_close(before[:, order], after, rtol=0, atol=1e-10)


@settings(deadline=None, max_examples=60)
@given(problems())
def test_fixed_positions_and_other_rows_change_nothing(problem: Problem) -> None:
    weights, mask, budget, lower, upper, kappa = problem
    junk = weights.masked_fill(~mask, float("nan"))
    for whole, cleaned in zip(
        allocate_both(problem), allocate_both((junk, mask, budget, lower, upper, kappa)), strict=True
    ):
        assert torch.equal(whole, cleaned)
    for row in range(len(weights)):
        free = mask[row]
        alone = allocate_both((weights[row][free], free[free], budget[row], lower, upper, kappa))
        for whole, single in zip(allocate_both(problem), alone, strict=True):
            torch.testing.assert_close(whole[row, free], single, rtol=0, atol=1e-12)


@settings(deadline=None, max_examples=100)
@given(problems())
def test_adaptive_never_costs_more_than_equal_shares(problem: Problem) -> None:
    weights, mask, budget, lower, upper, _ = problem
    equal = mask * (budget / mask.sum(-1)).unsqueeze(-1)
    constant = allocation_cost(weights, equal, mask)
    exact, affine = (allocation_cost(weights, sigma2, mask) for sigma2 in allocate_both(problem))
    assert (exact <= affine + 1e-10).all()
    assert (affine <= constant + 1e-10).all()
    share = budget / mask.sum(-1)
    for row in range(len(weights)):
        b = weights[row, mask[row]]
        room = min(float(share[row]) - lower, upper - float(share[row]))
        if float(b.max() - b.min()) > 0.1 and room > 1e-3:
            assert float(exact[row]) < float(constant[row])
            assert float(affine[row]) < float(constant[row])


def test_kappa_runs_from_equal_shares_to_the_linear_program() -> None:
    weights = torch.tensor([0.9, 0.1, 0.5, 0.5, 0.2], dtype=torch.float64)
    small, large = (affine_allocation(weights, 2.2, 0.0, 1.0, kappa) for kappa in (1e-9, 1e6))
    torch.testing.assert_close(small, torch.full_like(weights, 0.44), rtol=0, atol=1e-8)
    exact = linear_program_allocation(weights, 2.2, 0.0, 1.0)
    torch.testing.assert_close(exact, torch.tensor([0.0, 1.0, 0.1, 0.1, 1.0], dtype=torch.float64))
    torch.testing.assert_close(large, exact, rtol=0, atol=1e-8)


def test_one_minus_importance_is_an_instance() -> None:
    importance = torch.tensor([[0.0, 0.3, 0.8, 1.0], [0.2, 0.2, 0.9, 0.4]], dtype=torch.float64)
    budget = torch.tensor([1.0, 0.7], dtype=torch.float64)
    kappa = budget / (1 - importance).sum(-1)
    expected = kappa.unsqueeze(-1) * (1 - importance)
    torch.testing.assert_close(affine_allocation(importance, budget, 0.0, 1.0, kappa), expected)


def test_bounds_may_differ_by_position() -> None:
    weights = torch.tensor([0.1, 0.2, 0.3], dtype=torch.float64)
    upper = torch.tensor([0.2, 1.0, 1.0])
    exact = linear_program_allocation(weights, 0.7, 0.0, upper)
    torch.testing.assert_close(exact, torch.tensor([0.2, 0.5, 0.0], dtype=torch.float64), rtol=0, atol=1e-7)
    affine = affine_allocation(weights, 0.7, 0.0, upper, 1.0)
    torch.testing.assert_close(affine, torch.tensor([0.2, 0.3, 0.2], dtype=torch.float64), rtol=0, atol=1e-7)


def test_a_row_without_free_positions_takes_no_noise() -> None:
    weights, mask = torch.rand(2, 3), torch.tensor([[True, True, False], [False, False, False]])
    for sigma2 in allocate_both((weights, mask, torch.tensor([1.0, 0.0]), 0.0, 1.0, 1.0)):
        assert (sigma2[1] == 0).all()
        assert float(sigma2[0].sum()) == pytest.approx(1.0)


def test_full_budget_with_fixed_positions() -> None:
    # However 8 · 0.8 is rounded, the fill must not move on to the fixed position.
    weights = torch.tensor([-1.0, 0.8, 3.0, 1.1, -1.1, 0.1, -0.1, -2.7, 0.9], dtype=torch.float64)
    mask = torch.ones(9, dtype=torch.bool)
    mask[1] = False
    for budget in (8 * 0.8, sum([0.8] * 8), 6.4 + 1e-12, 6.4 - 1e-12):
        for sigma2 in allocate_both((weights, mask, torch.tensor(budget, dtype=torch.float64), 0.0, 0.8, 0.001)):
            torch.testing.assert_close(sigma2, 0.8 * mask.double(), rtol=0, atol=1e-6)


def test_budget_rounded_in_float32_is_accepted() -> None:
    weights = torch.rand(64)
    budget = torch.full((64,), 0.1).sum() * (1 + 2e-7)
    for sigma2 in allocate_both((weights, torch.ones(64, dtype=torch.bool), budget, 0.0, 0.1, 1.0)):
        torch.testing.assert_close(sigma2, torch.full((64,), 0.1, dtype=torch.float64), rtol=1e-6, atol=0)


def test_impossible_requests_are_refused_with_a_sentence() -> None:
    weights = torch.rand(2, 4)
    mask = torch.tensor([[True] * 4, [True, False, False, False]])
    for budget, row in ((5.0, 0), (0.1, 0), (2.0, 1)):
        for call in (
            lambda c: linear_program_allocation(weights, c, 0.1, 1.0, mask),
            lambda c: affine_allocation(weights, c, 0.1, 1.0, 1.0, mask),
        ):
            with pytest.raises(ValueError, match=f"infeasible noise budget in row {row}"):
                call(budget)
    with pytest.raises(ValueError, match="exceeds the upper bound"):
        linear_program_allocation(weights, 1.0, 0.5, 0.4)
    with pytest.raises(ValueError, match="kappa must be positive"):
        affine_allocation(weights, 1.0, 0.0, 1.0, 0.0)
    with pytest.raises(ValueError, match="must be finite"):
        affine_allocation(torch.tensor([0.1, float("nan")]), 1.0, 0.0, 1.0, 1.0)
