"""What a script says of the transport, over what the environment says."""

import pytest

from hvd_gradflow.config import Config
from hvd_gradflow.errors import ConfigError
from hvd_gradflow.reduce.route import Route

LATE = Config(transport="udp", deadline_ms=20.0, window=7)


@pytest.mark.parametrize(
    ("route", "environment", "transport", "deadline_ms"),
    [
        (Route(), Config(), "mpi", 0),
        (Route(), LATE, "udp", 20),
        (Route("udp"), Config(), "udp", 0),
        (Route("udp"), LATE, "udp", 20),
        (Route("udp", 0), LATE, "udp", 0),
        (Route("udp", 5), LATE, "udp", 5),
        (Route("mpi"), LATE, "mpi", 0),
        (Route("udp"), Config(deadline_ms=20.0), "udp", 20),
    ],
)
def test_what_is_said_counts(route, environment, transport, deadline_ms):
    found = route.applied(environment)
    assert (found.transport, found.deadline_ms) == (transport, deadline_ms)
    assert found.window == environment.window and found.resolved().transport == transport


def test_what_the_environment_says_is_still_checked():
    with pytest.raises(ConfigError, match="only udp"):
        Route().applied(Config(deadline_ms=20.0)).resolved()


def test_numbers_of_one_value_are_one_route():
    assert Route("udp", 20) == Route("udp", 20.0) and isinstance(Route("udp", 20).deadline_ms, float)
