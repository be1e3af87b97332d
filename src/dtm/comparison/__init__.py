"""`dtm compare`: several methods on the same base, prompts, decoder, evaluator and budget."""
