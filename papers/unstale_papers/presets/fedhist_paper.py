"""What FedHist's paper prints, and where the settings are from that it leaves open.

Source: algorithms.md 6.1; of settings 2.4 to 2.15, 3.2, 3.7, 4.2 and 4.5.
"""

from unstale_papers.preset import Number, Source

DATA = ("FMNIST", "CIFAR-10", "CIFAR-100")
BETAS = ("0.3", "1.0", "IID")

_TABLE_1 = """
10  FedAvg  70.93 76.09 79.45  51.39 57.66 61.47  27.80 28.57 29.21
10  FedProx 71.28 76.82 79.18  52.41 56.89 61.84  28.10 28.43 30.75
10  MOON    71.72 76.39 79.35  52.08 57.50 61.39  27.90 29.77 30.34
10  DynSGD  71.89 76.05 79.58  52.02 57.90 62.11  27.75 29.06 30.33
10  REFL    72.31 77.47 79.88  51.67 57.72 61.76  28.34 28.77 29.03
10  TWAFL   72.44 74.67 79.48  51.43 57.71 61.91  27.27 29.26 29.73
10  WKAFL   73.45 77.92 80.04  54.76 58.44 62.26  27.72 28.33 29.64
10  FedHist 78.05 81.34 83.29  57.19 59.78 62.66  28.78 29.89 30.90
100 FedAvg  70.24 72.05 74.41  44.35 52.26 55.27  23.49 25.47 24.81
100 FedProx 71.01 72.40 74.11  43.21 49.60 55.98  24.65 24.74 24.65
100 MOON    71.79 74.94 75.85  41.59 50.72 53.57  23.10 22.69 22.77
100 DynSGD  72.29 73.39 76.06  51.11 55.33 57.25  24.91 26.14 26.31
100 REFL    70.98 75.67 77.28  51.46 54.80 57.11  25.22 25.76 26.44
100 TWAFL   72.73 73.27 75.31  47.16 53.00 55.87  23.53 23.91 24.57
100 WKAFL   70.56 75.37 74.97  45.60 51.42 55.01  22.57 23.64 24.82
100 FedHist 74.49 77.28 78.44  52.03 55.92 58.61  25.78 26.31 26.70
"""
"""N/K, method, then test accuracy in percent: FMNIST, CIFAR-10 and CIFAR-100, each with beta 0.3, 1.0 and IID."""

_TABLE_2 = """
FedAvg  3340 1x    2182 1x    1391 1x
FedProx 3876 0.9x  2370 0.9x  1562 0.9x
MOON    4324 0.8x  2088 1.0x  1444 1.0x
DynSGD  1904 1.8x  1573 1.4x  1176 1.2x
REFL    2177 1.5x  1289 1.7x  1013 1.4x
TWAFL   2695 1.2x  1492 1.5x  1244 1.1x
WKAFL   2954 1.1x  1701 1.3x  1299 1.1x
FedHist 1754 1.9x  1089 2.0x   792 1.8x
"""
"""Method, then rounds to 40 % and speedup for beta 0.3, 1.0 and IID."""


def _by_column() -> dict[tuple[str, str, str, str], Number]:
    columns = [(data, beta) for data in DATA for beta in BETAS]
    return {
        (*column, ratio, method): Number(float(text) / 100, text)
        for ratio, method, *printed in map(str.split, _TABLE_1.strip().splitlines())
        for column, text in zip(columns, printed, strict=True)
    }


ACCURACIES = _by_column()
"""Table I, final accuracy: by data, beta, N/K and method."""


def _by_beta() -> dict[tuple[str, str], dict[str, Number]]:
    return {
        (beta, method): {
            "rounds to 40 %": Number(float(rounds), rounds),
            "speedup": Number(float(times.removesuffix("x")), times),
        }
        for method, *printed in map(str.split, _TABLE_2.strip().splitlines())
        for beta, rounds, times in zip(BETAS, printed[::2], printed[1::2], strict=True)
    }


SPEEDS = _by_beta()
"""Table II, by measure: by beta and method."""

