"""Whether a body fits a JSON schema."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from shmlock.updater.schema import Schema

if TYPE_CHECKING:
    from pathlib import Path


def schema(tmp_path: Path, content: Any) -> Schema:
    """Write a schema and load it."""
    file = tmp_path / "schema.json"
    file.write_bytes(content if isinstance(content, bytes) else json.dumps(content).encode())
    return Schema(file)


def test_fits(tmp_path: Path) -> None:
    """A body that fits passes."""
    schema(tmp_path, {"type": "object", "required": ["a"]}).check(b'{"a": 1}')


@pytest.mark.parametrize(
    ("rules", "body", "place_and_rule"),
    [
        ({"type": "object"}, b"[]", 'at $ it breaks the schema\'s rule {"type": "object"}'),
        ({"required": ["a"]}, b"{}", 'at $ it breaks the schema\'s rule {"required": ["a"]}'),
        (
            {"properties": {"db": {"properties": {"port": {"type": "integer"}}}}},
            b'{"db": {"port": "hunter2"}}',
            'at $.db.port it breaks the schema\'s rule {"type": "integer"}',
        ),
        ({"items": {"maximum": 1}}, b"[0, 5]", 'at $[1] it breaks the schema\'s rule {"maximum": 1}'),
    ],
)
def test_does_not_fit(tmp_path: Path, rules: Any, body: bytes, place_and_rule: str) -> None:
    """What doesn't fit is told by place and rule, and never by the value there, which may be a secret."""
    with pytest.raises(ValueError, match="breaks the schema") as refusal:
        schema(tmp_path, rules).check(body)
    assert str(refusal.value) == place_and_rule


def test_long_rules_are_shortened(tmp_path: Path) -> None:
    """The message stays short, however long the rule."""
    with pytest.raises(ValueError, match="breaks the schema") as refusal:
        schema(tmp_path, {"enum": [f"choice {i}" for i in range(1000)]}).check(b"0")
    assert len(str(refusal.value)) < 200


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"{", "Expecting"),
        (b"\xff", "codec can't decode"),
        ([], "a schema is a JSON object"),
        ({"type": "nonsense"}, "not a JSON schema: $.type"),
        ({"properties": {"a": {"pattern": "["}}}, "not a JSON schema: $.properties.a.pattern"),
        ({"$schema": "https://config.example/draft"}, "unknown draft 'https://config.example/draft'"),
        ({"$schema": 7}, "unknown draft 7"),
    ],
)
def test_bad_schemas(tmp_path: Path, content: Any, said: str) -> None:
    """What is no schema is refused when it is loaded."""
    with pytest.raises(ValueError) as refusal:  # noqa: PT011  the message is looked at below
        schema(tmp_path, content)
    assert said in str(refusal.value)


def test_older_drafts(tmp_path: Path) -> None:
    """`$schema` decides which rules hold: before draft 6 an exclusive maximum was a flag."""
    draft_4 = {"$schema": "http://json-schema.org/draft-04/schema#", "maximum": 1, "exclusiveMaximum": True}
    with pytest.raises(ValueError, match="maximum"):
        schema(tmp_path, draft_4).check(b"1")


def test_references(tmp_path: Path) -> None:
    """A reference leads into the schema."""
    inner = schema(tmp_path, {"$defs": {"port": {"type": "integer"}}, "items": {"$ref": "#/$defs/port"}})
    inner.check(b"[1]")
    with pytest.raises(ValueError, match=r"at .* it breaks"):
        inner.check(b'["1"]')


@pytest.mark.filterwarnings("ignore")
def test_references_are_not_fetched(tmp_path: Path, web: Any) -> None:
    """A reference that leads elsewhere is told and not followed."""
    server = web.serve(lambda _: web.reply(b"{}"))
    outer = schema(tmp_path, {"items": {"$ref": f"{server.url}/schema"}})
    with pytest.raises(ValueError, match=r"refers to 'http://.*/schema', which it does not contain"):
        outer.check(b"[1]")
    assert server.requests == []
