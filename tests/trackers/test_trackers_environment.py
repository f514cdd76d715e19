"""The tests of trackers, in an environment of their own that also has the libraries; it is made once."""

import pytest

from support.environments import EXTRAS, INSTALL_S, TESTS_S, check_tests, python_with

LIBRARIES = (*EXTRAS["mlflow"], *EXTRAS["tensorboard"], *EXTRAS["wandb"], *EXTRAS["parquet"])
TESTS = ("tests/trackers/test_tracker_libraries.py", "tests/report/test_export.py")


@pytest.mark.slow
@pytest.mark.timeout(INSTALL_S + TESTS_S)
def test_the_tests_of_trackers_pass_where_the_libraries_are() -> None:
    check_tests(python_with("trackers", LIBRARIES), *TESTS)
