"""The model of the server for clients of `lightning_federated.py`, whose parameters have the names of its module."""

import simulated
from lightning_federated import Module

import unstale

app = unstale.App(model=Module, train=simulated.train)
