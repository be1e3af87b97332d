"""Mask plans: what is hidden, what is scored, how often, and with which weight."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from dtm.errors import ConfigError
from dtm.masking import (
    ActiveBlock,
    Coupled,
    FullMask,
    LeftToRight,
    Planned,
    Quadrature,
    RisingRatio,
    SampledSteps,
    TraceSegments,
    UniformCount,
    spans,
)
from dtm.masking.count_plans import gauss_legendre
from dtm.masking.coupled import coupled_counts, spread_levels
from dtm.masking.left_to_right import spaced
from dtm.masking.trace import equal_segments, segments, step_law
from dtm.methods.gdsd import GDSD, GDSDConfig
from dtm.random import stream
from dtm.records import Rollouts, Sequences

MASK, END, PROMPT, LENGTH = 99, 0, 3, 8
PLANS = {
    "full": FullMask(),
    "count": UniformCount(3),
    "quadrature": Quadrature(3),
    "published quadrature": Quadrature(2, nominal=True),
    "rising": RisingRatio(4),
    "block": ActiveBlock(3, 2),
    "published block": ActiveBlock(3, 2, biased=True),
    "active": ActiveBlock(3, 4, "active"),
    "trace": TraceSegments(2),
    "equal parts": TraceSegments(count=3),
    "steps": SampledSteps(3),
    "coupled": Coupled(2),
    "bernoulli": Coupled(2, law="bernoulli"),
    "left to right": LeftToRight(3),
}
each = pytest.mark.parametrize("plan", PLANS.values(), ids=PLANS.keys())


def rollouts(rows: int = 64, ends: bool = True) -> Rollouts:
    """Prompts of three tokens (some padded), completions of eight that end anywhere or nowhere."""
    noise = stream(0, "rollouts")
    tokens = torch.randint(1, 9, (rows, PROMPT + LENGTH), generator=noise)
    if ends:
        stop = PROMPT + torch.randint(0, LENGTH + 1, (rows,), generator=noise)
        tokens = torch.where(torch.arange(PROMPT + LENGTH) >= stop[:, None], END, tokens)
    attention = torch.ones(tokens.shape, dtype=torch.bool)
    attention[::2, 0] = False
    written = (torch.arange(PROMPT + LENGTH) >= PROMPT).expand(tokens.shape)
    steps = torch.rand(rows, LENGTH, generator=noise).argsort(1)
    steps = torch.cat([torch.full((rows, PROMPT), -1), steps], dim=1)
    drawn = torch.zeros(tokens.shape), torch.zeros(rows), torch.arange(rows)
    return Rollouts(tokens, attention, written, steps, *drawn, 0.0)


def test_a_completion_counts_up_to_its_first_end_token():
    tokens = torch.tensor([[5, 1, 2, END, END], [END, 1, 2, 3, 4], [END, END, 2, 3, 4]])
    written = (torch.arange(5) >= 1).expand(3, 5)
    clean = Sequences(tokens, torch.ones_like(written), written)
    assert spans(clean, END).tolist() == [3, 4, 1]
    assert spans(clean, None).tolist() == [4, 4, 4]


@each
def test_a_plan_scores_only_what_it_hides_and_nothing_after_the_end(plan):
    clean = rollouts()
    states = Planned(plan, END, prompt_noise=0.3).states(clean, MASK, stream(1, "masks"), update=1)
    draws, index = states.draws, torch.arange(PROMPT + LENGTH) - PROMPT
    assert len(states) == draws * len(clean)
    assert torch.equal(states.clean, clean.tokens.repeat_interleave(draws, 0))
    assert (states.tokens[states.eligible] == MASK).all()
    assert torch.equal(states.tokens[states.tokens != MASK], states.clean[states.tokens != MASK])
    assert not states.eligible[:, :PROMPT].any()
    assert not states.eligible[index >= states.row_length[:, None]].any()
    assert int(states.batch_length) == draws * int(spans(clean, END).sum())
    assert torch.equal(states.attention, clean.attention.repeat_interleave(draws, 0))
    padding = ~clean.attention.repeat_interleave(draws, 0)
    assert (states.tokens[padding] != MASK).all()
    prompt = (states.tokens == MASK)[:, :PROMPT][~padding[:, :PROMPT]]
    assert float(prompt.float().mean()) == pytest.approx(0.3, abs=0.08)


@each
def test_the_same_stream_gives_the_same_masks(plan):
    first, again = (Planned(plan, END).states(rollouts(), MASK, stream(2, "masks")) for _ in range(2))
    assert torch.equal(first.tokens, again.tokens)
    other = Planned(plan, END).states(rollouts(), MASK, stream(3, "masks"))
    assert torch.equal(first.tokens, other.tokens) == isinstance(plan, FullMask | TraceSegments)


@each
def test_a_part_of_the_states_keeps_the_draws_of_its_sequences(plan):
    states = Planned(plan, END).states(rollouts(), MASK, stream(2, "masks"))
    part = states.select(slice(3, 5))
    rows = slice(3 * states.draws, 5 * states.draws)
    assert part.sequences == 2
    assert torch.equal(part.tokens, states.tokens[rows])
    assert torch.equal(part.row_length, states.row_length[rows])
    assert torch.equal(
        states.select(torch.tensor([4, 3])).tokens[: states.draws], part.tokens[states.draws :]
    )


def test_nothing_is_seen_of_a_fully_masked_completion():
    states = Planned(FullMask(), END).states(rollouts(), MASK, stream(0, "masks"))
    assert (states.tokens[:, PROMPT:] == MASK).all()
    assert torch.equal(states.eligible.sum(1), states.row_length)
    assert (states.row_weight == 1).all()


def test_counts_are_uniform_and_their_weight_is_n_over_k():
    clean = rollouts(2000, ends=False)
    states = Planned(UniformCount(4), END).states(clean, MASK, stream(0, "masks"))
    count = states.eligible.sum(1)
    frequency = torch.bincount(count, minlength=LENGTH + 1)[1:] / len(states)
    torch.testing.assert_close(frequency, torch.full((LENGTH,), 1 / LENGTH), atol=0.012, rtol=0)
    torch.testing.assert_close(states.row_weight, LENGTH / count)
    by_position = states.eligible[:, PROMPT:].float().mean(0)
    torch.testing.assert_close(
        by_position, torch.full((LENGTH,), (LENGTH + 1) / 2 / LENGTH), atol=0.02, rtol=0
    )


@pytest.mark.parametrize(
    "plan", [UniformCount(2), Quadrature(2), RisingRatio(3), FullMask(), Coupled(2), LeftToRight(3)]
)
def test_what_follows_the_end_is_hidden(plan):
    """Otherwise the model would see where the completion ends."""
    states = Planned(plan, END).states(rollouts(), MASK, stream(0, "masks"))
    after = torch.arange(PROMPT + LENGTH) - PROMPT >= states.row_length[:, None]
    assert after.any()
    assert (states.tokens[after] == MASK).all()


def test_quadrature_nodes_are_those_of_gauss_and_legendre():
    node, weight = gauss_legendre(3)
    assert node.tolist() == pytest.approx([0.1127, 0.5, 0.8873], abs=1e-4)
    assert weight.tolist() == pytest.approx([5 / 18, 8 / 18, 5 / 18], abs=1e-6)
    assert gauss_legendre(2)[0].tolist() == pytest.approx([0.2113, 0.7887], abs=1e-4)


def test_published_quadrature_masks_28_128_and_227_of_256():
    tokens = torch.ones(2, 256, dtype=torch.long)
    clean = Sequences(tokens, tokens > 0, tokens > 0)
    states = Planned(Quadrature(3, nominal=True)).states(clean, MASK, stream(0, "masks"))
    assert states.eligible.sum(1).tolist() == [28, 128, 227] * 2
    node, weight = gauss_legendre(3)
    torch.testing.assert_close(states.row_weight[:3], 3 * weight / node)
    fixed = Planned(Quadrature(3)).states(clean, MASK, stream(0, "masks"))
    torch.testing.assert_close(fixed.row_weight[:3], 3 * weight * 256 / torch.tensor([29, 128, 227]))


def test_masks_fill_up_over_the_updates_of_an_iteration():
    clean, plan = rollouts(500, ends=False), Planned(RisingRatio(3), END)
    means = []
    for update in range(3):
        states = plan.states(clean, MASK, stream(update, "masks"), update)
        means.append(float(states.eligible.sum(1).float().mean()) / LENGTH)
    assert means == pytest.approx([9 / 16, 0.8125, 1.0], abs=0.03)  # ⌈t n⌉/n adds half a position
    assert (
        float(Planned(RisingRatio(1)).states(clean, MASK, stream(0, "masks")).eligible.float().mean()) < 0.6
    )


def test_a_block_is_partly_hidden_between_what_is_seen_and_what_is_not():
    clean = rollouts(300)
    states = Planned(ActiveBlock(3, 2), END).states(clean, MASK, stream(0, "masks"))
    masked, index = states.tokens[:, PROMPT:] == MASK, torch.arange(LENGTH)
    for row, n, scored in zip(masked, states.row_length.tolist(), states.eligible[:, PROMPT:], strict=True):
        first = int(row.int().argmax())
        block = first // 3
        assert not row[: 3 * block].any()
        assert row[3 * (block + 1) :].all()
        assert row[n:].all()
        assert torch.equal(scored, row & (index < n))
    torch.testing.assert_close(states.row_weight, states.row_length / states.eligible.sum(1))


def test_the_draws_of_a_completion_are_in_different_blocks():
    clean = rollouts(200, ends=False)
    states = Planned(ActiveBlock(3, 5, "active")).states(clean, MASK, stream(0, "masks"))
    block = (states.eligible[:, PROMPT:].int().argmax(1) // 3).view(-1, 5)
    assert all(len(set(row[:3])) == 3 and row[3:] == row[:2] for row in block.tolist())
    count, width = states.eligible.sum(1), torch.tensor([3, 3, 2])[block.flatten()]
    torch.testing.assert_close(states.row_weight, 3 * width / count)


@pytest.mark.parametrize(("biased", "expected"), [(False, [1 / 3] * 3), (True, [0.375, 0.375, 0.25])])
def test_blocks_are_chosen_alike_and_as_published_early_ones_too_often(biased, expected):
    """Eight blocks of one token, of which the completion uses three."""
    tokens = torch.ones(4000, 8, dtype=torch.long)
    tokens[:, 2:] = END
    clean = Sequences(tokens, tokens >= 0, tokens >= 0)
    plan = Planned(ActiveBlock(1, 1, "active", biased=biased), END)
    states = plan.states(clean, MASK, stream(0, "masks"))
    frequency = states.eligible[:, :3].float().mean(0)
    assert frequency.tolist() == pytest.approx(expected, abs=0.03)


def test_noise_on_earlier_blocks_is_hidden_and_scored():
    clean = rollouts(400, ends=False)
    states = Planned(ActiveBlock(2, 1), END, prompt_noise=0.5).states(clean, MASK, stream(0, "masks"))
    early = states.tokens[:, PROMPT] == MASK
    assert 0.5 < float(early.float().mean()) < 0.75  # in block 0 one or two of two, else half of the time
    assert torch.equal(states.eligible, (states.tokens == MASK) & clean.is_completion)


def test_segments_are_runs_of_distinct_steps():
    revealed = torch.tensor([[-1, 4, 0, 0, 7, 9], [-1, 0, 1, 2, 3, 4]])
    assert segments(revealed, 1).tolist() == [[-1, 1, 0, 0, 2, 3], [-1, 0, 1, 2, 3, 4]]
    assert segments(revealed, 2).tolist() == [[-1, 0, 0, 0, 1, 1], [-1, 0, 0, 1, 1, 2]]
    assert segments(revealed[:, 1:], 2).tolist() == [[0, 0, 0, 1, 1], [0, 0, 1, 1, 2]]


def test_a_trace_shows_what_was_there_and_scores_what_came_next():
    clean = rollouts(1, ends=False)
    steps = torch.tensor([[-1, -1, -1, 0, 3, 1, 2, 7, 6, 5, 4]])
    states = Planned(TraceSegments(3)).states(replace(clean, revealed_at=steps), MASK, stream(0, "masks"))
    masked, scored = states.tokens[:, PROMPT:] == MASK, states.eligible[:, PROMPT:]
    assert states.draws == 3
    assert states.row_weight.tolist() == [3.0] * 3  # the mean over rows is the sum over segments
    assert scored.int().tolist() == [
        [1, 0, 1, 1, 0, 0, 0, 0],
        [0, 1, 0, 0, 0, 0, 1, 1],
        [0, 0, 0, 0, 1, 1, 0, 0],
    ]
    assert masked.int().tolist() == [[1] * 8, [0, 1, 0, 0, 1, 1, 1, 1], [0, 0, 0, 0, 1, 1, 0, 0]]


def test_a_trace_needs_rollouts():
    clean = rollouts(2)
    examples = Sequences(clean.tokens, clean.attention, clean.is_completion)
    with pytest.raises(ConfigError, match="need rollouts"):
        Planned(TraceSegments()).states(examples, MASK, stream(0, "masks"))


# ── coupled masks ─────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("law", ["count", "bernoulli"])
def test_a_pair_of_coupled_masks_scores_each_position_once(law):
    clean = rollouts(300)
    states = Planned(Coupled(2, law=law), END).states(clean, MASK, stream(0, "masks"))
    scored = states.eligible.view(-1, 2, PROMPT + LENGTH)
    index = torch.arange(PROMPT + LENGTH) - PROMPT
    counted = (index >= 0) & (index < states.row_length[::2, None])
    assert torch.equal(scored.sum(1), counted.long())
    count = states.eligible.sum(1)
    more = 1 if law == "count" else 0
    expected = (states.row_length + more) / count.clamp(min=1)
    torch.testing.assert_close(states.row_weight, expected)


def test_coupled_counts_are_uniform_from_none_to_all():
    clean = rollouts(900, ends=False)
    states = Planned(Coupled(3)).states(clean, MASK, stream(0, "masks"))
    first = states.eligible[::2].sum(1)
    frequency = torch.bincount(first, minlength=LENGTH + 1) / len(first)
    torch.testing.assert_close(frequency, torch.full((LENGTH + 1,), 1 / 9), atol=0.002, rtol=0)
    by_position = states.eligible[::2, PROMPT:].float().mean(0)
    torch.testing.assert_close(by_position, torch.full((LENGTH,), 0.5), atol=0.03, rtol=0)
    level = torch.tensor([0.0, 0.999, 0.5, 1 - 1e-9], dtype=torch.float64)
    assert coupled_counts(level, torch.tensor([4, 4, 1, 7])).tolist() == [0, 4, 1, 7]


def test_independent_pairs_have_equal_counts_as_often_as_chance_has_it():
    """One time in LENGTH + 1; spread pairs never have. GDSD multiplies residuals of its pairs."""
    clean, shares = rollouts(2000, ends=False), {}
    for spread in (True, False):
        states = Planned(Coupled(2, spread=spread)).states(clean, MASK, stream(0, "masks"))
        first, second = states.eligible[::2].sum(1).view(-1, 2).unbind(1)
        shares[spread] = float((first == second).float().mean())
    assert shares[True] == 0
    assert shares[False] == pytest.approx(1 / (LENGTH + 1), abs=0.03)
    masks = GDSD(GDSDConfig()).masks(None, END)
    assert isinstance(masks, Planned)
    assert not masks.plan.spread


def test_the_levels_of_a_sequence_are_evenly_spaced_and_those_of_a_batch_in_different_strata():
    level = spread_levels(50, 2, stream(0, "levels"), torch.device("cpu")).view(50, 2)
    gap = (level[:, 1] - level[:, 0]).abs()
    torch.testing.assert_close(gap, torch.full_like(gap, 0.5))
    assert sorted((level[:, 0] * 50).long().tolist()) == list(range(50))


def test_coupled_masks_without_weights_count_each_position_alike():
    states = Planned(Coupled(1, weighted=False), END).states(rollouts(), MASK, stream(0, "masks"))
    assert (states.row_weight == 1).all()


# ── from left to right ────────────────────────────────────────────────────────────────────────────


def test_all_positions_from_left_to_right_are_the_states_of_that_decoder():
    clean = rollouts(4, ends=False)
    states = Planned(LeftToRight(99)).states(clean, MASK, stream(0, "masks"))
    assert states.draws == LENGTH
    for row in range(LENGTH):
        assert (states.tokens[row, PROMPT:] == MASK).tolist() == [k >= row for k in range(LENGTH)]
        assert states.eligible[row, PROMPT:].tolist() == [k == row for k in range(LENGTH)]
    assert (states.row_weight == LENGTH).all()  # the mean over rows is the sum over positions


@pytest.mark.parametrize(("span", "draws"), [(8, 2), (8, 4), (6, 3), (7, 1)])
def test_each_position_is_drawn_with_the_same_chance(span, draws):
    """Over all offsets: span / draws strata of equal chance."""
    found = torch.zeros(span)
    strata = span // draws
    for stratum in range(strata):
        offset = torch.full((draws,), (stratum + 0.5) / strata, dtype=torch.float64)
        place, used = spaced(offset, torch.arange(draws), torch.full((draws,), span), draws)
        assert used.all()
        assert len(set(place.tolist())) == draws
        found[place] += 1
    assert (found == 1).all()


def test_a_short_completion_is_scored_whole_and_its_other_rows_are_empty():
    clean = rollouts(1, ends=False)
    tokens = clean.tokens.clone()
    tokens[0, PROMPT + 1 :] = END
    states = Planned(LeftToRight(4), END).states(replace(clean, tokens=tokens), MASK, stream(0, "masks"))
    assert states.row_length.tolist() == [2] * 4
    assert states.eligible.sum(1).tolist() == [1, 1, 0, 0]
    assert states.row_weight[:2].tolist() == [4, 4]


# ── steps of the decoder ──────────────────────────────────────────────────────────────────────────


def test_equal_parts_of_a_trace_have_equally_many_steps():
    revealed = torch.tensor([[-1, 4, 0, 0, 7, 9], [-1, 0, 1, 2, 3, 4]])
    assert equal_segments(revealed, 1).tolist() == [[-1, 0, 0, 0, 0, 0]] * 2
    assert equal_segments(revealed, 2).tolist() == [[-1, 0, 0, 0, 1, 1], [-1, 0, 0, 0, 1, 1]]
    assert equal_segments(revealed, 99).tolist() == segments(revealed, 1).tolist()


def test_drawn_steps_show_the_state_before_them_and_weigh_one_over_their_chance():
    clean = rollouts(200)
    drawn = replace(clean, log_prob=-torch.rand(clean.tokens.shape, generator=stream(0, "surprise")))
    states = Planned(SampledSteps(3), END).states(drawn, MASK, stream(0, "masks"))
    counted = (torch.arange(PROMPT + LENGTH) >= PROMPT) & (
        torch.arange(PROMPT + LENGTH) - PROMPT < spans(clean, END)[:, None]
    )
    law = step_law(drawn.revealed_at, drawn.log_prob, counted, 0.2)
    torch.testing.assert_close(law.sum(1), torch.ones(200, dtype=torch.float64))
    for row in range(0, len(states), 7):
        sequence, revealed = row // 3, drawn.revealed_at[row // 3]
        (step,) = set(revealed[states.eligible[row]].tolist())
        assert torch.equal(states.tokens[row] == MASK, revealed >= step)
        assert float(states.row_weight[row]) == pytest.approx(1 / float(law[sequence, step]), rel=1e-5)
    mean = Planned(SampledSteps(3, mean=True), END).states(drawn, MASK, stream(0, "masks"))
    taken = (law > 0).sum(1).repeat_interleave(3)
    torch.testing.assert_close(mean.row_weight * taken, states.row_weight)


def test_as_many_even_draws_as_steps_take_each_step_once():
    states = Planned(SampledSteps(LENGTH, even=1.0)).states(rollouts(5, ends=False), MASK, stream(0, "masks"))
    assert (states.eligible.view(5, LENGTH, -1)[..., PROMPT:].sum(1) == 1).all()
    assert states.row_weight.tolist() == pytest.approx([LENGTH] * 5 * LENGTH)


@pytest.mark.parametrize(
    "make",
    [
        lambda: Coupled(0),
        lambda: LeftToRight(0),
        lambda: SampledSteps(0),
        lambda: SampledSteps(1, even=0.0),
        lambda: TraceSegments(count=0),
    ],
)
def test_a_plan_without_rows_is_refused(make):
    with pytest.raises(ConfigError, match=r"at least one|must lie in"):
        make()
