"""Power failures by seed: the real journal on a disk that forgets what was not synced.

`disk` keeps, for each file, the content that is certain to be on the disk, and builds what a power failure leaves.
`attempt` runs the real exchange and journal with simulated clients, cuts the power at random moments, and compares
what clients were acknowledged with what the next start finds.
"""
