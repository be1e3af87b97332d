"""The progress meter against a world in which both laws are known: two independent positions, four tokens."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace

import pytest
import torch
from torch import nn

from dtm import tilts
from dtm.engine import Decoder, generate
from dtm.engine.orders import SampledConfidence
from dtm.loop.meter import FEWEST, PATIENCE, STATES, Meter
from dtm.masking import choose_steps, visited
from dtm.models import Denoiser, LoRA, Policy, Transformer, TransformerConfig
from dtm.random import stream
from dtm.records import Rollouts
from dtm.verify.exact import denoiser, number, random_world

TOKENS, H = 4, 0.5
REWARD = torch.tensor([0.0, 0.3, 0.7, 1.0])
BASE = torch.tensor([0.4, 0.3, 0.2, 0.1])
"""π_a of a position."""


class Independent(Denoiser):
    """The same law of a token at every position, whatever the others are."""

    def __init__(self, law: torch.Tensor) -> None:
        super().__init__()
        self.vocab_size, self.mask_id, self.eos_id = TOKENS + 1, TOKENS, 0
        self.logits = nn.Parameter(torch.cat([law.log(), torch.zeros(1)]).double())

    def hidden(self, tokens, attention=None):
        return self.logits.expand(*tokens.shape, -1)

    def head(self, rows):
        return rows.clone()


def tilted(h: float) -> torch.Tensor:
    """π_{a+h} of a position, exactly: the reward is a sum over positions."""
    return (BASE.log() + h * REWARD).softmax(0)


def policy(student: torch.Tensor, ema: float | None = None) -> Policy:
    made = Policy(Independent(BASE), ema)
    made.student.logits.data[:TOKENS] = student.log()
    return made


def rollouts(prompts: int, completions: int, seed: int = 0, length: int = 2) -> Rollouts:
    """Completions drawn from π_a and revealed from left to right, after a prompt of one token."""
    shape = (prompts * completions, length)
    written = torch.multinomial(BASE, shape[0] * length, True, generator=stream(seed, "tokens")).view(shape)
    tokens = torch.cat([torch.zeros_like(written[:, :1]), written], 1)
    is_completion = (torch.arange(length + 1) > 0).expand(tokens.shape)
    step = (torch.arange(length + 1) - 1).expand(tokens.shape)
    log_prob = torch.cat([torch.zeros(len(written), 1), BASE[written].log()], 1)
    group = torch.arange(prompts).repeat_interleave(completions)
    seen = torch.ones_like(is_completion)
    return Rollouts(tokens, seen, is_completion, step, log_prob, REWARD[written].sum(1), group, 0.0)


def read(student: torch.Tensor, on: Rollouts, seed: int = 0, together: int = 256) -> tuple[float, float]:
    found = Meter(on, H, stream(seed, "meter")).read(policy(student), together)
    assert found is not None
    return found


def exactly(on: Rollouts, student: torch.Tensor) -> tuple[float, float]:
    """The reading with every decoding step of every rollout."""
    ratio = (student / BASE).log()[on.written].sum(1)
    return tilts.absorbed_share(ratio, on.reward, on.group, H)


@pytest.mark.parametrize("share", [0.5, 1.0, 1.5, -1.0])
def test_the_meter_reads_the_tilt_of_the_student(share):
    found, error = read(tilted(share * H), rollouts(60, 8))
    assert found == pytest.approx(share, abs=3 * error)
    assert error < 0.15 * abs(share) + 0.02


def test_the_rows_of_a_pass_do_not_change_the_reading():
    assert read(tilted(H), rollouts(4, 6), together=7) == pytest.approx(read(tilted(H), rollouts(4, 6)))


def test_an_untrained_student_reads_nothing_without_any_error():
    assert read(BASE, rollouts(4, 4)) == (0.0, 0.0)


@pytest.mark.parametrize("phase", ["first", "later"])
@pytest.mark.parametrize("merge", [False, True])
def test_adapters_in_bfloat16_read_nothing_at_the_start_of_a_phase(merge, phase):
    """Adapters merged into weights of bfloat16 round differently: π_a is read as the student runs."""
    shape = TransformerConfig(vocab_size=8, mask_id=7, eos_id=6, width=32, layers=2, heads=4, ffn=48)
    base = Transformer(shape, stream(0, "base")).to(torch.bfloat16)
    made = Policy(base, lora=LoRA(rank=4), merge=merge)
    if phase == "later":
        noise = stream(0, "adapters")
        weights = made.weights(made.student)
        drawn = {name: 0.3 * torch.randn(value.shape, generator=noise) for name, value in weights.items()}
        made.load_weights(made.student, drawn)
        made.promote()
    asked = torch.zeros(6, 2, dtype=torch.long)
    with torch.autocast("cpu", torch.bfloat16):
        done = generate(made.pi_a(), asked, 6, Decoder(), seed=0, completions=4, batch=32)
        parts = (done.tokens, done.attention, done.is_completion, done.revealed_at, done.log_prob)
        reward = done.written.float().mean(1)
        drawn = Rollouts(*parts, reward, torch.arange(6).repeat_interleave(4), 0.0)
        meter = Meter(drawn, H, stream(0, "meter"))
        assert meter.read(made, 8) == (0.0, 0.0)
    assert meter.ratios[0].count_nonzero() == 0


def test_all_steps_of_a_perfect_student_leave_no_error():
    share, error = exactly(rollouts(5, 4, length=3), tilted(H))
    assert share == pytest.approx(1, abs=1e-6)
    assert error == pytest.approx(0, abs=1e-6)


def test_the_interval_of_the_meter_covers_what_it_measures():
    """A student that is wrong in a way of its own; one standard error covers two thirds, two nearly all."""
    student = torch.tensor([0.3, 0.25, 0.3, 0.15])
    truth = exactly(rollouts(20_000, 6, seed=99), student)[0]
    found = [read(student, rollouts(16, 6, seed), seed) for seed in range(200)]
    missed = torch.tensor([abs(share - truth) / error for share, error in found])
    assert 0.6 < float((missed < 1).double().mean()) < 0.76
    assert float((missed < 2).double().mean()) > 0.91


@pytest.mark.parametrize("share", [0.5, 1.0])
def test_the_interval_covers_the_truth_where_few_prompts_carry_the_reading(share):
    """In LLaDA's order, 28 of 40 prompts count, as much as 15 with equal parts would.

    A perfect student has tilted by h, also in the exact decoder's order.
    """
    prompts, completions, readings, h = 40, 8, 1000, 2.0
    world = random_world(3, 5, seed=0, reward="maze", prompt=1, rate=0.5)
    asked = torch.randint(3, (prompts * readings, 1), generator=stream(0, "prompts"))
    decoder = Decoder(order=SampledConfidence())
    done = generate(world.denoiser(), asked, 4, decoder, seed=0, completions=completions, batch=1 << 16)
    group = torch.arange(len(asked)).repeat_interleave(completions)
    parts = (done.tokens, done.attention, done.is_completion, done.revealed_at, done.log_prob)
    drawn = Rollouts(*parts, world.reward[number(done.tokens, 3)].float(), group, 0.0)
    made = Policy(world.denoiser())
    made.student.load_state_dict(denoiser(world.tilted(share * h).posterior()).state_dict())
    meter = Meter(drawn, h, stream(0, "meter"))
    meter.read(made, 1 << 16)
    ratio, reward, group = meter.ratios[-1], meter.rollouts.reward, meter.rollouts.group
    ends = torch.searchsorted(group, torch.arange(0, len(asked) + 1, prompts))
    found = [
        tilts.absorbed_share(ratio[first:last], reward[first:last], group[first:last], h)
        for first, last in itertools.pairwise(ends.tolist())
    ]
    missed = torch.tensor([abs(value - share) / error for value, error in found])
    assert 0.93 < float((missed < 2).double().mean()) < 0.97
    assert 0.65 < float((missed < 1).double().mean()) < 0.72
    value, error = torch.tensor(found, dtype=torch.float64).unbind(1)
    assert float(error.square().mean().sqrt()) == pytest.approx(float(value.std()), rel=0.08)


def test_the_error_is_that_of_leaving_out_one_prompt_at_a_time():
    on = rollouts(7, 4)
    ratio = torch.randn(len(on), generator=stream(0, "ratio"), dtype=torch.float64)
    share, error = tilts.absorbed_share(ratio, on.reward, on.group, H)
    without = [
        tilts.absorbed_share(ratio[rest], on.reward[rest], on.group[rest], H)[0]
        for rest in (on.group != prompt for prompt in range(7))
    ]
    assert error == pytest.approx(math.sqrt(sum((value - share) ** 2 for value in without)))


def test_the_drawn_steps_add_up_to_the_whole_on_average():
    row = rollouts(1, 1, seed=3, length=6)
    many = row.select(torch.zeros(20_000, dtype=torch.long))
    step, weight = choose_steps(many, STATES, stream(0, "steps"))
    value = torch.tensor([3.0, -1.0, 4.0, 1.0, -5.0, 9.0], dtype=torch.float64)
    estimate = (weight * value[step]).sum(1)
    spread = float(estimate.std()) / math.sqrt(len(estimate))
    assert float(estimate.mean()) == pytest.approx(float(value.sum()), abs=4 * spread)


def test_steps_at_which_the_model_was_sure_are_seldom_drawn():
    row = rollouts(1, 1, length=4)
    row.log_prob[:] = torch.tensor([0.0, -1e-6, -2.0, -1e-6, -2.0])
    step, weight = choose_steps(row.select(torch.zeros(1000, dtype=torch.long)), 1, stream(0, "steps"))
    assert float((step % 2 == 1).double().mean()) == pytest.approx(0.9, abs=0.03)  # the even share is 0.2
    assert float(weight.max()) == pytest.approx(1 / (0.2 / 4), rel=1e-4)


def test_rows_without_a_recorded_surprise_draw_all_steps_alike():
    row = rollouts(1, 1, length=4)
    row.log_prob.zero_()
    step, weight = choose_steps(row.select(torch.zeros(400, dtype=torch.long)), 1, stream(0, "steps"))
    assert torch.bincount(step.flatten()).tolist() == pytest.approx([100] * 4, abs=30)
    assert set(weight.flatten().tolist()) == {4.0}


def test_a_visited_state_hides_what_was_revealed_later_and_scores_its_step():
    states = visited(rollouts(1, 2, length=3), torch.tensor([0, 2]), mask_id=TOKENS)
    assert (states.tokens == TOKENS).tolist() == [[False, True, True, True], [False, False, False, True]]
    assert states.eligible.tolist() == [[False, True, False, False], [False, False, False, True]]


def test_prompts_whose_rewards_agree_are_left_out():
    mixed = rollouts(3, 2)
    mixed.reward[:] = torch.tensor([0.1, 0.1, 0.1, 0.2, 0.3, 0.3])
    assert Meter(mixed, H, stream(0, "meter")).rollouts.group.tolist() == [1, 1]
    mixed.reward[:] = 0.1
    assert Meter(mixed, H, stream(0, "meter")).read(policy(BASE), 4) is None


def test_end_tokens_that_were_filled_in_are_neither_drawn_nor_scored():
    """The last two of four tokens share a step of their own, without a recorded log π."""
    row = rollouts(1, 1, length=4)
    row = replace(row, revealed_at=torch.tensor([[-1, 0, 1, 2, 2]]))
    row.log_prob[:, 3:] = 0.0
    step, _ = choose_steps(row.select(torch.zeros(200, dtype=torch.long)), 2, stream(0, "steps"))
    assert set(step.flatten().tolist()) == {0, 1}
    assert not visited(row, torch.tensor([2]), TOKENS).eligible.any()


@pytest.mark.parametrize("prompts", [1, FEWEST - 1])
def test_few_prompts_leave_the_error_unknown(prompts):
    assert read(tilted(H), rollouts(prompts, 20))[1] == math.inf
    assert math.isfinite(read(tilted(H), rollouts(FEWEST, 20))[1])


def test_the_model_that_becomes_the_next_teacher_is_measured():
    """With an average, the student itself is not."""
    made = policy(tilted(H), ema=0.5)
    assert Meter(rollouts(20, 4), H, stream(0, "meter")).read(made, 64) == (0.0, 0.0)
    made.track()
    assert Meter(rollouts(20, 4), H, stream(0, "meter")).read(made, 64)[0] > 0.2


def test_two_readings_in_a_row_make_sure_of_the_absorbed_share():
    """The first overshoots, the second falls back; the last two agree."""
    meter = Meter(rollouts(40, 6), H, stream(0, "meter"))
    sure, readings = [meter.surely_absorbed], []
    for share in (1.5, 0.5, 1.0, 1.0):
        readings.append(meter.read(policy(tilted(share * H)), 64))
        sure.append(meter.surely_absorbed)
    lower = [share - error for share, error in readings]
    assert sure == [-math.inf, -math.inf, lower[1], lower[1], lower[2]]


def test_too_few_prompts_never_make_sure_of_it():
    meter = Meter(rollouts(FEWEST - 1, 6), H, stream(0, "meter"))
    for _ in range(2):
        meter.read(policy(tilted(H)), 64)
    assert meter.surely_absorbed == -math.inf


def test_a_phase_has_stalled_once_readings_rise_no_more():
    meter = Meter(rollouts(40, 6), H, stream(0, "meter"))
    stalled = []
    for share in (0.2, 0.4, 0.6, *[0.6] * PATIENCE):
        meter.read(policy(tilted(share * H)), 64)
        stalled.append(meter.has_stalled)
    assert stalled == [False] * (2 + PATIENCE) + [True]


def test_a_phase_that_has_absorbed_nothing_has_not_stalled():
    meter = Meter(rollouts(40, 6), H, stream(0, "meter"))
    for _ in range(5):
        meter.read(policy(BASE), 64)
    assert not meter.has_stalled


def test_a_restored_meter_reads_on_bit_for_bit():
    drawn = rollouts(10, 6)
    drawn = replace(drawn, log_ratio=torch.zeros(len(drawn)))  # as methods that weigh by it measure it
    meter = Meter(drawn, H, stream(0, "meter"))
    for share in (0.2, 0.4):
        meter.read(policy(tilted(share * H)), 64)
    again = Meter.restored(meter.state(), 0.0, H, stream(0, "meter"))
    assert again.read(policy(tilted(H)), 64) == meter.read(policy(tilted(H)), 64)
    assert all(torch.equal(a, b) for a, b in zip(again.ratios, meter.ratios, strict=True))
