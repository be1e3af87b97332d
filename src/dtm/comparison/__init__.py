"""`dtm compare`: several objectives on the same base, prompts, decoder, evaluator and budget."""
