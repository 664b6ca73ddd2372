"""Does a body fit a JSON schema? Needs jsonschema."""

from __future__ import annotations

import json
import textwrap
from typing import TYPE_CHECKING

from jsonschema import Draft202012Validator
from jsonschema.exceptions import SchemaError, best_match
from jsonschema.validators import validator_for
from referencing.exceptions import Unresolvable
from referencing.jsonschema import EMPTY_REGISTRY

if TYPE_CHECKING:
    from pathlib import Path


class Schema:
    """A JSON schema of the draft that its `$schema` names, 2020-12 without one.

    Its references lead into itself; nothing is fetched for them.
    """

    def __init__(self, path: Path) -> None:
        """Load it. Raises OSError, or ValueError when it isn't a schema."""
        schema = json.loads(path.read_bytes())
        if not isinstance(schema, dict):
            raise ValueError("a schema is a JSON object")  # noqa: TRY004  a value of the file
        draft_url = schema.get("$schema", Draft202012Validator.META_SCHEMA["$id"])
        draft = validator_for({"$schema": str(draft_url)}, default=None)  # type: ignore[arg-type]  # returned as it is
        if draft is None:
            raise ValueError(f"unknown draft {draft_url!r}")
        try:
            draft.check_schema(schema)
        except SchemaError as error:
            raise ValueError(f"not a JSON schema: {error.json_path}: {error.message}") from None
        self._validator = draft(schema, registry=EMPTY_REGISTRY)

    def check(self, body: bytes) -> None:
        """Raise ValueError, with the place and the rule that is broken there, when `body` doesn't fit.

        The value at that place is not told: it may be a secret, and the message goes to logs.
        """
        try:
            error = best_match(self._validator.iter_errors(json.loads(body)))
        except Unresolvable as unresolvable:
            raise ValueError(f"the schema refers to {unresolvable.ref!r}, which it does not contain") from None
        if error is not None:
            rule = textwrap.shorten(json.dumps({error.validator: error.validator_value}), 120)
            raise ValueError(f"at {error.json_path} it breaks the schema's rule {rule}")
