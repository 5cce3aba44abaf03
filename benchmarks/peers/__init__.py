"""How fast this library is beside others, on the same machine and in the same run; see __main__ for the command.

    train_seq2seq, train_gpt, train_vit, train_recurrent      a training step
    decode, generate                                          translating and going on with a text, from the same
    weights growth, imports                                           cost against lengths; time to start

Rules for all: the same sizes, batches, loss and optimizer; contestants take turns, so that the machine's mood is
shared; a ratio is taken round by round and its median told; freed memory is kept for everybody, or for nobody.
"""
