"""What scripts/fuzz-api changes in requests to the gateway, under /api, before they are sent: about every second one names
what exists, or is an event, a subscription or a schema that can be accepted. Otherwise nearly all would end as 400 or 404.

As in fuzz_hooks.py, what is changed follows from what was drawn."""

import os
import urllib.parse
import zlib

import requests

# Whose requests are fuzzed, and who may write what is the same for all clients.
CALLER = os.environ.get("FUZZ_AUTHORIZATION")
ADMIN = os.environ.get("FUZZ_ADMIN") or CALLER
STRUCTURED, BATCHED = "application/cloudevents+json", "application/cloudevents-batch+json"

PROTO = 'syntax = "proto3"; message Order { string id = 1; repeated int32 amounts = 2; }'
XSD = (
    '<xs:schema xmlns:xs="http://www.w3.org/2001/XMLSchema"><xs:element name="order" type="xs:decimal"/></xs:schema>'
)
SCHEMAS = [
    ("JSON_SCHEMA", "application/json", '{"type": "object", "required": ["a"]}'),
    ("JSON_SCHEMA", "application/json", "{}"),
    ("PROTO", "application/protobuf", PROTO),
    ("XSD", "application/xml", XSD),
]
TYPES = ["fuzz:a:b:c", "fuzz:a:b:d", "fuzz:a:b:e", "not.registered"]
PATTERNS = ["*:*:*:*", "fuzz:*:b:*", *TYPES]
TARGETS = ["queue:default", "https://example.com/hook", "queue:default", "https://[2001:db8::1]:8443/x?y=z"]
FILTERS = [
    None,
    {"exact": {"type": "fuzz:a:b:c"}},
    [{"exact": {"context.region": "eu"}}, {"not": {"gte": {"data/a": 5}}}],
    {"any": [{"prefix": {"source": "/f"}}, {"exists": ["data/a"]}]},
]
STRATEGIES = [
    {"type": "fixed", "delaySeconds": 1},
    {"type": "exponential", "baseSeconds": 1, "maxSeconds": 9},
    {"type": "list", "delaysSeconds": [1, 2, 3]},
]
DATA = [None, {"a": 1}, {"a": [1.50, "\u0000", "ü"]}, "text", '{"a": 2}', 0, [], {}]
# The lists whose items have the id that a path begins with.
LISTS = ("/api/event-types", "/api/schemas", "/api/events", "/api/subscriptions", "/api/clients", "/api/keys")


def number(drawn):
    return zlib.crc32(repr(drawn).encode("utf-8", "replace"))


def chosen(drawn, part=2):
    """Whether this is one of every `part`."""
    return number(drawn) % part == 0


def one_of(many, drawn):
    # By other bits than those that chose.
    return many[(number(drawn) >> 8) % len(many)]


class Server:
    """The server that is fuzzed, as the hooks ask it."""

    def __init__(self, address):
        self.address, self.session = address, requests.Session()

    def call(self, method, path, by=CALLER, **more):
        headers = {"Authorization": by} if by else {}
        headers |= more.pop("headers", {})
        try:
            return self.session.request(method, self.address + path, headers=headers, timeout=30, **more)
        except (UnicodeError, ValueError):
            return None  # half a surrogate pair: sent as drawn

    def items(self, path, **params):
        answer = self.call("GET", path, params=params)
        return answer.json().get("items", []) if answer is not None and answer.status_code == 200 else []

    def seed(self):
        """What the routes work on. Types and schemas are written by an unscoped caller."""
        for code, (schema_type, mime_type, schema) in zip(TYPES[:-1], SCHEMAS):
            made = self.call("POST", "/api/event-types", ADMIN, json={"code": code, "name": "fuzzed"})
            if made.status_code != 201:
                continue
            versions = f"/api/event-types/{made.json()['id']}/versions"
            version = {"mimeType": mime_type, "schemaType": schema_type, "schema": schema}
            for name in ("1.0", "1.1", "2.0"):
                self.call("POST", versions, ADMIN, json=version | {"version": name})
            self.call("POST", f"{versions}/1.0/finalise", ADMIN)
        for schema_type, mime_type, content in SCHEMAS:
            schema = {"name": "fuzzed", "mimeType": mime_type, "schemaType": schema_type, "content": content}
            self.call("POST", "/api/schemas", ADMIN, json=schema)
        self.call("POST", "/api/clients", ADMIN, json={"code": "fuzzed", "name": "fuzzed"})
        for at in range(len(TARGETS)):
            self.call("POST", "/api/subscriptions", json=subscription(self, {"code": f"seed-{at}"}))
        for at in range(3):
            self.call("POST", "/api/events", json=event({"seed": at}))


