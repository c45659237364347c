"""The README's Python example does what it says. (Its two commands are executed in test_project.py.)"""

from __future__ import annotations

import re

import soundfile


def test_python_example_speaks(root, tmp_path, monkeypatch, capsys):
    (example,) = re.findall(r"```python\n(.*?)```", (root / "README.md").read_text(encoding="utf-8"), flags=re.S)
    monkeypatch.chdir(tmp_path)
    exec(compile(example, "README.md", "exec"), {})
    wave, rate = soundfile.read("train.wav")
    assert rate == 44_100 and 1 < len(wave) / rate < 8 and abs(wave).max() > 0.05
    assert "eos" in capsys.readouterr().out
