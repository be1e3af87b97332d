"""Declared linear layers: they are those of the model, and paths may have several indices."""

from __future__ import annotations

import re
from itertools import pairwise

import pytest
import torch
from torch import nn

from dtm.errors import ConfigError
from dtm.models import Denoiser, LoRA, Policy, Transformer, TransformerConfig
from dtm.models.adapters import adapted, adapter_weights
from dtm.models.families.base import Family
from dtm.models.families.llada import LLADA
from dtm.models.linears import Linear, expand, merge_groups, position_weights, replace_modules
from dtm.random import stream

SHAPES = [{}, {"kv_heads": 2, "qkv_bias": True}, {"head_width": 12, "kv_heads": 1, "qk_norm": True}]
EXPERT = {"indices": (range(1, 3), range(4)), "half": "feed", "active": 2}
ROUTED = (
    Linear(name="q", path="blocks.*.q", indices=(range(3),), inputs=8, outputs=8, half="attend"),
    Linear(name="up", path="blocks.*.up", indices=(range(1),), inputs=8, outputs=32, half="feed"),
    Linear(
        name="router", path="blocks.*.router", indices=(range(1, 3),), inputs=8, outputs=4, half="feed",
        adaptable=False,
    ),
    Linear(name="w1", path="blocks.*.experts.*.w1", inputs=8, outputs=16, input="w13", **EXPERT),
    Linear(name="w3", path="blocks.*.experts.*.w3", inputs=8, outputs=16, input="w13", **EXPERT),
    Linear(name="w2", path="blocks.*.experts.*.w2", inputs=16, outputs=8, **EXPERT),
)  # fmt: skip
"""Three blocks, the last two with a router and four experts, of which a position uses two."""


def transformer(**changes) -> Transformer:
    sizes = {"vocab_size": 11, "mask_id": 10, "eos_id": 0, "width": 32, "layers": 2, "heads": 4, "ffn": 48}
    return Transformer(TransformerConfig(**sizes | changes), stream(0, "test"))


@pytest.mark.parametrize("changes", SHAPES)
def test_the_transformer_declares_every_linear_layer_of_its_blocks_as_it_is(changes):
    model = transformer(**changes)
    found = {name: m for name, m in model.blocks.named_modules(prefix="blocks") if isinstance(m, nn.Linear)}
    declared = {path: linear for linear in model.linears() for path in linear.paths()}
    assert found.keys() == declared.keys()
    assert len(declared) == sum(linear.count for linear in model.linears())
    for path, linear in declared.items():
        assert found[path].weight.shape == (linear.outputs, linear.inputs)
        assert (found[path].bias is not None) == linear.bias
    assert sum(linear.weights for linear in model.linears()) == sum(m.weight.numel() for m in found.values())


def test_layers_are_grouped_by_the_input_that_they_share():
    groups = {path: [linear.name for linear in group] for path, group in merge_groups(ROUTED).items()}
    assert groups == {
        "blocks.*.q": ["q"],
        "blocks.*.up": ["up"],
        "blocks.*.router": ["router"],
        "blocks.*.experts.*.w13": ["w1", "w3"],
        "blocks.*.experts.*.w2": ["w2"],
    }


def test_of_experts_the_active_ones_are_multiplied_and_the_last_second_half_at_scored_positions():
    experts = 2 * 3 * 8 * 16
    assert position_weights(ROUTED, 3) == (3 * 64 + 8 * 32 + 8 * 4 + experts, 8 * 4 + experts)
    assert sum(linear.weights for linear in ROUTED) == 3 * 64 + 8 * 32 + 2 * 8 * 4 + 8 * 3 * 8 * 16


def test_a_pattern_needs_a_range_for_each_index():
    with pytest.raises(ConfigError, match=r"blocks\.\*\.experts\.\*\.w: 2 indices, and 1 ranges given"):
        Linear(name="w", path="blocks.*.experts.*.w", indices=(range(2),), inputs=1, outputs=1, half="feed")


