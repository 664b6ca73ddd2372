"""Every claim, measured side by side with what people would pick instead: `python -m shmlock.bench`.

scenario    what is asked, with which knobs, and what is measured for each side
peers       the locks of others, each behind the same few methods
crowd       processes that begin together, and what they used
runner      rounds, with the sides interleaved so that drift of the machine hits all alike
samples     what came out: raw, and summed up
report      the table in the terminal; plots and page are made of the same data
"""
