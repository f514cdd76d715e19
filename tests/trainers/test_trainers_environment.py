"""The tests of trainers, in an environment of their own that also has the libraries; it is made once."""

import pytest

from support.environments import EXTRAS, INSTALL_S, TESTS_S, check_tests, python_with

LIBRARIES = (*EXTRAS["huggingface"], *EXTRAS["lightning"], EXTRAS["peft"][-1])
TESTS = ("tests/trainers", "tests/examples/test_lora.py")


@pytest.mark.slow
@pytest.mark.timeout(INSTALL_S + TESTS_S)
def test_the_tests_of_trainers_pass_where_the_libraries_are() -> None:
    check_tests(python_with("trainers", LIBRARIES), *TESTS, "--ignore", __file__)
