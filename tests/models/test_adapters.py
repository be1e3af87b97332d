"""Adapters over one base: what is shared, what learns, what never drops out, and which names are known."""

from __future__ import annotations

import pytest
import torch

import dtm
from dtm.errors import CheckpointError, ConfigError
from dtm.models import LoRA, Policy, Transformer, TransformerConfig
from dtm.models.adapters import adapted, adapter_weights, load_adapter_weights
from dtm.random import stream
from dtm.records import MaskedStates
from dtm.verify.tabular import Tabular

MASK = 18
SMALL = LoRA(rank=4, alpha=8.0)
LINEARS = TransformerConfig(vocab_size=19, mask_id=MASK, eos_id=0).linears()


@pytest.fixture
def base(write_hub) -> Transformer:
    return dtm.load_model(write_hub("llada"))


def states() -> MaskedStates:
    clean = torch.randint(2, MASK, (4, 8), generator=stream(0, "clean"))
    eligible = torch.arange(8).expand(4, 8) >= 5
    tokens = clean.masked_fill(eligible, MASK)
    length = torch.full((4,), 3)
    return MaskedStates(tokens, clean, None, eligible, torch.ones(4), length, 3, 4, length.sum())


def train(policy: Policy, steps: int = 1) -> None:
    optimizer = torch.optim.SGD(policy.trained(), lr=0.5)
    policy.student.train()
    for _ in range(steps):
        batch = states()
        log_pi = policy.log_pi(batch)
        loss = -log_pi.gather(1, batch.clean[batch.eligible][:, None]).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    policy.student.eval()


def test_the_three_models_share_every_weight_of_the_base(base):
    policy = Policy(base, ema=0.5, lora=SMALL)
    addresses = {parameter.data_ptr() for parameter in base.parameters()}
    for model in (policy.student, policy.teacher, policy.average):
        own = {p.data_ptr() for name, p in model.named_parameters() if ".lora_" not in name}
        assert own == addresses
    adapters = [
        p for m in (policy.student, policy.teacher, policy.average) for p in adapter_weights(m).values()
    ]
    assert len({p.data_ptr() for p in adapters}) == len(adapters) == 3 * 2 * 7 * 2


def test_every_model_starts_as_pi_0(base):
    before = base(states().tokens, None, states().eligible)
    policy = Policy(base, ema=0.5, lora=SMALL)
    for log_pi in (policy.log_pi, policy.log_pi_a, policy.log_pi_0):
        assert torch.equal(log_pi(states()), before)
    start = adapter_weights(policy.student)
    assert all(value.any() == name.endswith("lora_A.weight") for name, value in start.items())


def test_a_step_changes_the_student_alone(base):
    policy = Policy(base, lora=SMALL)
    weights = {name: value.clone() for name, value in base.state_dict().items()}
    start = policy.log_pi_0(states())
    train(policy)
    assert (policy.log_pi(states()) - start).abs().max() > 1e-3
    assert torch.equal(policy.log_pi_a(states()), start)
    assert torch.equal(policy.log_pi_0(states()), start)
    assert all(torch.equal(value, weights[name]) for name, value in base.state_dict().items())


def test_gradients_fall_on_the_adapter_alone(base):
    policy = Policy(base, lora=SMALL)
    policy.log_pi(states()).square().mean().backward()
    with_gradient = {name for name, p in policy.student.named_parameters() if p.grad is not None}
    assert with_gradient == {name for name, _ in policy.student.named_parameters() if ".lora_" in name}
    assert [p for p in policy.student.parameters() if p.requires_grad] == policy.trained()
    assert not any(p.requires_grad for model in (policy.teacher, base) for p in model.parameters())


def test_promotion_makes_the_student_the_teacher_and_leaves_pi_0(base):
    policy = Policy(base, lora=SMALL)
    start = policy.log_pi_0(states())
    train(policy)
    policy.promote()
    assert torch.equal(policy.log_pi_a(states()), policy.log_pi(states()))
    promoted = policy.log_pi_a(states())
    train(policy)  # and they are still two models
    assert torch.equal(policy.log_pi_a(states()), promoted)
    assert not torch.equal(policy.log_pi(states()), promoted)
    assert torch.equal(policy.log_pi_0(states()), start)


def test_the_average_follows_and_is_what_is_promoted(base):
    policy = Policy(base, ema=0.75, lora=SMALL)
    before = {name: value.clone() for name, value in adapter_weights(policy.student).items()}
    train(policy)
    after = {name: value.clone() for name, value in adapter_weights(policy.student).items()}
    policy.track()
    policy.promote()
    for model in (policy.student, policy.teacher, policy.average):
        for name, value in adapter_weights(model).items():
            torch.testing.assert_close(value, 0.75 * before[name] + 0.25 * after[name])


def test_dropout_acts_in_the_training_student_and_nowhere_else(base):
    policy = Policy(base, ema=0.5, lora=LoRA(rank=4, alpha=8.0, dropout=0.5))
    train(policy, 2)
    policy.track()
    policy.promote()
    policy.student.train()
    assert not torch.equal(policy.log_pi(states()), policy.log_pi(states()))
    for model in (policy.teacher, policy.average, policy.base):
        model.train()  # even where someone forgets
        assert not any(isinstance(module, torch.nn.Dropout) for module in model.modules())
    assert torch.equal(policy.log_pi_a(states()), policy.log_pi_a(states()))
    policy.student.eval()
    assert torch.equal(policy.log_pi(states()), policy.log_pi(states()))


