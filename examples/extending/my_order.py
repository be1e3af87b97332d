# examples/extending/my_order.py
"""An order of revealing: the highest scores are revealed first."""

import dtm


class LeastCertain:
    """Reveal the flattest posterior first."""

    reads_posterior = True  # False saves the head at positions that are not revealed
    exact = True  # a function of x_t alone samples the model's law at one token per step

    def score(self, log_pi, drawn, noise):
        """Scores of N candidates from their log-probabilities [N, V], drawn tokens and uniform noise."""
        return -log_pi.amax(-1)


decoder = dtm.Decoder(order=LeastCertain(), block=8)
