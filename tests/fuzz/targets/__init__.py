"""What is fuzzed, one file a target. Each has `run(data, note)`, which raises when something does not hold.

data: the input. note: told what happened, as hashable facts; what is new there makes an input worth keeping, also where
the code that made it happen is not Python's.
"""
