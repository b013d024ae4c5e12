"""What ``scripts/netlab.py`` says of a command line that makes no sense, before it makes anything."""

import pytest
from lab.errors import LabError
from lab.values import delay_of
from netlab import main


@pytest.mark.parametrize(
    ("text", "seconds"), [("0", 0), ("1ms", 1e-3), ("200us", 2e-4), ("1s", 1), (0.5, 0.5)]
)
def test_delays(text, seconds):
    assert delay_of(text) == pytest.approx(seconds)


def test_a_delay_without_a_unit_is_refused(capsys, monkeypatch):
    monkeypatch.setattr("signal.signal", lambda *_: None)
    with pytest.raises(LabError, match="delay '1' has no unit: write 1ms, 1us or 1s"):
        delay_of("1")
    assert main(["--delay", "1", "--", "true"]) == 2
    assert "netlab: delay '1' has no unit" in capsys.readouterr().err


@pytest.mark.parametrize("words", [["--nodes", "2", "python", "program.py"], ["python", "program.py"]])
def test_a_command_without_dashes_is_shown_where_it_belongs(words, capsys):
    assert main(words) == 2
    said = capsys.readouterr().err
    assert said.startswith(
        "netlab: python program.py: write the command after --, as in: netlab.py --nodes 2"
    )


def test_no_command_and_unknown_options(capsys):
    assert main(["--nodes", "2"]) == 2
    assert main(["--nodes", "2", "--"]) == 2
    assert capsys.readouterr().err.count("netlab: write the command after --") == 2
    with pytest.raises(SystemExit):
        main(["--dely", "1ms", "--", "true"])
    assert "unrecognized arguments: --dely 1ms" in capsys.readouterr().err