servers = {}


def server_of(case):
    address = case.operation.base_url.rstrip("/")
    if address not in servers:
        servers[address] = Server(address)
        servers[address].seed()
    return servers[address]


def name_existing(server, case):
    """The ids in paths, and If-Match as it is now."""
    path = case.path_parameters
    collection = next((known for known in LISTS if case.operation.path.startswith(known + "/{id}")), None)
    if collection is None or not isinstance(path, dict):
        return
    if chosen(path):
        items = server.items(collection, limit=100)
        if len(items) < 2 and collection != "/api/clients":
            server.seed()
        if items:
            item = one_of(items, path)
            versions = [version["version"] for version in item.get("specVersions", [])]
            path["id"] = item["id"]
            if "version" in path and versions:
                path["version"] = one_of(versions, path)
    spare_own_key(server, case)
    headers = case.headers
    if headers and "If-Match" in headers and chosen(headers["If-Match"]):
        quoted = urllib.parse.quote(str(path["id"]), safe="")
        shown = server.call("GET", f"{collection}/{quoted}")
        if shown is not None and "ETag" in shown.headers:
            headers["If-Match"] = shown.headers["ETag"]


def spare_own_key(server, case):
    """A run that revokes its own key finds nothing any more."""
    path = case.path_parameters
    if case.operation.path != "/api/keys/{id}":
        return
    own = {key["id"] for key in server.items("/api/keys") if key["name"] == "fuzz"}
    try:
        if int(path["id"]) in own:
            path["id"] = "999999"
    except ValueError:
        pass


def subscription(server, drawn):
    """A subscription that can be accepted, with what was drawn where that can be accepted too."""
    bindings = [{"eventTypeCode": one_of(PATTERNS, drawn)}]
    types = server.items("/api/event-types", limit=10) if chosen(drawn, 3) else []
    if types:
        bindings.append({"eventTypeId": one_of(types, drawn)["id"], "specVersion": "1.0"})
    body = {
        "code": f"fuzz-{number(drawn) % 50}",
        "name": "fuzzed",
        "eventTypes": bindings,
        "target": one_of(TARGETS, drawn),
        "mode": one_of(["IMMEDIATE", "NEXT_ON_ERROR", "BLOCK_ON_ERROR"], drawn),
        "retryStrategy": one_of(STRATEGIES, drawn),
        "filter": one_of(FILTERS, drawn),
    }
    kept = ("code", "name", "description", "sequence", "timeoutSeconds", "maxRetries", "delaySeconds", "maxAgeSeconds")
    return body | {name: drawn[name] for name in kept if drawn.get(name) is not None}


def event(drawn):
    """An event in the source's own JSON."""
    body = {"type": one_of(TYPES, drawn), "source": "/fuzz", "data": one_of(DATA, drawn)}
    if chosen(drawn, 3):
        body["contextData"] = [{"key": "region", "value": one_of(["eu", "us"], drawn)}]
        body["deduplicationId"] = f"d-{number(drawn) % 20}"
    kept = ("subject", "correlationId", "causationId", "messageGroup", "sequence", "time")
    return body | {name: drawn[name] for name in kept if isinstance(drawn, dict) and drawn.get(name) is not None}


def cloud_event(drawn):
    event = {"specversion": "1.0", "id": f"{number(drawn) % 100}", "source": "/fuzz", "type": one_of(TYPES, drawn)}
    data = one_of([{}, {"data": one_of(DATA, drawn)}, {"data_base64": "AP8="}], drawn)
    return event | data | {"ext": str(drawn)[:100], "sequence": number(drawn) % 9}


