"""Losses of the iterating methods against formulas by hand; test_contract.py has what all methods share."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from batches import END, PHASE, PROMPT, VOCAB, WIDTH, Free, batch, build_method, moved, rollouts
from torch import nn

from dtm.methods.diffu_grpo import DiffuGRPOConfig
from dtm.methods.gdpo import GDPOConfig
from dtm.methods.spg import SPGConfig
from dtm.methods.trace_rl import TraceRLConfig
from dtm.methods.unigrpo import UniGRPOConfig
from dtm.methods.vrpo import VRPO, VRPOConfig
from dtm.methods.wd1 import WD1Config
from dtm.models import Policy

SETTINGS = {
    "diffu-grpo": DiffuGRPOConfig(),
    "diffu-grpo, no kl": DiffuGRPOConfig(beta=0.0, advantage="loo"),
    "wd1": WD1Config(),
    "wd1, published": WD1Config(preset="published"),
    "unigrpo": UniGRPOConfig(),
    "spg, mix": SPGConfig(),
    "spg, eubo": SPGConfig(negative="eubo", draws=3, preset="published"),
    "spg, elbo": SPGConfig(negative="elbo", masks="random"),
    "spg, zero": SPGConfig(negative="zero", masks="all", scored="active"),
    "vrpo": VRPOConfig(),
    "vrpo, per token": VRPOConfig(per_token=True, sft=0.0, draws=3),
    "gdpo": GDPOConfig(),
    "gdpo, published": GDPOConfig(preset="published", beta=0.1),
    "gdpo, paper": GDPOConfig(ratio="sequence", nodes=2),
    "trace-rl": TraceRLConfig(merged=2),
    "trace-rl, published": TraceRLConfig(preset="published", merged=3),
}


each = pytest.mark.parametrize("settings", SETTINGS.values(), ids=SETTINGS.keys())


# ── gradients where the policies agree, by hand ───────────────────────────────────────────────────


def token_share(settings, states, credit):
    """diffu-GRPO: A_i over all tokens of the batch."""
    return credit[:, None, None] / (states.batch_length / states.draws)


def row_share(settings, states, credit):
    """UniGRPO: A_i over the row's masked positions and the rows."""
    scored = states.eligible.view(states.sequences, 1, WIDTH)
    return credit[:, None, None] / scored.sum(-1, keepdim=True) / states.sequences


def wd1_share(settings, states, credit):
    length = 1 if settings.preset == "published" else states.length
    return credit[:, None, None] / (states.sequences * length)


def bound_share(states):
    """∂ ELBO / ∂ log π: the row's weight over the number of masks."""
    return states.row_weight.view(states.sequences, states.draws, 1) / states.draws


def gdpo_share(settings, states, credit):
    """The ratio is 1, so E_θ/n counts, or E_θ with the term divided by n: the same."""
    length = states.row_length.view(states.sequences, states.draws, 1)
    return credit[:, None, None] * bound_share(states) / length / states.sequences


def trace_share(settings, states, credit):
    scored = states.eligible.view(states.sequences, states.draws, WIDTH)
    count = scored.sum(-1, keepdim=True)
    segments = (count > 0).sum(1, keepdim=True)
    return credit[:, None, None] / count.clamp(min=1) / segments / states.sequences


def vrpo_share(settings, states, credit):
    """σ(0) = 1/2 on either side, and the likelihood of the better one."""
    pairs, length = states.sequences / 2, states.row_length.view(states.sequences, states.draws, 1)
    preference = settings.beta / 2 * credit[:, None, None] / (length if settings.per_token else 1)
    sft = settings.sft * (credit > 0)[:, None, None] / length
    return (preference + sft) * bound_share(states) / pairs


def spg_share(settings, states, credit, log_pi):
    """Above the mean the bound's weights; below, those of the power mean: a softmax over the masks."""
    tokens, rows = states.batch_length / states.draws, (states.sequences, states.draws, WIDTH)
    scored = states.eligible.view(rows)
    hit = log_pi.gather(-1, states.clean[..., None]).squeeze(-1).view(rows)
    exponent = settings.upper_beta * hit + states.row_weight.view(*rows[:2], 1).log()
    power = exponent.masked_fill(~scored, -1e30).softmax(1)
    length = states.row_length.view(*rows[:2])[:, :1, None]
    upper = power * length / scored.any(1).sum(-1)[:, None, None]
    below = {
        "elbo": bound_share(states).expand(rows),
        "eubo": upper,
        "mix": settings.mix * upper + (1 - settings.mix) * bound_share(states),
        "zero": torch.zeros(rows),
    }[settings.negative]
    return credit[:, None, None] * torch.where(credit[:, None, None] > 0, bound_share(states), below) / tokens