def test_modules_are_replaced_at_every_path():
    model = nn.ModuleDict({"blocks": nn.ModuleList(nn.ModuleDict({"q": nn.Identity()}) for _ in range(3))})
    inner = Linear(name="q", path="blocks.*.q", indices=(range(1, 3),), inputs=1, outputs=1, half="attend")
    replace_modules(model, [inner], lambda old: nn.Sequential(old))
    assert [type(block["q"]) for block in model["blocks"]] == [nn.Identity, nn.Sequential, nn.Sequential]


def test_names_with_several_indices_have_their_place_on_the_hub():
    modules = {"blocks.*.experts.*.w1": "model.layers.*.mlp.experts.*.gate_proj", "norm": "model.norm"}
    family = Family(name="moe", model_type="moe", read=LLADA.read, modules=modules)
    assert family.hub_name("blocks.12.experts.3.w1") == "model.layers.12.mlp.experts.3.gate_proj"
    assert (
        family.hub_name("blocks.3.experts.12.w1.weight") == "model.layers.3.mlp.experts.12.gate_proj.weight"
    )
    assert family.hub_name("norm.weight") == "model.norm.weight"
    assert family.short_name("blocks.*.experts.*.w1") == "gate_proj"


class Routed(Denoiser):
    """A model of its own with the modules of ROUTED; all experts run, weighted by the router."""

    def __init__(self) -> None:
        super().__init__()
        self.vocab_size, self.mask_id, self.eos_id = 9, 8, 0
        self.embedding = nn.Embedding(9, 8)
        self.blocks = nn.ModuleList(nn.ModuleDict() for _ in range(3))
        for linear in ROUTED:
            for path in linear.paths():
                *parts, last = path.split(".")
                for here, below in pairwise(["", *(".".join(parts[: n + 1]) for n in range(len(parts)))]):
                    parent, name = self.get_submodule(here), below.rpartition(".")[2]
                    if name not in dict(parent.named_children()):
                        parent.add_module(name, nn.ModuleDict())
                self.get_submodule(".".join(parts)).add_module(last, nn.Linear(linear.inputs, linear.outputs))

    def linears(self) -> tuple[Linear, ...]:
        return ROUTED

    def hidden(self, tokens, attention=None):
        x = self.embedding(tokens)
        for block in self.blocks:
            x = x + block["q"](x).mean(1, keepdim=True)
            if "up" in block:
                x = x + block["up"](x)[..., :8]
            if "experts" in block:
                share = block["router"](x).softmax(-1)
                for number, expert in block["experts"].items():
                    y = expert["w2"](torch.sigmoid(expert["w1"](x)) * expert["w3"](x))
                    x = x + share[..., int(number), None] * y
        return x

    def head(self, rows):
        return rows @ self.embedding.weight.T


def test_any_model_that_declares_its_layers_can_have_adapters():
    torch.manual_seed(0)
    base, lora = Routed(), LoRA(rank=2)
    student = adapted(base, lora, stream(0, "adapter"))
    names = {name.rpartition(".lora_")[0] for name in adapter_weights(student)}
    assert names == {path for linear in ROUTED if linear.adaptable for path in linear.paths()}
    tokens = torch.arange(8).view(2, 4)
    assert torch.equal(student.hidden(tokens), base.hidden(tokens))
    policy = Policy(base, lora=LoRA(rank=2, targets=("w1", "w2")))
    policy.student.hidden(tokens).square().sum().backward()
    grown = [name for name, p in policy.student.named_parameters() if p.grad is not None and p.grad.any()]
    assert len(grown) == 2 * 4 * 2  # the B of two layers of four experts in two blocks
    assert all(re.fullmatch(r"blocks\.[12]\.experts\.[0-3]\.w[12]\.lora_B\.weight", name) for name in grown)


def test_a_layer_that_is_not_adaptable_and_a_preset_that_does_not_apply_are_refused():
    for target in ("router", "published"):
        with pytest.raises(
            ConfigError, match=rf"no projection '{target}' in a native model.*Valid: all, q, up"
        ):
            LoRA(targets=(target,)).resolve(ROUTED, "native")


def test_all_indices_are_expanded():
    assert expand("a.*.b.*", (range(2), range(2, 4))) == ["a.0.b.2", "a.0.b.3", "a.1.b.2", "a.1.b.3"]