def test_an_adapter_adds_its_scaled_product(base):
    model = adapted(base, LoRA(rank=4, alpha=8.0, targets=("up",)), stream(0, "a"))
    weights = adapter_weights(model)
    for value in weights.values():
        value.normal_(generator=stream(1, "b"))
    x = torch.randn(3, 32, generator=stream(2, "x"))
    a, b = weights["blocks.1.up.lora_A.weight"], weights["blocks.1.up.lora_B.weight"]
    expected = base.blocks[1].up(x) + 2.0 * x @ a.T @ b.T
    torch.testing.assert_close(model.blocks[1].up(x), expected)


def test_initial_adapters_follow_their_generator_alone(base):
    torch.manual_seed(1)
    state = torch.get_rng_state()
    first = adapter_weights(adapted(base, SMALL, stream(3, "a")))
    assert torch.equal(torch.get_rng_state(), state)
    torch.manual_seed(2)
    again, other = (adapter_weights(adapted(base, SMALL, stream(seed, "a"))) for seed in (3, 4))
    assert all(torch.equal(first[name], again[name]) for name in first)
    assert not torch.equal(first["blocks.0.up.lora_A.weight"], other["blocks.0.up.lora_A.weight"])


def test_adapters_of_a_half_precision_base_are_full_precision(write_hub):
    # Not run: some CPUs have no bfloat16 arithmetic.
    policy = Policy(dtm.load_model(write_hub("dream", dtype=torch.bfloat16)), lora=SMALL)
    assert {parameter.dtype for parameter in policy.trained()} == {torch.float32}


def test_a_policy_gives_and_takes_its_weights(base):
    policy, other = Policy(base, lora=SMALL), Policy(base, lora=SMALL, generator=stream(9, "x"))
    train(policy)
    assert all(".lora_" in name for name in policy.weights(policy.student))
    other.load_weights(other.student, policy.weights(policy.student))
    assert torch.equal(other.log_pi(states()), policy.log_pi(states()))


def test_a_full_copy_keeps_pi_0_where_asked(base):
    policy = Policy(base, keep_base=True)
    start = policy.log_pi_0(states())
    train(policy)
    assert torch.equal(policy.log_pi_0(states()), start)
    assert not torch.equal(policy.log_pi(states()), start)
    with pytest.raises(ConfigError, match="keep_base=True"):
        Policy(base).log_pi_0(states())


# ── names ────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("family", "targets", "expected"),
    [
        ("llada", ("all",), ("q", "k", "v", "out", "gate", "up", "down")),
        ("dream", ("all",), ("q", "k", "v", "out", "gate", "up", "down")),
        ("llada", ("published",), ("q", "k", "v", "up")),
        ("llada", ("attn_out", "ff_proj", "ff_out"), ("out", "gate", "down")),
        ("dream", ("o_proj", "gate_proj", "down_proj"), ("out", "gate", "down")),
        ("llada", ("up", "q_proj", "q"), ("q", "up")),
        ("native", ("q", "down"), ("q", "down")),
    ],
)
def test_targets_are_known_by_native_and_hub_names(family, targets, expected):
    assert tuple(linear.name for linear in LoRA(targets=targets).resolve(LINEARS, family)) == expected


@pytest.mark.parametrize(
    ("family", "name"),
    [("llada", "o_proj"), ("llada", "gate_proj"), ("dream", "attn_out"), ("native", "q_proj")],
)
def test_a_target_that_does_not_exist_lists_those_that_do(write_hub, family, name):
    with pytest.raises(
        ConfigError, match=rf"no projection '{name}' in a {family} model.*Valid:.*published, q"
    ):
        LoRA(targets=("q", name)).resolve(LINEARS, family)


def test_the_default_adapts_seven_projections_of_every_block_and_not_the_head(base):
    names = {name.rsplit(".", 2)[0] for name in adapter_weights(adapted(base, SMALL))}
    assert len(names) == 14
    assert all(name.startswith("blocks.") for name in names)


def test_a_wrong_adapter_tensor_is_named(base):
    model = adapted(base, SMALL)
    weights = adapter_weights(model)
    with pytest.raises(CheckpointError, match=r"misses tensor 'blocks\.0\.up\.lora_A\.weight'"):
        load_adapter_weights(model, {k: v for k, v in weights.items() if k != "blocks.0.up.lora_A.weight"})
    with pytest.raises(CheckpointError, match=r"'blocks\.0\.up\.lora_A\.weight' is \(1, 1\), not \(4, 32\)"):
        load_adapter_weights(model, weights | {"blocks.0.up.lora_A.weight": torch.zeros(1, 1)})


def test_adapters_of_a_model_without_declared_layers_are_refused():
    with pytest.raises(ConfigError, match=r"Tabular\.linears\(\) is empty"):
        Policy(Tabular(torch.zeros(9, 2, 2)), lora=SMALL)
