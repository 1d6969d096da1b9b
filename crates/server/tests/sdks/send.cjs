// Sends the events of events.json with the JavaScript SDK, in all modes, and reads them back with it.
//
//     NODE_PATH=…/node_modules node send.cjs HOST:PORT
//
// Says on standard output how many events were stored and how many times one was read; on standard error what differs
// from what was sent, and then it fails. The SDK writes no batches: those are made of the structured events that it writes.

const { isDeepStrictEqual, inspect } = require("node:util");
const { CloudEvent, CONSTANTS, HTTP, Mode, emitterFor, httpTransport } = require("cloudevents");
const events = require("./events.json");

const address = `http://${process.argv[2]}`;
const LEAST = { specversion: "1.0", source: "/sdk", type: "com.example.someevent", time: "2018-04-05T17:31:00.000Z" };
const stored = new Set();
const differences = [];
let read = 0;

function compare(what, sent, found) {
  read += 1;
  if (isDeepStrictEqual(sent, found)) return;
  differences.push(`${what}:\n  sent ${inspect(sent, { depth: 9 })}\n  read ${inspect(found, { depth: 9 })}`);
}

const refused = (what, { status, body }) => differences.push(`${what}: ${status} ${body}`);

function make(event, mode) {
  const id = `javascript-${mode}-${event.name}`;
  const attributes = { ...LEAST, id, ...event.attributes };
  if ("deduplicationid" in attributes) attributes.deduplicationid = id;
  const { json, text, base64 } = event.data ?? {};
  const data = base64 === undefined ? (json ?? text) : Uint8Array.from(Buffer.from(base64, "base64"));
  return new CloudEvent({ ...attributes, data });
}

// The SDK does not encode headers: other texts than ASCII cannot be sent in them.
const canSend = (event, mode) => mode !== Mode.BINARY || event.name !== "unicode";

// The attributes, and the data with bytes as a list of numbers.
function partsOf(event) {
  const { data, data_base64, ...attributes } = { ...event };
  const known = Object.fromEntries(Object.entries(attributes).filter(([, value]) => value !== undefined));
  return { attributes: known, data: ArrayBuffer.isView(data) ? [...data] : data };
}

// What an event is to those who read it. In headers all values are texts, and an event without a media type is given one;
// data that are neither JSON nor text are bytes.
function expected(event, mode) {
  const { attributes, data } = partsOf(event);
  if (mode !== Mode.BINARY) return { attributes, data };
  const mediaType = attributes.datacontenttype ?? CONSTANTS.DEFAULT_CONTENT_TYPE;
  const texts = Object.entries({ ...attributes, datacontenttype: mediaType }).map(([name, value]) => [name, `${value}`]);
  const stays = typeof data !== "string" || mediaType.startsWith("text/");
  return { attributes: Object.fromEntries(texts), data: stays ? data : [...Buffer.from(data)] };
}

async function call(path, options) {
  const answer = await fetch(address + path, options);
  const headers = { "content-type": answer.headers.get("content-type") };
  return { status: answer.status, headers, body: await answer.text() };
}

// What the SDK's emitter sends with.
const transport = (message, options) =>
  call("/api/events", { method: "POST", body: message.body, headers: { ...message.headers, ...options.headers } });
const accepting = { headers: { Accept: CONSTANTS.DEFAULT_CE_CONTENT_TYPE.split(";")[0] } };

async function readAgain(what, id, event, mode) {
  const answer = await call(`/api/events/${id}`, accepting);
  if (answer.status !== 200) return refused(what, answer);
  compare(what, expected(event, mode), partsOf(HTTP.toEvent(answer)));
}

async function sendAlone(mode) {
  const emit = emitterFor(transport, { mode });
  for (const event of events.filter((event) => canSend(event, mode))) {
    const what = `${mode}, ${event.name}`;
    const made = make(event, mode);
    const answer = await emit(made);
    if (answer.status !== 201) {
      refused(what, answer);
      continue;
    }
    const { id } = JSON.parse(answer.body);
    stored.add(id);
    await readAgain(what, id, made, mode);
    // A repeat is answered with the first; as a CloudEvent if that is what is asked for.
    const again = await emit(made, accepting);
    if (again.status === 200) compare(`${what}, again`, expected(made, mode), partsOf(HTTP.toEvent(again)));
    else refused(`${what}, again`, again);
    // The SDK's own transport, which sends in chunks, takes no events without data, and does not tell the status.
    if (made.data === undefined) continue;
    const own = await emitterFor(httpTransport(`${address}/api/events`), { mode })(made, accepting);
    compare(`${what}, by its own transport`, expected(made, mode), partsOf(HTTP.toEvent(own)));
  }
}

async function sendTogether() {
  const made = events.map((event) => make(event, Mode.BATCH));
  const body = `[${made.map((event) => HTTP.structured(event).body).join(", ")}]`;
  const headers = { [CONSTANTS.HEADER_CONTENT_TYPE]: CONSTANTS.MIME_CE_BATCH };
  const answer = await call("/api/events/batch", { method: "POST", headers, body });
  if (answer.status !== 200) return refused("batched", answer);
  const { results } = JSON.parse(answer.body);
  const created = made.map(() => 201);
  compare("results", created, results.map((result) => result.status));
  for (const [at, { status, id }] of results.entries()) {
    if (status !== 201) continue;
    stored.add(id);
    await readAgain(`batched, ${events[at].name}`, id, made[at], Mode.STRUCTURED);
  }
}

async function main() {
  await sendAlone(Mode.BINARY);
  await sendAlone(Mode.STRUCTURED);
  await sendTogether();
  if (differences.length > 0) throw differences.join("\n");
  console.log(JSON.stringify({ stored: stored.size, read }));
}

main().catch((error) => {
  console.error(error);
  process.exitCode = 1;
});
