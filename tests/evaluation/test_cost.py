"""What tuning costs: KL to the base and the bound on held-out instructions."""

from __future__ import annotations

import pytest
import torch

from checkpoints import chatml_tokenizer
from dtm.evaluation.cost import DRAWS, HELD_OUT_INSTRUCTIONS, bound, divergence, instructions, mean_loss
from dtm.masking import MaskCount
from dtm.models import Transformer, TransformerConfig
from dtm.records import Sequences
from dtm.tasks.corpus.general import save_rows
from dtm.tasks.corpus.part import Example
from dtm.tasks.language.tokenizer import Chat

SHAPE = TransformerConfig(vocab_size=7, mask_id=6, eos_id=0, width=8, layers=1, heads=2, ffn=8)


def model(seed: int) -> Transformer:
    made = Transformer(SHAPE, torch.Generator().manual_seed(seed))
    with torch.no_grad():
        for parameter in made.parameters():
            parameter.mul_(8)
    return made.eval()


@pytest.fixture
def drawn() -> Sequences:
    tokens = torch.randint(1, 6, (40, 5), generator=torch.Generator().manual_seed(0))
    return Sequences(tokens, torch.ones_like(tokens, dtype=torch.bool), torch.arange(5).expand(40, 5) >= 2)


def test_a_model_has_no_divergence_from_itself_and_some_from_another(drawn):
    assert divergence(model(0), model(0), drawn, MaskCount()) == 0
    assert divergence(model(0), model(1), drawn, MaskCount()) > 0.01


def test_the_divergence_of_one_position_is_the_kl_of_its_two_distributions(drawn):
    """With a single completion position there is one masked state."""
    single = Sequences(drawn.tokens[:, :3], drawn.attention[:, :3], drawn.is_completion[:, :3])
    masked = single.tokens.clone()
    masked[:, 2] = SHAPE.mask_id
    with torch.no_grad():
        p, q = (each(masked, None, single.is_completion) for each in (model(0), model(1)))
        wanted = float((p.exp() * (p - q)).sum(-1).mean())
    assert divergence(model(0), model(1), single, MaskCount()) == pytest.approx(wanted, rel=1e-5)


def test_the_masks_of_a_cost_differ_from_draw_to_draw(drawn):
    """Over eight draws of forty rows every position is scored, and no two draws are alike."""
    seen = []

    def loss(states):
        seen.append(states.eligible)
        return torch.tensor(1.0)

    assert mean_loss(loss, drawn, MaskCount(), SHAPE.mask_id) == pytest.approx(1.0)
    assert len({str(each.tolist()) for each in seen}) == DRAWS


def test_the_bound_of_a_uniform_model_is_the_entropy_of_a_guess(drawn):
    uniform = Transformer(SHAPE, torch.Generator().manual_seed(0))
    with torch.no_grad():
        for parameter in uniform.parameters():
            parameter.zero_()
    assert bound(uniform, drawn, MaskCount()) == pytest.approx(3 * torch.log(torch.tensor(6.0)).item())


def test_instructions_beside_a_model_are_read_as_sequences(tmp_path):
    chat = Chat(chatml_tokenizer())
    assert instructions(tmp_path, chat, 0, None) is None
    save_rows([Example.of("the sum", "sum the")], tmp_path / HELD_OUT_INSTRUCTIONS)
    found = instructions(tmp_path, chat, 0, 32)
    assert found is not None
    (row,) = found.tokens.tolist()
    begin = int(found.is_completion[0].nonzero()[0])
    assert begin % 32 == 0
    assert chat.read(row[begin : begin + len(chat.encode(["sum the"])[0])]) == "sum the"
