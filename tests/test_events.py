"""Who hears what happened."""

import logging

from hvd_gradflow import events


def test_what_is_told_reaches_subscribers_and_the_log(caplog):
    heard = []
    end = events.subscribe(lambda kind, fields: heard.append((kind, fields)))
    with caplog.at_level(logging.INFO, logger="hvd_gradflow"):
        events.tell("auto", "chosen: none at 100 %", scope="a")
    end()
    events.tell("auto", "later")
    assert heard == [("auto", {"message": "chosen: none at 100 %", "scope": "a"})]
    assert [(r.levelname, r.getMessage()) for r in caplog.records] == [("INFO", "chosen: none at 100 %")]


def test_where_nothing_is_set_up_it_is_printed_once(capsys, monkeypatch):
    monkeypatch.setattr(logging.getLogger("hvd_gradflow"), "hasHandlers", lambda: False)
    events.tell("auto", "chosen: none")
    assert capsys.readouterr().err == "chosen: none\n"


def test_a_subscriber_that_fails_is_dropped_and_nobody_else_notices(caplog):
    heard = []

    def fails(kind, fields):
        heard.append(kind)
        raise RuntimeError("mine")

    events.subscribe(fails)
    events.emit("first")
    events.emit("second")
    assert heard == ["first"] and "is dropped" in caplog.text
