"""Mixtures of experts: routing by hand, grouped products, adapters, four bits, and frozen routers."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch

import dtm
from dtm.errors import ConfigError
from dtm.models import LoRA, Policy, Transformer, TransformerConfig
from dtm.models.experts import Mixture, grouped_product, looped_product
from dtm.models.linears import position_weights
from dtm.models.merging import merged
from dtm.models.routing import Experts, route
from dtm.random import stream
from published import keywords


def network(**changes) -> Transformer:
    experts = Experts(**{"count": 6, "active": 2, "width": 16, "layers": (1,), "shared": 8} | changes)
    shape = TransformerConfig(
        vocab_size=11, mask_id=10, eos_id=0, width=32, layers=2, heads=4, ffn=48, experts=experts
    )
    return Transformer(shape, stream(0, "test"))


# ── routing ──────────────────────────────────────────────────────────────────────────────────────


def test_softmax_scores_are_of_all_experts_and_then_renormalised():
    logits = torch.tensor([[1.0, 2.0, 3.0, 4.0]])
    experts = Experts(count=4, active=2, width=8, layers=(0,), renormalised=False)
    plain, chosen = route(logits, None, experts)
    assert chosen.tolist() == [[3, 2]]
    torch.testing.assert_close(plain, logits.softmax(-1)[:, [3, 2]])
    weights, _ = route(logits, None, Experts(count=4, active=2, width=8, layers=(0,)))
    torch.testing.assert_close(weights, logits[:, [3, 2]].softmax(-1))


@pytest.mark.parametrize(("kind", "weights"), [("choice", [0.5, 0.75]), ("weight", [0.8, 0.75])])
def test_a_bias_changes_the_choice_and_where_asked_the_weights(kind, weights):
    logits = torch.tensor([[0.0, 0.0, torch.tensor(3.0).log(), 0.0]])
    bias = torch.tensor([0.3, 0.0, 0.0, 0.0])
    experts = Experts(count=4, active=2, width=8, layers=(0,), score="sigmoid", renormalised=False, bias=kind)
    found, chosen = route(logits, bias, experts)
    assert chosen.tolist() == [[0, 2]]
    torch.testing.assert_close(found, torch.tensor([weights]))


def test_groups_are_ranked_by_their_two_best_experts():
    """Expert 0 is the best of all, and its group is dropped: 0.9 + 0.1 < 0.6 + 0.5."""
    scores = torch.tensor([[0.9, 0.1, 0.6, 0.5, 0.55, 0.52]])
    experts = Experts(
        count=6, active=2, width=8, layers=(0,), score="sigmoid", groups=3, kept_groups=2, scale=2.0
    )
    weights, chosen = route(scores.logit(), None, experts)
    assert chosen.tolist() == [[2, 4]]
    torch.testing.assert_close(weights, 2 * torch.tensor([[0.6, 0.55]]) / 1.15)


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"active": 7}, "1 … 6 experts, not 7"),
        ({"groups": 4}, "groups must be equally large"),
        ({"groups": 6, "kept_groups": 6}, "a group needs two experts"),
        ({"groups": 3, "active": 3}, "3 experts cannot be chosen from 1 groups of 2"),
        ({"shared": 0}, "shared expert must be at least 1"),
        ({"width": 0}, "width of an expert must be at least 1"),
    ],
)
def test_impossible_mixtures_are_refused(changes, named):
    with pytest.raises(ConfigError, match=named):
        network(**changes)


# ── products ─────────────────────────────────────────────────────────────────────────────────────


def test_grouped_products_are_those_of_the_loop_with_gradients():
    """The kernel of GPUs also runs on a CPU; experts 1 and 3 get no row."""
    noise = stream(0, "rows")
    ends = torch.tensor([3, 3, 9, 9, 10])
    results = []
    for product in (grouped_product, looped_product):
        noise.manual_seed(0)
        x = torch.randn(10, 16, generator=noise).requires_grad_()
        weight = torch.randn(5, 8, 16, generator=noise).requires_grad_()
        y = product(x, weight, ends)
        (y * torch.randn(y.shape, generator=noise)).sum().backward()
        results.append((y, x.grad, weight.grad))
    for grouped, looped in zip(*results, strict=True):
        torch.testing.assert_close(grouped, looped, atol=1e-5, rtol=1e-5)


@pytest.mark.gpu
@pytest.mark.parametrize("compiled", [False, True])
def test_a_pass_on_a_gpu_is_that_on_the_cpu_with_gradients(compiled):
    """Grouped products in bfloat16 against the loop in float32, adapters above both."""
    tokens = torch.randint(0, 10, (4, 24), generator=stream(0, "tokens"))
    found = {}
    for device in ("cpu", "cuda"):
        policy = Policy(network(), lora=LoRA(rank=2))
        with torch.no_grad():
            for value in policy.trained():
                value.normal_(0, 0.2, generator=stream(0, "adapter"))
        student = policy.student.to(device)
        if compiled and device == "cuda":
            student.compile_blocks()
        masked = tokens.to(device)
        with torch.autocast(device, torch.bfloat16, enabled=device == "cuda"):
            log_pi = student(masked, None, masked == 3)
        log_pi[:, 5].sum().backward()
        gradient = student.blocks[0].attention.q.lora_B.weight.grad
        found[device] = log_pi.detach().float().cpu(), gradient.float().cpu()
    for ours, theirs in zip(found["cuda"], found["cpu"], strict=True):
        torch.testing.assert_close(ours, theirs, atol=5e-2, rtol=5e-2)


TRACED = """
import functools
import torch
from torch._dynamo.utils import counters
from dtm.models import Transformer, TransformerConfig, transformer
from dtm.models.routing import Experts