SETUP = (
    Source(
        key="clients",
        value="100 where N/K is 10, 1000 where it is 100",
        tag="[P]",
        why="The paper gives N/K alone.",
    ),
    Source(key="trigger.name", value="k-async", tag="paper"),
    Source(key="trigger.k", value="10", tag="[P]", why="The paper gives N/K alone."),
    Source(
        key="scenario.name",
        value="exponential",
        tag="[M]",
        why="The paper names no law of latencies; the mean staleness is N/K for any, and HAA learns nothing where they "
        "are nearly constant.",
    ),
    Source(
        key="rounds",
        value="5000, FMNIST 2000",
        tag="[P]",
        why="Table II has 4324 rounds to 40 % at beta 0.3.",
    ),
    Source(key="evaluate_every", value="20", tag="[P]"),
    Source(
        key="model.name",
        value="lenet_cifar, FMNIST lenet_28",
        tag="[M]",
        why="The paper says LeNet and lists no layers.",
    ),
    Source(
        key="data.normalise",
        value="standard",
        tag="[M]",
        why="The paper says nothing of how pixels are scaled.",
    ),
    Source(
        key="partition.min_examples",
        value="8",
        tag="[M]",
        why="A Dirichlet partition may leave a client with none; drawing again until all have enough would never "
        "end for N 1000.",
    ),
    Source(
        key="training.steps",
        value="5",
        tag="[P]",
        why="With one step, as Eq. 3 reads, FedProx would be FedAvg, and MOON nearly so, yet Table I tells them apart.",
    ),
    Source(key="training.batch_size", value="32", tag="[P]"),
    Source(
        key="training.learning_rate",
        value="0.01",
        tag="[P]",
        why="Of 0.005, 0.01 and 0.02 the one with which FedAvg on IID data comes nearest to the published 1391 rounds "
        "to 40 %: 1840, 1260 and 1040 on a validation split of CIFAR-10 (JPEG copy), with N/K 100.",
    ),
    Source(key="training.momentum and training.weight_decay", value="0", tag="[M]", why="None is mentioned."),
    Source(
        key="final accuracy",
        value="mean of the last 10 evaluations",
        tag="[M]",
        why="The paper does not say which it prints.",
    ),
)

FEDHIST = (
    Source(key="FedHist h", value="N / (2 K): 5 and 50", tag="paper"),
    Source(key="FedHist alpha", value="0.1", tag="[M]", why="As in WKAFL."),
    Source(
        key="FedHist utility_weight (lambda)",
        value="0.1",
        tag="[M]",
        why="So that lambda times a utility is comparable with (e/2)^-tau at moderate staleness.",
    ),
    Source(key="FedHist gamma", value="0.2", tag="[M]"),
    Source(key="FedHist similarity_min (sim_T)", value="0.3", tag="[M]", why="As in WKAFL."),
    Source(
        key="FedHist Eq. 8",
        value="weights, clamped at 0, then normalised; utilities of the round before",
        tag="[M]",
        why="The printed sum over i would give every client one weight, and a round's own utilities come after its "
        "aggregation.",
    ),
    Source(
        key="FedHist Eq. 9",
        value="fresh are the updates computed from the model of round r - h",
        tag="[M]",
        why="The printed indices end one short of the text's own example.",
    ),
    Source(
        key="FedHist Eq. 14",
        value="direction of the weighted, fused sum; mean length of the updates as they came",
        tag="[M]",
        why="It is printed with the plain sum, which Eq. 4 and the text contradict.",
    ),
)

BASELINES = (
    Source(
        key="FedAvg, FedProx, MOON weighting",
        value="uniform",
        tag="[P]",
        why="Eq. 2 weights the objective by examples; K-asynchronous rounds count each update alike.",
    ),
    Source(key="FedProx training.mu", value="0.01", tag="[M]", why="From the usual grid of 0.001 to 1."),
    Source(
        key="MOON training.mu",
        value="0.1",
        tag="[P]",
        why="The least of MOON's own grid. The released code has 5 on CIFAR-10 and else 1, with a projection head; "
        "without one, and at an N/K of 100 on IID CIFAR-10, accuracy is still chance after 1,000 rounds with 1 or 5. "
        "Elsewhere it was not tried.",
    ),
    Source(key="MOON training.temperature", value="0.5", tag="R:MOON"),
    Source(
        key="MOON model.projection_head",
        value="none",
        tag="[M]",
        why="So that all methods share one network; the released code has a head of 256.",
    ),
    Source(key="DynSGD normalise", value="true", tag="[M]", why="Eq. 4 asks for weights of sum 1."),
    Source(key="REFL beta", value="0.35", tag="R:REFL"),
    Source(
        key="REFL fresh updates",
        value="the freshest of a round",
        tag="[M]",
        why="In K-asynchronous rounds often none is fresh.",
    ),
    Source(
        key="TWAFL normalise",
        value="true",
        tag="[M]",
        why="At such staleness the raw weights would hardly move the model.",
    ),
    Source(key="TWAFL weighting", value="by the examples of a client", tag="[M]"),
    Source(
        key="WKAFL alpha, beta, gamma, stage_two_bound, similarity_min",
        value="0.1, 10, 0.01, 5, 0.3",
        tag="[M]",
        why="Chosen among the values of WKAFL's released files.",
    ),
    Source(
        key="WKAFL clip_bound",
        value="none",
        tag="[M]",
        why="The released bounds belong to pixels of 0 to 255.",
    ),
    Source(key="WKAFL stage two", value="from half of the rounds on", tag="[M]"),
)

PARTITIONED = Source(key="partition", value="Dirichlet by class, beta 0.3 and 1.0; IID", tag="paper")
SPREAD = (
    "The spread over seeds of the published numbers: none is printed, so which of their differences are noise cannot "
    "be told."
)
