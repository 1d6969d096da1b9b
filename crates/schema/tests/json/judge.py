"""Writes what PyPI's jsonschema says of the cases to verdicts.tsv; run by the script beside this one.

A line is a case, the number of its document or `schema`, a digest that tells an edited case from the one that was
judged, and the verdict: `accepted` or `refused` for a schema; `valid`, `invalid` or `invalid when strict` for a document.
"""

import json
import pathlib

import jsonschema

HERE = pathlib.Path(__file__).parent
DRAFTS = {
    "draft7": (jsonschema.Draft7Validator, "http://json-schema.org/draft-07/schema#"),
    "2019-09": (jsonschema.Draft201909Validator, "https://json-schema.org/draft/2019-09/schema"),
    "2020-12": (jsonschema.Draft202012Validator, "https://json-schema.org/draft/2020-12/schema"),
}


def digest(text):
    """FNV-1a with 32 bits."""
    hash = 0x811C9DC5
    for byte in text.encode():
        hash = (hash ^ byte) * 0x01000193 & 0xFFFFFFFF
    return f"{hash:08x}"


def cases():
    for file in sorted((HERE / "cases").glob("*.txt")):
        for part in file.read_text(encoding="utf-8").split("\n=== ")[1:]:
            head, body = part.split("\n", 1)
            name, verdict = head.split(": ")
            schema, *documents = body.rstrip("\n").split("\n--- ")
            documents = [document.split("\n", 1) for document in documents]
            documents = [document[1].strip("\n") if len(document) > 1 else "" for document in documents]
            yield f"{file.stem}/{name}", verdict.split(" ")[1], schema.strip(), documents


def judge(validator, text):
    try:
        document = json.loads(text)
    except (ValueError, RecursionError):
        return "invalid"
    lenient, strict = validator
    if not lenient.is_valid(document):
        return "invalid"
    return "valid" if strict.is_valid(document) else "invalid when strict"


def main():
    lines = []
    for name, draft, schema, documents in cases():
        make, uri = DRAFTS[draft]
        content = json.loads(schema)
        if isinstance(content, dict):
            content.setdefault("$schema", uri)
        try:
            make.check_schema(content, format_checker=make.FORMAT_CHECKER)
            lines.append((name, "schema", digest(schema), "accepted"))
        except jsonschema.SchemaError:
            lines.append((name, "schema", digest(schema), "refused"))
            continue
        validator = make(content), make(content, format_checker=make.FORMAT_CHECKER)
        for number, document in enumerate(documents):
            lines.append((name, str(number), digest(document), judge(validator, document)))
    text = "".join("\t".join(line) + "\n" for line in lines)
    (HERE / "verdicts.tsv").write_text(text, encoding="utf-8")
    print(len(lines), "verdicts")


if __name__ == "__main__":
    main()
