"""config/README.md and config/schema.json say what the configuration classes say."""

import json

import pytest

import document_config
from eagle3_data.config import Config

SCHEMA = Config.model_json_schema()


def test_the_documents_are_current(monkeypatch, capsys):
    monkeypatch.setattr("sys.argv", ["document_config.py", "--check"])
    assert document_config.main() == 0, capsys.readouterr().err


def test_drift_is_found_and_fixed(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(document_config, "FOLDER", tmp_path)
    (tmp_path / "README.md").write_text(
        f"by hand\n{document_config.BEGIN}\nold\n{document_config.END}\nby hand, too\n"
    )

    monkeypatch.setattr("sys.argv", ["document_config.py", "--check"])
    assert document_config.main() == 1
    assert (
        "config/README.md does not match the configuration classes; run: make documentation"
        in capsys.readouterr().err
    )
    assert not (tmp_path / "schema.json").exists()

    monkeypatch.setattr("sys.argv", ["document_config.py"])
    assert document_config.main() == 0
    readme = (tmp_path / "README.md").read_text()
    assert readme.startswith("by hand\n")
    assert readme.endswith("\nby hand, too\n")
    assert json.loads((tmp_path / "schema.json").read_text()) == SCHEMA

    monkeypatch.setattr("sys.argv", ["document_config.py", "--check"])
    assert document_config.main() == 0


def test_a_readme_without_marks_is_refused():
    with pytest.raises(SystemExit, match="has lost its marks"):
        document_config.render_readme("# Configuration\n", SCHEMA)


def test_every_key_of_every_section_is_described():
    reference = document_config.render_reference(SCHEMA)
    for section in (SCHEMA, *SCHEMA["$defs"].values()):
        for key, value in section["properties"].items():
            assert "$ref" in value or f"| `{key}` |" in reference
    assert "| `path` | text | **required** |" in reference


def test_markdown_survives_angle_brackets_and_bars():
    row = document_config._render_key(
        "run", {"type": "string", "pattern": "a|b", "description": "results/<run>, `<run>`"}, required=True
    )
    assert row == "| `run` | text, matches `a\\|b` | **required** | results/&lt;run>, `<run>` |"