def in_binary_mode(case, drawn):
    for name, value in cloud_event(drawn).items():
        if not name.startswith("data"):
            case.headers[f"ce-{name}"] = urllib.parse.quote(str(value), errors="replace")


def let_be_accepted(server, case):
    body, path = case.body, case.operation.path
    if not chosen(body):
        return
    if path == "/api/events" and case.media_type == STRUCTURED:
        case.body = cloud_event(body)
    elif path == "/api/events" and case.method == "POST":
        if chosen(body, 4):
            in_binary_mode(case, body)
        else:
            case.body = event(body)
    elif path == "/api/events/batch":
        own = case.media_type == BATCHED
        drawn = body if own else (body.get("events") if isinstance(body, dict) else None)
        if isinstance(drawn, list):
            make = cloud_event if own else event
            events = [make((at, one)) if chosen((at, one)) else one for at, one in enumerate([*drawn, "one more"])]
            case.body = events if own else {"events": events}
    elif not isinstance(body, dict):
        return
    elif path in ("/api/subscriptions", "/api/subscriptions/{id}"):
        case.body = subscription(server, body)
        if case.method == "PUT":
            case.body.pop("code")
    elif path in ("/api/schemas", "/api/schemas/{id}") or "/versions" in path:
        schema_type, mime_type, content = one_of(SCHEMAS, body)
        field = "content" if "/schemas" in path else "schema"
        body |= {"schemaType": schema_type, "mimeType": mime_type, field: content}
        if "name" in body and not str(body["name"]).strip():
            body["name"] = "fuzzed"
        if "/versions" in path:
            body["version"] = f"{number(body) % 4}.{number(body) % 7}"
            # Refused where the path names another.
            if case.method == "PUT":
                body["version"] = case.path_parameters["version"]
        elif chosen(body, 3):
            types = server.items("/api/event-types", limit=10)
            body |= {"eventTypeId": one_of(types, body)["id"] if types else "", "version": f"{number(body) % 5}.0"}
        else:
            body.pop("eventTypeId", None)
            body.pop("version", None)
    elif path == "/api/event-types":
        body["code"] = f"fuzz:{number(body) % 5}:b:{number(body) % 50}"
    elif path == "/api/keys":
        body |= {"name": "key", "scopes": body.get("scopes") or ["read"]}
        if body.get("expiresAt") is not None:
            body["expiresAt"] = one_of(["2100-01-01T00:00:00Z", body["expiresAt"]], body)
    if isinstance(case.body, dict) and case.body.get("clientId") is not None:
        clients = server.items("/api/clients", limit=10)
        case.body["clientId"] = one_of(clients, body)["id"] if clients else None


def ask_for_what_exists(server, case):
    """Filters that find something, and the cursor of the list itself."""
    query, path = case.query, case.operation.path
    if not isinstance(query, dict) or not query or not chosen(query):
        return
    known = {"type": one_of(PATTERNS, query), "source": "/fuzz", "code": "fuzz:*:*:*", "version": "1.0"}
    query.update({name: value for name, value in known.items() if name in query})
    if "clientId" in query:
        clients = server.items("/api/clients", limit=10)
        query["clientId"] = one_of(clients, query)["id"] if clients else query["clientId"]
    if "context.{key}" in query:
        query["context.region"] = "eu"
        del query["context.{key}"]
    if "cursor" in query:
        filters = {name: query[name] for name in ("type", "source", "code", "clientId") if name in query}
        first = server.call("GET", path, params=filters | {"limit": 1})
        if first is not None and first.status_code == 200 and first.json().get("nextCursor"):
            query["cursor"] = first.json()["nextCursor"]


def before_call(case):
    if not case.operation.path.startswith("/api/"):
        return
    server = server_of(case)
    name_existing(server, case)
    ask_for_what_exists(server, case)
    # Nothing was drawn where there is no body.
    if isinstance(case.body, (dict, list, str, int, float, bool)):
        let_be_accepted(server, case)
    if case.operation.path.startswith("/api/events") and chosen((case.path_parameters, case.body), 3):
        case.headers["Accept"] = STRUCTURED
