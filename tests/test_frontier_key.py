"""The key to the settings of `scripts/frontier.py` in docs/benchmarks.md, held against what runs."""

import re
from pathlib import Path

import pytest
from tradeoff import settings, tasks

KEY = (Path(__file__).resolve().parent.parent / "docs" / "benchmarks.md").read_text()
KEY = KEY.partition("### What the names mean")[2].partition("\n### ")[0]


class Written(dict):
    """Stands for ``Compression`` in the key: ``Written().log4(block=512)`` is what is asked for."""

    def __getattr__(self, codec):
        return Written(codec=codec)

    def __call__(self, **options):
        return {**self, **options}


def key_for(task):
    """Names of settings, as R and P stand in them, with the Python beside."""
    found = {}
    for names, python in re.findall(r"^\| (`.*) \| (.*) \|$", KEY, re.MULTILINE):
        quoted = re.findall("`([^`]+)`", names)
        only = {t.key for t in tasks.TASKS} & set(quoted)
        if not only or task.key in only:
            found |= dict.fromkeys(set(quoted) - only, python.strip("`"))
    return found


@pytest.mark.parametrize("task", tasks.TASKS, ids=lambda t: t.key)
def test_the_key_of_the_settings_says_what_runs(task):
    key = key_for(task)
    for setting in settings.chosen(settings.words(), task.importance, task.sparse):
        if setting.system != settings.OURS:
            python = key[re.sub("-[0-9]+$", "-R", setting.key)]
            assert "Compression" not in python.replace("horovod.torch.Compression", "")
            continue
        found = re.fullmatch(r"(.*?)(-[0-9.]+)?((?:-entropy|-small|-sparse)*)", setting.key)
        name, number, more = found.groups()
        python = key[name + ("" if number is None else "-P" if name == "topk" else "-R")]
        value = None if number is None else float(number[1:])
        words = python if "(" in python else f"Compression.{name}()"  # one row for all without options
        asked = eval(words, {"Compression": Written(), "R": value, "P": value})
        options = {"entropy": True} if "-entropy" in more else {}
        assert {**asked, **options} == {"codec": setting.codec, **setting.options_for(task.importance)}
        assert setting.environment == ({"GRADFLOW_MIN_ELEMENTS": "1"} if "-small" in more else {})
        assert setting.sparse == ("-sparse" in more)
        assert all(f"...{suffix}" in key for suffix in re.findall("-[a-z]+", more))
