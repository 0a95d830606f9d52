"""Checks for your own code: test suites for backends and memory managers, and for gradients by finite differences."""

from flnb.explore.report import Report, Result
from flnb.testing.backends import check_backend
from flnb.testing.communicators import check_communicator
from flnb.testing.gradients import GradientError, verify_grad
from flnb.testing.managers import check_manager, conformance
from flnb.testing.samples import Sample, samples

__all__ = [
    "GradientError", "Report", "Result", "Sample", "check_backend", "check_communicator", "check_manager",
    "conformance", "samples", "verify_grad",
]  # fmt: skip
