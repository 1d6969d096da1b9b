"""Sends the events of events.json with the Python SDK, in all modes, and reads them back with it.

    python send.py HOST:PORT

Says on standard output how many events were stored and how many times one was read; on standard error what differs
from what was sent, and then it fails. The SDK has two APIs, the present one and its older one, and neither writes
batches: those are made of the structured events that it writes.
"""

import base64
import http.client
import json
import pathlib
import sys
from datetime import datetime

from cloudevents.core.bindings import http as present
from cloudevents.core.formats.json import JSONFormat
from cloudevents.core.v1.event import CloudEvent
from cloudevents.v1 import conversion
from cloudevents.v1 import http as older

STRUCTURED = "application/cloudevents+json"
BATCHED = "application/cloudevents-batch+json"
LEAST = {"specversion": "1.0", "source": "/sdk", "type": "com.example.someevent", "time": "2018-04-05T17:31:00Z"}

events = json.loads(pathlib.Path(__file__).with_name("events.json").read_text(encoding="utf-8"))
stored, read, differences = set(), 0, []


def call(method, path, headers, body=None):
    connection = http.client.HTTPConnection(sys.argv[1], timeout=30)
    connection.request(method, path, body, headers)
    response = connection.getresponse()
    answer = response.status, dict(response.getheaders()), response.read()
    connection.close()
    return answer


def compare(what, sent, found):
    global read
    read += 1
    if sent != found:
        differences.append(f"{what}:\n  sent {sent}\n  read {found}")


def refused(what, status, body):
    differences.append(f"{what}: {status} {body.decode()}")


def attributes_of(event, mode, api):
    id = f"python-{api}-{mode}-{event['name']}"
    attributes = LEAST | {"id": id} | event.get("attributes", {})
    if "deduplicationid" in attributes:
        attributes["deduplicationid"] = id
    return attributes


def data_of(event):
    data = event.get("data", {})
    return base64.b64decode(data["base64"]) if "base64" in data else data.get("json", data.get("text"))


def data_in(mode, attributes, data):
    """What binary data are to those who read them: without a media type that says that they are JSON or text, bytes."""
    media_type = attributes.get("datacontenttype", "")
    if mode != "binary" or data is None or "json" in media_type or media_type.startswith("text/"):
        return data
    return data if isinstance(data, bytes) else (data if isinstance(data, str) else json.dumps(data)).encode()


class Present:
    """The present API: attributes have types, but for headers."""

    name = "present"

    def make(self, event, mode):
        attributes = attributes_of(event, mode, self.name)
        attributes["time"] = datetime.fromisoformat(attributes["time"].replace("Z", "+00:00"))
        return CloudEvent(attributes, data_of(event))

    def can_send(self, event, mode):
        return True

    def write(self, event, mode):
        message = {"binary": present.to_binary, "structured": present.to_structured}[mode](event, JSONFormat())
        return message.headers, message.body

    def read(self, headers, body):
        event = present.from_http(present.HTTPMessage(headers, body), JSONFormat())
        return event.get_attributes(), event.get_data()

    def expected(self, event, mode):
        attributes = dict(event.get_attributes())
        if mode == "binary":
            attributes = {name: value if name == "time" else str(value) for name, value in attributes.items()}
        return attributes, data_in(mode, attributes, event.get_data())


class Older:
    """The older API: attributes are texts, of ASCII in headers, and data are JSON or bytes."""

    name = "older"

    def make(self, event, mode):
        attributes = {name: str(value) for name, value in attributes_of(event, mode, self.name).items()}
        return older.CloudEvent(attributes, data_of(event))

    def can_send(self, event, mode):
        is_text = "text" in event.get("data", {})
        has_to_be_encoded = mode == "binary" and event["name"] == "unicode"
        return not is_text and not has_to_be_encoded

    def write(self, event, mode):
        data = event.get_data()
        marshal = (lambda data: data or b"") if data is None or isinstance(data, bytes) else None
        if mode == "binary":
            return conversion.to_binary(event, marshal)
        return conversion.to_structured(event, None if data is None else marshal)

    def read(self, headers, body):
        # It parses bytes as JSON unless told not to.
        parse = (lambda data: data) if b'"data_base64"' in body else None
        event = older.from_http(headers, body, parse)
        return event.get_attributes(), event.get_data()

    def expected(self, event, mode):
        attributes = dict(event.get_attributes())
        return attributes, data_in(mode, attributes, event.get_data())


def read_again(api, what, id, expected):
    status, headers, body = call("GET", f"/api/events/{id}", {"Accept": STRUCTURED})
    if status != 200:
        return refused(what, status, body)
    headers = {name.lower(): value for name, value in headers.items()}
    compare(what, expected, api.read({"content-type": headers["content-type"]}, body))


def send_alone(api, mode):
    for event in events:
        if not api.can_send(event, mode):
            continue
        what = f"{api.name} API, {mode}, {event['name']}"
        made = api.make(event, mode)
        headers, body = api.write(made, mode)
        expected = api.expected(made, mode)
        status, _, answer = call("POST", "/api/events", headers, body)
        if status != 201:
            refused(what, status, answer)
            continue
        id = json.loads(answer)["id"]
        stored.add(id)
        read_again(api, what, id, expected)
        # A repeat is answered with the first; as a CloudEvent if that is what is asked for.
        status, answered, answer = call("POST", "/api/events", dict(headers) | {"Accept": STRUCTURED}, body)
        if status != 200:
            refused(f"{what}, again", status, answer)
            continue
        compare(f"{what}, again", expected, api.read({"content-type": answered["content-type"]}, answer))


def send_together(api):
    sent = [event for event in events if api.can_send(event, "structured")]
    made = [api.make(event, "batched") for event in sent]
    body = b"[" + b", ".join(api.write(event, "structured")[1] for event in made) + b"]"
    status, _, answer = call("POST", "/api/events/batch", {"Content-Type": BATCHED}, body)
    if status != 200:
        return refused(f"{api.name} API, batched", status, answer)
    results = json.loads(answer)["results"]
    compare(f"{api.name} API, results", [201] * len(sent), [result["status"] for result in results])
    for event, one, result in zip(sent, made, results):
        if result["status"] == 201:
            stored.add(result["id"])
            read_again(api, f"{api.name} API, batched, {event['name']}", result["id"], api.expected(one, "structured"))


for api in [Present(), Older()]:
    send_alone(api, "binary")
    send_alone(api, "structured")
    send_together(api)

if differences:
    sys.exit("\n".join(differences))
print(json.dumps({"stored": len(stored), "read": read}))
