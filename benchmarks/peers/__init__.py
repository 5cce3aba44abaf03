"""Speed of this library compared with others, on the same machine and in the same run; see __main__
for the command.

    train_seq2seq, train_gpt, train_vit, train_recurrent      a training step
    decode, generate                                          translation and text generation with
    the same weights
    growth, imports                                           scaling with lengths; time to start

Rules for all: the same sizes, batches, loss and optimizer; contestants take turns, so that load on
the machine affects all; a ratio is taken by round, and its median reported; freed memory is kept
for all contestants, or for none.
"""
