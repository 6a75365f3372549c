"""Complex numbers as pairs of real tensors, for engines that know real numbers only.

`parts` holds a pair and writes nodes, `fourier` expresses Fourier transforms as products of matrices, `rules` says what
each operator makes of pairs. The pass `split_complex` decides where this is done.
"""