SHARES = {
    DiffuGRPOConfig: token_share,
    WD1Config: wd1_share,
    UniGRPOConfig: row_share,
    VRPOConfig: vrpo_share,
    GDPOConfig: gdpo_share,
    TraceRLConfig: trace_share,
}


@each
def test_where_the_policies_agree_the_gradient_is_the_share_times_the_residual(settings):
    """share · (π − e) at each scored position: a plain policy gradient, whatever is clipped or penalised."""
    objective, states, weights = batch(settings)
    policy = Policy(Free(len(states)), keep_base=True)
    objective.loss(policy, states, weights, PHASE).value.backward()
    logits = policy.student.logits.detach()[..., :VOCAB]
    if isinstance(settings, SPGConfig):
        share = spg_share(settings, states, weights.credit, logits.log_softmax(-1))
    else:
        share = SHARES[type(settings)](settings, states, weights.credit)
    share = (share * torch.ones(states.sequences, states.draws, WIDTH)).view(-1, WIDTH, 1)
    residual = logits.softmax(-1) - nn.functional.one_hot(states.clean, VOCAB)
    expected = share * residual * states.eligible[..., None]
    torch.testing.assert_close(policy.student.logits.grad[..., :VOCAB], expected, atol=1e-7, rtol=1e-4)


@pytest.mark.parametrize("name", ["diffu-grpo", "unigrpo", "gdpo", "trace-rl"])
def test_where_the_policies_agree_no_ratio_is_clipped_and_the_loss_is_minus_the_mean_advantage(name):
    objective, states, weights = batch(SETTINGS[name])
    loss = objective.loss(Policy(Free(1), keep_base=True), states, weights, PHASE)
    assert float(loss.metrics["clipped"]) == 0
    assert float(loss.metrics.get("kl", torch.tensor(0.0))) == 0
    mean = weights.credit.mean()
    if name == "diffu-grpo":
        mean = (weights.credit * states.row_length).sum() / states.row_length.sum()
    assert loss.value.item() == pytest.approx(-float(mean), abs=1e-6)


def test_where_the_policies_agree_a_preference_costs_log_two():
    objective, states, weights = batch(VRPOConfig(sft=0.0))
    loss = objective.loss(Policy(Free(1), keep_base=True), states, weights, PHASE)
    assert loss.value.item() == pytest.approx(0.693147, abs=1e-5)


# ── away from there ───────────────────────────────────────────────────────────────────────────────


def test_diffu_grpo_by_hand():
    """Position by position, in the order of the formula."""
    settings = SETTINGS["diffu-grpo"]
    objective, states, weights = batch(settings)
    policy = moved(Policy(Free(len(states)), keep_base=True))
    found = objective.loss(policy, states, weights, PHASE).value.item()
    models = [policy.student, policy.teacher, policy.base]
    theta, old, reference = (m.logits.detach()[..., :VOCAB].log_softmax(-1) for m in models)
    total = 0.0
    for row, k in states.eligible.nonzero().tolist():
        x, advantage = int(states.clean[row, k]), float(weights.credit[row])
        ratio = float((theta[row, k, x] - old[row, k, x]).exp())
        d = reference[row, k, x] - theta[row, k, x]
        total -= min(ratio * advantage, min(max(ratio, 0.5), 1.5) * advantage)
        total += 0.04 * float(d.exp() - d - 1)
    assert found == pytest.approx(total / int(states.row_length.sum()), rel=1e-6)


def log_laws(policy, states):
    """log π_θ, log π_a and log π_0 of the clean token at every position."""
    for model in (policy.student, policy.teacher, policy.base):
        log_pi = model.logits.detach()[..., :VOCAB].log_softmax(-1)
        yield log_pi.gather(-1, states.clean[..., None]).squeeze(-1)


@pytest.mark.parametrize("preset", ["fixed", "published"])
def test_trace_rl_by_hand(preset):
    """Means over tokens, segments and sequences; as published the KL is summed over the tokens."""
    settings = TraceRLConfig(preset=preset, merged=2, beta=0.3)
    objective, states, weights = batch(settings)
    policy = moved(Policy(Free(len(states)), keep_base=True))
    theta, old, _ = log_laws(policy, states)
    total = 0.0
    for row, scored in enumerate(states.eligible):
        sequence, count = row // states.draws, int(scored.sum())
        own = states.eligible.view(states.sequences, states.draws, WIDTH)[sequence]
        segments, advantage = int(own.any(1).sum()), float(weights.credit[sequence])
        for k in scored.nonzero().flatten().tolist():
            ratio, d = float((theta - old)[row, k].exp()), float((old - theta)[row, k])
            gain = min(ratio * advantage, min(max(ratio, 0.8), 1.2) * advantage)
            kl = 0.3 * (math.exp(d) - d - 1)
            total += (-gain / count + kl / (1 if preset == "published" else count)) / segments
    found = objective.loss(policy, states, weights, PHASE).value.item()
    assert found == pytest.approx(total / states.sequences, rel=1e-5)


