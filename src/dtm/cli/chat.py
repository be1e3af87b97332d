"""`dtm chat`: a conversation with a model, which shows each answer while it is decoded."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from dtm.cli.asking import Answer, Speaker, add_options, find_source
from dtm.cli.parse import make_parser, seed

if TYPE_CHECKING:
    from rich.console import Console

NEW, QUIT = "/new", "/quit"
HINT = f"{NEW} begins a new conversation, {QUIT} or Ctrl-D ends."


def chat(arguments: list[str]) -> int:
    """Chat with a model and watch how it decodes its answers."""
    parser = make_parser(
        "chat",
        "Chat with a model: write a line, and watch how the answer is decoded. The model reads the whole\n"
        f"conversation. {HINT} Lines may also come from a file or a pipe.",
    )
    parser.add_argument("model", metavar="MODEL_OR_RUN", help="a run's folder, or a model's folder or name")
    parser.add_argument(
        "--base",
        action="store_true",
        help="show the answers of the tuned run's base model too; each has its own conversation",
    )
    parser.add_argument("--seed", type=seed, default=0, help="seed of the draws (default: 0)")
    add_options(parser.add_argument_group("answers").add_argument)
    options = parser.parse_args(arguments)

    from rich.console import Console

    source = find_source(options)
    found = {"base": source.untuned(), "tuned": source} if options.base else {"": source}
    talks = {name: Conversation(Speaker.load(each, options)) for name, each in found.items()}
    console = Console()
    if sys.stdin.isatty():
        console.print(HINT, style="dim", highlight=False)
    for number, line in enumerate(_lines()):
        if line == QUIT:
            break
        if line == NEW:
            for talk in talks.values():
                talk.messages.clear()
        elif line.startswith("/"):
            console.print(f"no command {line}: {HINT}", highlight=False, markup=False)
        else:
            _show(
                {name: talk.say(line, options.seed + number) for name, talk in talks.items()}, talks, console
            )
    return 0


@dataclass(frozen=True, slots=True)
class Conversation:
    """A model and the messages of its conversation."""

    speaker: Speaker
    messages: list[dict[str, str]] = field(default_factory=list)

    def say(self, line: str, seed: int) -> Answer:
        """Add the user's line and the model's answer to the conversation; return the answer."""
        self.messages.append({"role": "user", "content": line})
        answer = self.speaker.answer(self.messages, seed)
        self.messages.append({"role": "assistant", "content": answer.text})
        return answer


def _lines() -> Iterator[str]:
    """Yield the user's lines that are not empty, until the end of the input."""
    if not sys.stdin.isatty():
        yield from (line.strip() for line in sys.stdin if line.strip())
        return
    import contextlib

    with contextlib.suppress(ImportError):
        import readline  # noqa: F401, arrow keys edit the line

    while True:
        try:
            line = input("> ").strip()
        except EOFError:
            print()
            return
        if line:
            yield line


def _show(answers: dict[str, Answer], talks: dict[str, Conversation], console: Console) -> None:
    """Animate the decoding of the answers on a terminal; otherwise print them."""
    from dtm.report.denoising import show, show_together

    read = next(iter(talks.values())).speaker.subject.chat.read
    if not console.is_terminal:
        for name, answer in answers.items():
            label = f"{name}: " if name else ""
            console.print(f"{label}{answer.text}", highlight=False, markup=False, soft_wrap=True)
    elif len(answers) == 1:
        show(next(iter(answers.values())).frames, read, console)
    else:
        show_together({name: answer.frames for name, answer in answers.items()}, read, console)