backend = functools.partial(torch.compile, backend="eager", dynamic=True)
transformer.fused = functools.cache(backend)
experts = Experts(count=6, active=2, width=16, layers=(0, 1), shared=8)
shape = TransformerConfig(
    vocab_size=11, mask_id=10, eos_id=0, width=32, layers=2, heads=4, ffn=48, experts=experts
)
plain, traced = (Transformer(shape, torch.Generator().manual_seed(0)) for _ in range(2))
traced.compile_blocks()
for rows in (2, 5):
    tokens = torch.arange(8).repeat(rows, 1)
    torch.testing.assert_close(traced.hidden(tokens), plain.hidden(tokens))
breaks = counters["graph_break"]
print(len(breaks), sum("Stack.forward" in reason for reason in breaks))
"""


def test_compiled_mixtures_leave_the_products_alone_to_eager_code():
    """In a process of its own, for the annotations that are checked in tests cannot be traced."""
    done = subprocess.run([sys.executable, "-c", TRACED], capture_output=True, text=True, timeout=120)
    assert done.stdout.split() == ["1", "1"], done.stderr


def test_a_mixture_is_the_weighted_sum_of_the_chosen_experts():
    mixture = network().blocks[1].experts
    x = torch.randn(2, 5, 32, generator=stream(0, "x"))
    found = mixture(x)
    for row, token in enumerate(x.flatten(0, 1)):
        weights, chosen = route(mixture.router(token)[None], None, mixture.experts)
        expected = torch.zeros(32)
        for weight, e in zip(weights[0], chosen[0], strict=True):
            gate, up = mixture.gate.weight[e] @ token, mixture.up.weight[e] @ token
            expected = expected + weight * (mixture.down.weight[e] @ (torch.nn.functional.silu(gate) * up))
        torch.testing.assert_close(found.flatten(0, 1)[row], expected, atol=1e-6, rtol=1e-4)


def test_tokens_do_not_depend_on_the_tokens_beside_them():
    mixture: Mixture = network().blocks[1].experts
    x = torch.randn(7, 32, generator=stream(0, "x"))
    torch.testing.assert_close(mixture(x)[2:3], mixture(x[2:3]), atol=1e-6, rtol=1e-5)


# ── training ─────────────────────────────────────────────────────────────────────────────────────


def test_a_policy_without_adapters_trains_all_but_the_router():
    policy = Policy(network(bias="choice"))
    names = {name for name, value in policy.student.named_parameters() if value.requires_grad}
    assert not any("router" in name or name.endswith("experts.bias") for name in names)
    assert any("experts.gate" in name for name in names)
    assert len(policy.trained()) == len(names)
    tokens = torch.full((2, 5), 10)
    policy.student(tokens, None, tokens == 10)[:, 3].sum().backward()
    assert all(value.grad is not None for value in policy.trained())


def test_adapters_change_neither_routers_nor_experts():
    model = network()
    chosen = {linear.name for linear in LoRA().resolve(model.linears(), model.family)}
    assert chosen == {"q", "k", "v", "out", "gate", "up", "down", "shared_gate", "shared_up", "shared_down"}
    with pytest.raises(ConfigError, match="no projection 'router'"):
        LoRA(targets=("router",)).resolve(model.linears(), model.family)


@pytest.mark.parametrize(
    ("family", "targets"),
    [
        ("sdar", "q_proj k_proj v_proj o_proj gate_proj up_proj down_proj"),
        ("sdar_moe", "q_proj k_proj v_proj o_proj"),
        ("llada2", "query_key_value dense gate_proj up_proj down_proj"),
    ],
)
def test_targets_may_be_the_names_of_the_hub(write_published, family, targets):
    model = dtm.load_model(write_published(family), **keywords(family))
    everything = LoRA().resolve(model.linears(), family)
    assert LoRA(targets=tuple(targets.split())).resolve(model.linears(), family) == everything


def test_a_merged_policy_computes_the_same():
    policy = Policy(network(), lora=LoRA(rank=2))
    with torch.no_grad():
        for value in policy.trained():
            value.normal_(0, 0.2, generator=stream(0, "adapter"))
    tokens = torch.randint(0, 10, (2, 6), generator=stream(0, "tokens"))
    torch.testing.assert_close(
        merged(policy.student).logits(tokens), policy.student.logits(tokens), atol=1e-5, rtol=1e-4
    )


def test_activation_checkpointing_changes_no_gradient():
    tokens, grads = torch.full((2, 6), 10), []
    for recompute in (0, 2):
        model = network()
        model.recompute = recompute
        model(tokens, None, tokens == 10)[:, 3].sum().backward()
        grads.append(model.blocks[1].experts.up.weight.grad)
    torch.testing.assert_close(*grads)


def test_active_experts_count_as_operations_and_all_as_weights():
    shape = network().config
    every = {linear.name: linear for linear in shape.linears()}
    assert every["expert_up"].weights == 6 * 32 * 16
    assert every["expert_up"].count == 6
    attention = 4 * 32 * 32
    computed, scored = position_weights(shape.linears(), 2)
    assert computed == 2 * attention - 32 * 32 + 3 * 32 * 48  # `out` of the last block is of its second half
    assert scored == 32 * 32 + 6 * 32 + 2 * 3 * 32 * 16 + 3 * 32 * 8


# ── four bits ────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("stacked", [False, True])
def test_experts_in_four_bits_are_near_the_weights_they_were_made_from(write_published, stacked):
    pytest.importorskip("bitsandbytes")
    folder = write_published("llada2", stacked, moe_intermediate_size=32)
    exact = dtm.load_model(folder, **keywords("llada2"))
    low = dtm.load_model(folder, nf4=True, **keywords("llada2"))
    mixture = low.blocks[1].experts
    assert mixture.router.weight.dtype == torch.float32
    assert torch.equal(mixture.router.weight, exact.blocks[1].experts.router.weight)
    found, wanted = mixture.up.full_weight(), exact.blocks[1].experts.up.weight
    assert found.shape == wanted.shape
    assert mixture.up.packed.nbytes == wanted.numel() // 2
    assert 0.01 < (found - wanted).abs().mean() / wanted.abs().mean() < 0.15
    policy = Policy(low, lora=LoRA(rank=2))
    tokens = torch.full((1, 8), low.mask_id)
    policy.student(tokens, None, tokens == low.mask_id)[:, 3].sum().backward()
    assert all(value.grad is not None for value in policy.trained())


def test_experts_too_small_for_a_block_of_scales_are_refused(write_published):
    pytest.importorskip("bitsandbytes")
    folder = write_published("sdar_moe", moe_intermediate_size=6, hidden_size=20)
    with pytest.raises(ConfigError, match="a multiple of 64 weights; one here has 120"):
        dtm.load_model(folder, nf4=True, **keywords("sdar_moe"))
