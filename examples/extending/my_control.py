# examples/extending/my_control.py
"""A control variate for c-dtm: c̄ for each row of a batch, in units of the mean weight."""


def fading(states, weights, phase):
    """Go from the best constant to 0 as fewer positions are masked.

    It may depend on x_t (`states.tokens`, `states.eligible`), the phase, and the prompt's *other* completions
    (`weights.peers`). It must not read the row's own `log_weight` or `clean` tokens: that biases the target.
    """
    masked_share = states.eligible.sum(1) / states.length
    return phase.control * masked_share
