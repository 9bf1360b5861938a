"""Writes the typed client from the description of the API.

    python3 generate.py            writes src/tessera/_api.py
    python3 generate.py --check    exits with 1 if the file is out of date
"""

import json
import keyword
import pathlib
import re
import sys
import textwrap

HERE = pathlib.Path(__file__).resolve().parent
DESCRIPTION = HERE.parent / "docs" / "openapi.json"
TARGET = HERE / "src" / "tessera" / "_api.py"
PRIMITIVES = {
    "string": "str",
    "integer": "int",
    "number": "float",
    "boolean": "bool",
    "object": "Dict[str, Any]",
    "null": "None",
}
# The client has its own methods for what is a stream or no JSON.
OWN = {"watch_jobs", "read_job_logs", "healthz", "livez", "readyz", "metrics", "openapi"}

HEAD = '''"""The typed client, generated from docs/openapi.json by generate.py. Do not edit."""

from __future__ import annotations

import sys
from typing import Any, Dict, List, Optional, Union

if sys.version_info >= (3, 11):
    from typing import NotRequired, TypedDict
else:
    from typing import TypedDict

    class _NotRequired:
        """Stands for typing.NotRequired, which exists from Python 3.11 on."""

        def __getitem__(self, item: Any) -> Any:
            return item

    NotRequired = _NotRequired()


'''


def reference(ref):
    return ref.rsplit("/", 1)[1]


def type_of(schema):
    """Returns the Python type of a schema, as text."""
    if "$ref" in schema:
        return reference(schema["$ref"])
    for word in ("oneOf", "anyOf"):
        if word in schema:
            return union([type_of(one) for one in schema[word]])
    if "allOf" in schema:
        return type_of(schema["allOf"][0])
    kind = schema.get("type", "object")
    if isinstance(kind, list):
        return union([type_of({**schema, "type": one}) for one in kind])
    if kind == "array":
        return f"List[{type_of(schema.get('items', {}))}]"
    if kind == "object" and isinstance(schema.get("additionalProperties"), dict):
        return f"Dict[str, {type_of(schema['additionalProperties'])}]"
    return PRIMITIVES.get(kind, "Any")


def union(types):
    rest = [one for one in dict.fromkeys(types) if one != "None"]
    inner = rest[0] if len(rest) == 1 else f"Union[{', '.join(rest)}]" if rest else "None"
    return f"Optional[{inner}]" if "None" in types and rest else inner


def fields_of(schema, schemas):
    """Returns the fields of an object with those that it takes from others."""
    fields, required = {}, set()
    for part in schema.get("allOf", [schema]):
        if "$ref" in part:
            part = schemas[reference(part["$ref"])]
        inner, needed = (
            fields_of(part, schemas)
            if "allOf" in part
            else (part.get("properties", {}), set(part.get("required", [])))
        )
        fields.update(inner)
        required |= needed
    return fields, required


def one_line(text):
    return re.sub(r"\s+", " ", (text or "").replace("\\", "\\\\").replace('"""', "'''")).strip()


def docstring(text, indent):
    lines = textwrap.wrap(one_line(text) or "See the description of the API.", 95 - indent)
    pad = " " * indent
    if len(lines) == 1:
        return f'{pad}"""{lines[0]}"""\n'
    return f'{pad}"""{lines[0]}\n' + "".join(f"{pad}{line}\n" for line in lines[1:]) + f'{pad}"""\n'


def type_definition(name, schema, schemas):
    fields, required = fields_of(schema, schemas)
    if not fields:
        return f"{name} = {type_of(schema)}\n\n\n"
    if any(keyword.iskeyword(field) or not field.isidentifier() for field in fields):
        # Names that are words of Python, such as `class`, need the other form.
        body = "".join(
            f'        "{field}": "{type_of(inner)}",\n' for field, inner in sorted(fields.items())
        )
        return (
            f'{name} = TypedDict(\n    "{name}",\n    {{\n{body}    }},\n    total=False,\n)\n'
            f'{name}.__doc__ = "{one_line(schema.get("description")).replace(chr(34), chr(39))}"\n\n\n'
        )
    text = f"class {name}(TypedDict):\n" + docstring(schema.get("description"), 4) + "\n"
    for field, inner in sorted(fields.items()):
        kind = type_of(inner)
        text += f"    {field}: {kind if field in required else f'NotRequired[{kind}]'}\n"
    return text + "\n\n"


def method(path, verb, operation):
    name = operation["operationId"]
    parameters = [p for p in operation.get("parameters", []) if p["in"] != "header"]
    in_path = [p for p in parameters if p["in"] == "path"]
    in_query = [p for p in parameters if p["in"] == "query"]
    arguments = [f"{p['name']}: Union[str, int]" for p in in_path]
    body = operation.get("requestBody", {}).get("content", {}).get("application/json", {})
    if body:
        arguments.append(f"body: {type_of(body['schema'])}")
    if in_query:
        arguments.append("*")
    for p in sorted(in_query, key=lambda p: not p.get("required")):
        kind = type_of(p["schema"])
        arguments.append(f"{p['name']}: {kind}" if p.get("required") else f"{p['name']}: Optional[{kind}] = None")
    if verb == "post" and path == "/v1/jobs":
        arguments += ["*", "idempotency_key: Optional[str] = None"]
    answer = next(
        (r for code, r in sorted(operation["responses"].items()) if code.startswith("2")), {}
    )
    schema = answer.get("content", {}).get("application/json", {}).get("schema")
    kind = type_of(schema) if schema else "None"
    summary = operation.get("summary", "") + " " + operation.get("description", "")
    text = f"    def {name}(self, {', '.join(arguments)}) -> {kind}:\n".replace("(self, )", "(self)")
    text += docstring(summary, 8)
    shown = re.sub(r"{(\w+)}", r"{self._segment(\1)}", path)
    call = [f'"{verb.upper()}"', ('f"' if in_path else '"') + shown + '"']
    if in_query:
        call.append("query={" + ", ".join(f'"{p["name"]}": {p["name"]}' for p in in_query) + "}")
    if body:
        call.append("body=body")
    if verb == "post" and path == "/v1/jobs":
        call.append("idempotency_key=idempotency_key")
    return text + f"        return self._call({', '.join(call)})\n\n"


def generate():
    description = json.loads(DESCRIPTION.read_text())
    schemas = description["components"]["schemas"]
    text = HEAD
    for name in sorted(schemas):
        text += type_definition(name, schemas[name], schemas)
    text += 'class Api:\n    """The calls of the API. Answers are dictionaries as the API writes them."""\n\n'
    text += "    def _call(self, method: str, path: str, **given: Any) -> Any:\n"
    text += "        raise NotImplementedError\n\n"
    text += "    @staticmethod\n    def _segment(name: Union[str, int]) -> str:\n"
    text += "        raise NotImplementedError\n\n"
    for path, item in sorted(description["paths"].items()):
        for verb, operation in sorted(item.items()):
            if verb != "parameters" and operation["operationId"] not in OWN:
                text += method(path, verb, operation)
    return text.rstrip("\n") + "\n"


if __name__ == "__main__":
    made = generate()
    if "--check" in sys.argv:
        sys.exit(0 if TARGET.exists() and TARGET.read_text() == made else "src/tessera/_api.py is out of date")
    TARGET.write_text(made)
