"""For pytest: ``pytest --normcheck "my_package.norms:layer_norm --framework torch"`` adds one test
for each property of a target, and the fixture ``normcheck`` is :func:`normcheck.assert_valid`.

The tests of a target share one run, which the first of them starts. What is behind the option is
what the command ``python -m normcheck`` takes.
"""

import functools
import shlex

import pytest


def pytest_addoption(parser):
    parser.getgroup("normcheck").addoption(
        "--normcheck",
        action="append",
        default=[],
        metavar="'TARGET OPTIONS'",
        help="a test for each property of a layer norm or RMS norm, with options as python -m"
        " normcheck has them; may be given several times",
    )


@pytest.fixture(scope="session")
def normcheck():
    """``normcheck(target, **options)`` fails with the report unless all properties held."""
    from normcheck import assert_valid

    return assert_valid


@pytest.hookimpl(tryfirst=True)  # so that -k chooses among them
def pytest_collection_modifyitems(session, items):
    for words in session.config.getoption("--normcheck"):
        try:
            properties, report = _prepared(words)
        except (Exception, SystemExit) as error:  # importing a target may do anything
            said = "see python -m normcheck --help" if isinstance(error, SystemExit) else error
            raise pytest.UsageError(f"--normcheck {words!r}: {said}") from error
        for name in properties:
            nodeid = f"normcheck::{words}::{name}"
            items.append(Property.from_parent(session, name=name, nodeid=nodeid, report=report))


def _prepared(words):
    """The properties of a target, and a function that returns the report, or why there is none."""
    from . import adapters, isolate, run, settings, targets
    from .__main__ import parser

    options = vars(parser().parse_args(shlex.split(words)))
    target, seconds, case = (options.pop(name) for name in ("target", "seconds", "case"))
    adapted = adapters.adapt(isolate.find(target), settings.Settings(**options), target)
    all_of_them = run.Run(adapted, seconds, case)

    @functools.cache
    def report():
        try:
            return all_of_them.report(target)
        except targets.TargetError as error:
            return str(error)

    return dict.fromkeys(one.property for one in all_of_them.cases), report


class Property(pytest.Item):
    """One property of a target."""

    def __init__(self, report, **options):
        super().__init__(**options)
        self.report = report
        self.extra_keyword_matches.add(self.nodeid)

    def setup(self):
        """A target that cannot be run is one error, that of the first property."""
        if isinstance(said := self.report(), str):
            if self.report.cache_info().hits:
                pytest.skip("the target could not be run, see the error of its first property")
            pytest.fail(f"the target could not be run: {said}", pytrace=False)

    def runtest(self):
        report = self.report()
        for first, *others in report.causes:
            for one in (first, *others):
                if one.property == self.name:
                    last = first.test if one is first else f"It fails like {first.property}."
                    said = str(one), one.smallest, report.told, last
                    pytest.fail("\n".join(filter(None, said)), pytrace=False)
        if self.name not in report.kept:
            why = "the plain numbers are wrong there already, or the time was over"
            pytest.skip(f"not judged: {why}")

    def reportinfo(self):
        return self.path, None, self.nodeid
