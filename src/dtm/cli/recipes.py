"""`dtm recipes`: list recipes, or show one as YAML."""

from __future__ import annotations

from dtm.cli.parse import first_line, make_parser
from dtm.errors import ConfigError, nearest


def recipes(arguments: list[str]) -> int:
    """List the recipes, or show one as YAML."""
    parser = make_parser("recipes", "List the recipes, or print one as YAML: a starting point for --config.")
    parser.add_argument("action", nargs="?", choices=["show"], help="print a recipe")
    parser.add_argument("name", nargs="?", help="its name")
    options = parser.parse_args(arguments)

    from dtm.recipes import RECIPES, recipe

    if options.action is None:
        width = max(map(len, RECIPES))
        for name, make in RECIPES.items():
            print(f"{name:<{width}}  {first_line(make.__doc__)}")
        return 0
    if options.name is None:
        raise ConfigError(f"which recipe? dtm recipes show NAME. {nearest('', RECIPES)}")
    from dtm.config.serialise import to_yaml

    print(to_yaml(recipe(options.name)), end="")
    return 0