@pytest.mark.parametrize("ratio", ["per-token", "sequence"])
def test_gdpo_by_hand(ratio):
    """Sequence by sequence; the KL is of bounds per token in either form."""
    objective, states, weights = batch(GDPOConfig(ratio=ratio, beta=0.3, epsilon=0.1))
    policy = moved(Policy(Free(len(states)), keep_base=True))
    rows = states.row_weight[:, None] * states.eligible
    bounds = [(rows * law).sum(1).view(-1, states.draws).mean(1).tolist() for law in log_laws(policy, states)]
    total = 0.0
    for theta, old, base, n, advantage in zip(
        *bounds, states.row_length[:: states.draws].tolist(), weights.credit.tolist(), strict=True
    ):
        rho = math.exp((theta - old) / (n if ratio == "per-token" else 1))
        gain = min(rho * advantage, min(max(rho, 0.9), 1.1) * advantage)
        d = (base - theta) / n
        total += -gain / (1 if ratio == "per-token" else n) + 0.3 * (math.exp(d) - d - 1)
    found = objective.loss(policy, states, weights, PHASE).value.item()
    assert found == pytest.approx(total / states.sequences, rel=1e-5)


def test_the_sharpness_of_wd1_multiplies_its_advantages():
    """Rewards 0 and 1 at ψ = 3: K (w⁺ − w⁻) = 2 tanh(3/2) of the better one."""
    credit = build_method(WD1Config(psi=3.0)).credit(torch.tensor([0.0, 1.0]), torch.tensor([0, 0]))
    assert credit.tolist() == pytest.approx([-2 * math.tanh(1.5), 2 * math.tanh(1.5)])


def test_a_preference_is_indifferent_to_the_order_of_its_pair():
    objective, states, weights = batch(VRPOConfig())
    policy = moved(Policy(Free(1), keep_base=True))
    swap = torch.arange(states.sequences).view(-1, 2).flip(1).flatten()
    value = objective.loss(policy, states, weights, PHASE).value
    again = objective.loss(policy, states.select(swap), weights.select(swap), PHASE).value
    torch.testing.assert_close(again, value)


def test_pairs_leave_out_ties_and_all_in_between():
    _, _, weights = batch(VRPOConfig())
    assert VRPO.pairs
    assert weights.group.tolist() == [0, 0, 2, 2, 3, 3]
    assert weights.credit.view(-1, 2).sum(1).tolist() == [0, 0, 0]
    best = weights.reward[weights.credit > 0]
    assert (best > weights.reward[weights.credit < 0]).all()


def test_the_clip_stops_the_gradient_of_a_ratio_that_has_left():
    settings = DiffuGRPOConfig(beta=0.0, epsilon=0.01)
    objective, states, weights = batch(settings)
    policy = moved(Policy(Free(len(states))))
    loss = objective.loss(policy, states, weights, PHASE)
    loss.value.backward()
    gone = (policy.student.logits.grad[states.eligible] == 0).all(1).double()
    tied = (weights.credit == 0)[states.row].double()
    assert float((gone - tied).sum() / int(states.batch_length)) == pytest.approx(
        float(loss.metrics["clipped"])
    )
    assert 0.2 < float(loss.metrics["clipped"]) < 0.8


def test_published_gdpo_scores_what_follows_the_end():
    _, fixed, _ = batch(GDPOConfig())
    _, published, _ = batch(GDPOConfig(preset="published"))
    assert not fixed.eligible[(fixed.clean == END)].all()
    assert (published.row_length == WIDTH - PROMPT).all()
    assert fixed.row_length[::9].tolist() == [4] * 4  # rows 0, 3, 6, 9 end after four tokens


def test_wd1_over_the_buffer_weighs_all_prompts_together():
    drawn = rollouts()
    credit = build_method(WD1Config(over="buffer")).credit(drawn.reward, drawn.group)
    assert float(credit.sum()) == pytest.approx(0, abs=1e-5)
    within = build_method(WD1Config()).credit(drawn.reward, drawn.group)
    assert not torch.allclose(credit, within)


def test_a_student_that_has_no_base_says_what_it_needs():
    objective, states, weights = batch(VRPOConfig())
    with pytest.raises(ValueError, match="keep_base=True"):
        objective.loss(Policy(Free(1)), states, replace(weights), PHASE)
