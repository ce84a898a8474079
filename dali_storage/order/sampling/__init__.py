"""Global streams of samples for all ranks; with weights, or in a user's own order.

There is one endless stream of samples, and the sample at a position is arithmetic. *Sources* (data
sets, or the classes of one) are interleaved by their weights. Within a source, samples come in
*passes*: each sample once, in another order in every pass. An epoch is a number of positions, and
passes continue across epochs. Ranks and batches cut the stream without changing the order, so the
state is one number. In the order to read:

    mixture    the source at each position, by weights
    sources    the sample of a source at each place of its passes
    draws      single samples by weights of their own
    stream     the stream of both, with weights that change
    dealing    its division among ranks, in batches and epochs
    own        an order by a user's sequence, function or sampler
    datasets   the stream that the arguments of a reader describe
    arguments  those arguments
    ordering   the plug for the slot of the order

A reader makes its stream when it opens; nothing has to be closed. Imports order/ and contract/.
"""
